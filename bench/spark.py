"""Measures how fast the Spark jobs are. Each job is compared with a simpler job that reads the same rows.

deltas: Spark reads changes of flat documents from Parquet, and sends them to a function by `mapInArrow`. A change
alters two of the document's 15 columns. Three functions are compared: *identity* returns the changes unchanged,
*deltas* is ours and returns deltas (JSON Patches), and *jsonpatch* returns patches that the package jsonpatch makes.
The results are discarded. The functions take turns, after each of them has run once to warm up. Because jsonpatch is
slow, it gets a fifth of the rows.

views: from changes of the same kind, Spark computes the last state of each key, as typed columns, and discards these
states. The time is compared with the time that Spark takes just to read the changes.

blame: in changes of the same kind, Spark finds the change that set each attribute of each row, and discards the result.
The time is compared with the time to compute the last states.

compaction: a file log with commits of 1,000 rows is archived. The size of the archive on disk is compared with the size
of the log.
"""

import argparse
import contextlib
import itertools
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import jsonpatch
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from bench.measure.changes import COLUMNS, updates
from bench.measure.options import Size
from bench.measure.processes import peak_mib
from bench.measure.session import in_turn, session
from changelog.connectors.sinks.files.layout import log_file
from changelog.connectors.sinks.files.sink import FileSink
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.columnar.batch import SCHEMA
from changelog.envelope.model import Stamp
from changelog.envelope.position import Position, commit_text
from changelog.spark_jobs.archiving.files import archive_log
from changelog.spark_jobs.archiving.retention import KEPT
from changelog.spark_jobs.archiving.write_files import ArchiveRun
from changelog.spark_jobs.blaming.stamp_kinds import DefaultStamps
from changelog.spark_jobs.blaming.tables import attributes, truncates_of
from changelog.spark_jobs.deltas.derive import deltas_of
from changelog.spark_jobs.storage.local_store import local
from changelog.spark_jobs.storage.manifest import ARCHIVE
from changelog.spark_jobs.views.transforms import latest, live

SIZE = Size(rows=1_500_000, quick_rows=300_000, rounds=5)
FILES = 4
JSONPATCH_SHARE = 5
COMMIT_ROWS = 1_000
NEXT_DAY_US = 1_795_100_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The results of one part of the benchmark: its ratios, and the figures from which the ratios are computed."""

    ratios: Mapping[str, float]
    figures: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What a part of the benchmark uses: the Spark session, a folder, and how many rows and rounds it has."""

    spark: SparkSession
    folder: Path
    rows: int
    rounds: int


