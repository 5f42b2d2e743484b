"""How fast the Spark jobs are, each against what Spark itself does with the same rows on this machine.

deltas: changes of flat documents of 15 columns, two of which changed, read from Parquet, through `mapInArrow`, and
thrown away: as they are (identity), as deltas by our function, as patches by jsonpatch. The sides take turns, all of
them warmed first; jsonpatch has a fifth of the rows, for the time that it takes.

views: the last state of each key of the same changes, typed, and thrown away, against a scan of the same columns.

compaction: a file log of commits of 1,000 rows, and what the archive of it takes on disk.
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
from changelog.envelope.position import Position, commit_text
from changelog.spark_jobs.archiving.files import archive_log
from changelog.spark_jobs.archiving.retention import KEPT
from changelog.spark_jobs.archiving.write_files import ArchiveRun
from changelog.spark_jobs.deltas.derive import deltas_of
from changelog.spark_jobs.storage.local_store import local
from changelog.spark_jobs.storage.manifest import ARCHIVE
from changelog.spark_jobs.views.transforms import latest, live

SIZE = Size(rows=1_500_000, quick_rows=300_000, rounds=5)
FILES = 4
BLOCK = 50_000
JSONPATCH_SHARE = 5
COMMIT_ROWS = 1_000
NEXT_DAY_US = 1_795_100_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one part of the benchmark found: its ratios, and the figures behind them."""

    ratios: Mapping[str, float]
    figures: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where and how a part is measured."""

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
            found = PARTS[name](Site(spark=spark, folder=Path(folder) / name, rows=rows, rounds=rounds))
            ratios |= found.ratios
            figures[name] = found.figures
            _print(name, found)
        jvm = int(spark._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]
        figures["all"] = {"jvm_peak_mib": round(peak_mib(jvm))}
    print(f"{rows:,} changes, medians of {rounds} rounds")
    if options.json:
        machine = {"cores": os.cpu_count(), "python": platform.python_version()}
        print(json.dumps({"benchmark": "spark", "ratios": ratios, "figures": figures, "machine": machine}))


def _parse_args() -> argparse.Namespace:
    parser = SIZE.parser(__doc__, "changes")
    parser.add_argument("--part", action="append", choices=PARTS, help="only this part; may be repeated")
    return parser.parse_args()


def _print(name: str, found: Part) -> None:
    for what, value in found.figures.items():
        print(f"{name:12}{what:32}{value:>14,.0f}")
    for what, ratio in found.ratios.items():
        print(f"{name:12}{what:32}{ratio:>14.3f}")


# Deltas


def deltas(site: Site) -> Part:
    """Our Arrow function against none, and against a plain one around jsonpatch."""
    fewer = site.rows // JSONPATCH_SHARE
    changes, some = (
        _changes(site.spark, site.folder / name, rows) for name, rows in (("all", site.rows), ("some", fewer))
    )
    patches = from_arrow_schema(pa.schema([SCHEMA.field("position"), pa.field("patch", pa.utf8())]))
    seconds = in_turn(
        {
            "identity": lambda: _drop(changes.mapInArrow(_identity, changes.schema)),
            "deltas": lambda: _drop(deltas_of(changes)),
            "jsonpatch": lambda: _drop(some.mapInArrow(_jsonpatch, patches)),
        },
        site.rounds,
    )
    rows = {"identity": site.rows, "deltas": site.rows, "jsonpatch": fewer}
    rates = {name: rows[name] / seconds[name] for name in rows}
    return Part(
        ratios={f"deltas_over_{peer}": round(rates["deltas"] / rates[peer], 3) for peer in ("identity", "jsonpatch")},
        figures={f"{name}_rows_per_second": round(rate) for name, rate in rates.items()},
    )


def _changes(spark: SparkSession, folder: Path, rows: int) -> DataFrame:
    """Parquet files of updates."""
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
        found = [jsonpatch.make_patch(json.loads(before), json.loads(after)).to_string() for before, after in states]
        yield pa.RecordBatch.from_arrays([batch.column("position"), pa.array(found)], names=["position", "patch"])


# Views


def views(site: Site) -> Part:
    """The last state of each key, typed, against a bare scan of the same columns."""
    changes = _changes(site.spark, site.folder / "views", site.rows)
    states: Callable[[], DataFrame] = lambda: live(latest(changes, COLUMNS))  # noqa: E731
    seconds = in_turn(
        {"scan": lambda: _drop(changes.drop("original", "moved")), "rebuild": lambda: _drop(states())}, site.rounds
    )
    return Part(
        ratios={"rebuild_over_scan": round(seconds["rebuild"] / seconds["scan"], 3)},
        figures={f"{name}_rows_per_second": round(site.rows / each) for name, each in seconds.items()},
    )


# Compaction


def compaction(site: Site) -> Part:
    """A file log of many commits, as a service writes it, and its archive: what both take on disk."""
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
    """Commits of one day, and of the next day two, which stay in the log."""
    with closing(FileSink(log)) as sink:
        sink.prepare([])
        sink.recover()
        for block in itertools.chain(updates(rows), updates(KEPT * COMMIT_ROWS, first=rows, at_us=NEXT_DAY_US)):
            for begin in range(0, block.num_rows, COMMIT_ROWS):
                part = block.slice(begin, COMMIT_ROWS)
                last = Position.parse(part.column("position")[-1].as_py())
                sink.add([part])
                sink.commit(Checkpoint(position=last, through=commit_text(last.commit), epoch=1))


PARTS: Mapping[str, Callable[[Site], Part]] = {"deltas": deltas, "views": views, "compaction": compaction}

if __name__ == "__main__":
    main()
