"""How fast the Spark jobs are, each against what Spark itself does with the same rows on this machine.

deltas: changes of flat documents of 15 columns, two of which changed, read from Parquet, through `mapInArrow`, and
thrown away: as they are (identity), as deltas by our function, as patches by jsonpatch. The sides take turns, all of
them warmed first; jsonpatch has a fifth of the rows, for the time that it takes.

views: the last state of each key of the same changes, typed, and thrown away, against a scan of the same columns.
"""

import argparse
import json
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonpatch
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from bench.measure.processes import peak_mib
from envelope.batch import SCHEMA
from schemas.avro import Column
from schemas.types import ColumnType, Decimal, Primitive
from spark_jobs.deltas import deltas_of
from spark_jobs.job import SETTINGS
from spark_jobs.views import latest, live

ROWS, QUICK_ROWS = 1_500_000, 300_000
ROUNDS = 5
FILES = 4
BLOCK = 50_000
JSONPATCH_SHARE = 5
MEMORY = "2g"


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
    rows = options.rows or (QUICK_ROWS if options.quick else ROWS)
    rounds = options.rounds or (1 if options.quick else ROUNDS)
    ratios: dict[str, float] = {}
    figures: dict[str, Mapping[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="changelog-bench-") as folder, _session(Path(folder)) as spark:
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, help=f"changes: {ROWS}, with --quick {QUICK_ROWS}")
    parser.add_argument("--rounds", type=int, help=f"times that each side runs: {ROUNDS}, with --quick 1")
    parser.add_argument("--quick", action="store_true", help="one round of fewer changes")
    parser.add_argument("--json", action="store_true", help="a last line for programs")
    parser.add_argument("--part", action="append", choices=PARTS, help="only this part; may be repeated")
    return parser.parse_args()


@contextmanager
def _session(folder: Path) -> Iterator[SparkSession]:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = SETTINGS | {
        "spark.driver.memory": MEMORY,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(folder),
        "spark.log.level": "OFF",
        "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master("local[*]").appName("bench")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    yield spark
    spark.stop()


def _print(name: str, found: Part) -> None:
    for what, value in found.figures.items():
        print(f"{name:12}{what:32}{value:>14,.0f}")
    for what, ratio in found.ratios.items():
        print(f"{name:12}{what:32}{ratio:>14.3f}")


def in_turn(sides: Mapping[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """The median of the seconds that each side takes, all of them warmed first and then one after another."""
    for run in sides.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, run in sides.items():
            begin = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - begin)
    return {name: statistics.median(found) for name, found in seconds.items()}


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
    per_file = -(-rows // FILES)
    for number in range(FILES):
        first, end = number * per_file, min((number + 1) * per_file, rows)
        with pq.ParquetWriter(folder / f"{number}.parquet", SCHEMA, compression="zstd") as writer:
            for begin in range(first, end, BLOCK):
                writer.write_batch(_updates(range(begin, min(begin + BLOCK, end))))
    return spark.read.parquet(f"file:{folder}")


def _updates(numbers: range) -> pa.RecordBatch:
    rng = random.Random(numbers.start)
    return pa.RecordBatch.from_pylist([_update(rng, n) for n in numbers], schema=SCHEMA)


def _update(rng: random.Random, n: int) -> dict[str, Any]:
    key, position = rng.randrange(1_000_000), f"00000001/{n:016X}/00000000"
    before = {
        "id": key,
        "status": rng.choice(["NEW", "CONFIRMED", "PAID", "CANCELLED"]),
        "amount": f"{rng.randrange(100_000) / 100:.2f}",
        "currency": "EUR",
        "guest_id": rng.randrange(1_000_000),
        "room": f"{rng.randrange(1, 9)}{rng.randrange(100):02}",
        "nights": rng.randrange(1, 15),
        "adults": rng.randrange(1, 4),
        "arrival": f"2026-{rng.randrange(1, 13):02}-{rng.randrange(1, 29):02}",
        "created_at": "2026-11-21T03:10:02.886044Z",
        "channel": rng.choice(["web", "app", "phone"]),
        "paid": rng.random() < 0.5,
        "rating": round(rng.random() * 5, 2),
        "note": rng.choice([None, "late arrival, please keep the key", "two beds"]),
        "email": f"guest{rng.randrange(1_000_000)}@example.org",
    }
    after = {**before, "status": "CHANGED", "amount": f"{rng.randrange(100_000) / 100 + 1000:.2f}"}
    source = {
        "connector": "postgres",
        "name": "booking",
        "database": "app",
        "table": "public.orders",
        "op": "update",
        "position": position,
        "transaction": str(n),
        "committedAt": "2026-11-21T03:10:02.886044Z",
    }
    stamp = {"apiVersion": "v2", "serviceName": "order-api", "identifier": f"req-{n}"}
    return {
        "entity": "order",
        "partition": key % 4,
        "key": str(key),
        "op": "update",
        "position": position,
        "transaction": str(n),
        "committed_at": 1_795_000_000_000_000 + n,
        "api_version": "v2",
        "service_name": "order-api",
        "identifier": f"req-{n}",
        "provenance": _compact({**stamp, "source": source}),
        "current": _compact(after),
        "original": _compact(before),
        "moved": None,
    }


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


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
    columns = [Column(name=name, type=type_, nullable=True) for name, type_ in _TYPES.items()]
    states: Callable[[], DataFrame] = lambda: live(latest(changes, columns))  # noqa: E731
    seconds = in_turn(
        {"scan": lambda: _drop(changes.drop("original", "moved")), "rebuild": lambda: _drop(states())}, site.rounds
    )
    return Part(
        ratios={"rebuild_over_scan": round(seconds["rebuild"] / seconds["scan"], 3)},
        figures={f"{name}_rows_per_second": round(site.rows / each) for name, each in seconds.items()},
    )


_TYPES: Mapping[str, ColumnType] = {
    "id": Primitive.LONG,
    "status": Primitive.STRING,
    "amount": Decimal(precision=10, scale=2),
    "currency": Primitive.STRING,
    "guest_id": Primitive.LONG,
    "room": Primitive.STRING,
    "nights": Primitive.INT,
    "adults": Primitive.INT,
    "arrival": Primitive.DATE,
    "created_at": Primitive.TIMESTAMP_TZ,
    "channel": Primitive.STRING,
    "paid": Primitive.BOOLEAN,
    "rating": Primitive.DOUBLE,
    "note": Primitive.STRING,
    "email": Primitive.STRING,
}

PARTS: Mapping[str, Callable[[Site], Part]] = {"deltas": deltas, "views": views}

if __name__ == "__main__":
    main()