def main() -> None:
    """Runs the benchmark."""
    options = _parse_args()
    rows, rounds = SIZE.chosen(options)
    ratios: dict[str, float] = {}
    figures: dict[str, Mapping[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="changelog-bench-") as folder, session(Path(folder)) as spark:
        for name in options.part or PARTS:
            results = PARTS[name](Site(spark=spark, folder=Path(folder) / name, rows=rows, rounds=rounds))
            ratios |= results.ratios
            figures[name] = results.figures
            _print(name, results)
        jvm = int(spark._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]
        figures["all"] = {"jvm_peak_mib": round(peak_mib(jvm))}
    print(f"{rows:,} changes, medians of {rounds} rounds")
    if options.json:
        machine = {"cores": os.cpu_count(), "python": platform.python_version()}
        print(json.dumps({"benchmark": "spark", "ratios": ratios, "figures": figures, "machine": machine}))


def _parse_args() -> argparse.Namespace:
    parser = SIZE.parser(__doc__, "changes")
    parser.add_argument("--part", action="append", choices=PARTS, help="run only this part; may be repeated")
    return parser.parse_args()


def _print(name: str, results: Part) -> None:
    for figure, value in results.figures.items():
        print(f"{name:12}{figure:32}{value:>14,.0f}")
    for ratio, value in results.ratios.items():
        print(f"{name:12}{ratio:32}{value:>14.3f}")


# Deltas


def deltas(site: Site) -> Part:
    """Compares our function, which derives deltas, with a function that returns its input, and with one that calls
    jsonpatch.
    """
    jsonpatch_rows = site.rows // JSONPATCH_SHARE
    changes, fewer_changes = (
        _changes(site.spark, site.folder / name, rows) for name, rows in (("all", site.rows), ("some", jsonpatch_rows))
    )
    patches = from_arrow_schema(pa.schema([SCHEMA.field("position"), pa.field("patch", pa.utf8())]))
    seconds = in_turn(
        {
            "identity": lambda: _drop(changes.mapInArrow(_identity, changes.schema)),
            "deltas": lambda: _drop(deltas_of(changes)),
            "jsonpatch": lambda: _drop(fewer_changes.mapInArrow(_jsonpatch, patches)),
        },
        site.rounds,
    )
    rows = {"identity": site.rows, "deltas": site.rows, "jsonpatch": jsonpatch_rows}
    rates = {name: rows[name] / seconds[name] for name in rows}
    return Part(
        ratios={f"deltas_over_{peer}": round(rates["deltas"] / rates[peer], 3) for peer in ("identity", "jsonpatch")},
        figures={f"{name}_rows_per_second": round(rate) for name, rate in rates.items()},
    )


def _changes(spark: SparkSession, folder: Path, rows: int) -> DataFrame:
    """Writes updates into Parquet files. Returns a DataFrame that reads these files."""
    folder.mkdir(parents=True)
    with contextlib.ExitStack() as opened:
        writers = [
            opened.enter_context(pq.ParquetWriter(folder / f"{number}.parquet", SCHEMA, compression="zstd"))
            for number in range(FILES)
        ]
        for number, block in enumerate(updates(rows)):
            writers[number % FILES].write_batch(block)
    return spark.read.parquet(f"file:{folder}")


def _drop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _identity(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    return batches


def _jsonpatch(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        states = zip(batch.column("original").to_pylist(), batch.column("current").to_pylist(), strict=True)
        patches = [jsonpatch.make_patch(json.loads(before), json.loads(after)).to_string() for before, after in states]
        yield pa.RecordBatch.from_arrays([batch.column("position"), pa.array(patches)], names=["position", "patch"])


# Views


def views(site: Site) -> Part:
    """Compares the time to compute the last state of each key, in typed columns, with the time to read the changes."""
    changes = _changes(site.spark, site.folder / "views", site.rows)
    states: Callable[[], DataFrame] = lambda: live(latest(changes, COLUMNS))  # noqa: E731
    seconds = in_turn(
        {"scan": lambda: _drop(changes.drop("original", "moved")), "rebuild": lambda: _drop(states())}, site.rounds
    )
    return Part(
        ratios={"rebuild_over_scan": round(seconds["rebuild"] / seconds["scan"], 3)},
        figures={f"{name}_rows_per_second": round(site.rows / value) for name, value in seconds.items()},
    )


# Blame


def blame(site: Site) -> Part:
    """Compares two times: to find the change that set each attribute, and to compute the last state of each key."""
    changes = _changes(site.spark, site.folder / "blame", site.rows)
    nobody = Stamp(api_version="unknown", service_name="unknown", identifier="")
    defaults = DefaultStamps(general=nobody, by_entity={})
    seconds = in_turn(
        {
            "rebuild": lambda: _drop(live(latest(changes, COLUMNS))),
            "blame": lambda: _drop(attributes(site.spark, changes, truncates_of(changes), defaults)),
        },
        site.rounds,
    )
    return Part(
        ratios={"blame_over_rebuild": round(seconds["blame"] / seconds["rebuild"], 3)},
        figures={f"{name}_rows_per_second": round(site.rows / value) for name, value in seconds.items()},
    )


# Compaction


def compaction(site: Site) -> Part:
    """Compares the size on disk of a file log, which a service writes in many commits, with the size of its archive."""
    log = site.folder / "log"
    _write_log(log, site.rows)
    begin_s = time.perf_counter()
    merged = archive_log(ArchiveRun(spark=site.spark, store=local(log), at=datetime.now(UTC)), log)
    seconds = time.perf_counter() - begin_s
    before = sum(log_file(log, sequence).stat().st_size for sequence in range(1, merged.files + 1))
    after = sum(file.stat().st_size for file in (log / ARCHIVE).rglob("*.parquet"))
    return Part(
        ratios={"compacted_over_input": round(after / before, 3)},
        figures={
            "input_bytes_per_row": before / merged.rows,
            "compacted_bytes_per_row": after / merged.rows,
            "input_files": merged.files,
            "files": merged.into,
            "rows_per_second": merged.rows / seconds,
        },
    )


def _write_log(log: Path, rows: int) -> None:
    """Writes a log with the commits of one day, and with a few commits of the next day.

    The job that archives a log does not archive its newest `KEPT` files. Here, these are the files of the next day.
    """
    with closing(FileSink(log)) as sink:
        sink.prepare([])
        sink.recover()
        for block in itertools.chain(updates(rows), updates(KEPT * COMMIT_ROWS, first=rows, at_us=NEXT_DAY_US)):
            for begin in range(0, block.num_rows, COMMIT_ROWS):
                part = block.slice(begin, COMMIT_ROWS)
                last = Position.parse(part.column("position")[-1].as_py())
                sink.add([part])
                sink.commit(Checkpoint(position=last, through=commit_text(last.commit), epoch=1))


PARTS: Mapping[str, Callable[[Site], Part]] = {
    "deltas": deltas,
    "views": views,
    "blame": blame,
    "compaction": compaction,
}

if __name__ == "__main__":
    main()
