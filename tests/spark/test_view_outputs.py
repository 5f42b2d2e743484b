"""Tests that the job `rebuild_view` writes views as tables of PostgreSQL and of Delta Lake.

In PostgreSQL, the new table replaces the old one in one step. In Delta Lake, each new state of a view is one commit.
The job never replaces a table that it did not write itself.
"""

import json
import os
import re
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from changelog.envelope.model import Op, Record
from changelog.schemas import avro
from changelog.schemas.types import Array, ColumnType, Decimal, Map, Primitive, Struct
from changelog.spark_jobs.views import to_postgres
from tests.servers import HASTY_JAVA, fetched, java_needed
from tests.spark import test_rebuild_view
from tests.spark.test_rebuild_view import CONFIG, Run, grow
from tests.unit.records import record

P = Primitive
run = test_rebuild_view.run

TYPES: dict[str, ColumnType] = {
    "id": P.LONG,
    "flag": P.BOOLEAN,
    "small": P.INT,
    "single": P.FLOAT,
    "double": P.DOUBLE,
    "amount": Decimal(precision=10, scale=2),
    "huge": Decimal(precision=40, scale=0),
    "status": P.STRING,
    "blob": P.BYTES,
    "uuid": P.UUID,
    "day": P.DATE,
    "time": P.TIME,
    "at": P.TIMESTAMP,
    "at zone": P.TIMESTAMP_TZ,
    "doc": P.JSON,
    "list": Array(element=P.FLOAT),
    "map": Map(value=P.STRING),
    'p"a`ir': Struct(
        fields=(("n", Decimal(precision=5, scale=2)), ("at", P.TIMESTAMP_TZ), ("local", P.TIMESTAMP), ("doc", P.JSON))
    ),
    "note": P.STRING,
    "long": P.STRING,
}
SHAPE = Struct(fields=tuple(TYPES.items()))
PLAIN = Struct(fields=tuple((name, type_) for name, type_ in TYPES.items() if name.isalpha()))

FULL = {
    "id": 9007199254740993,
    "flag": True,
    "small": -1,
    "single": "NaN",
    "double": "-Infinity",
    "amount": "-12.50",
    "huge": "9" * 40,
    "status": 'a "b", c\n\\N',
    "blob": "AP8Q",
    "uuid": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
    "day": "0001-01-01",
    "time": "24:00:00",
    "at": "2026-11-21T03:10:02.500000",
    "at zone": "9999-12-31T23:59:59.999999Z",
    "doc": {"n": 1e20, "e": "é"},
    "list": [0.1, None, "Infinity"],
    "map": {"a": "1", "b": None},
    'p"a`ir': {
        "n": "1.50",
        "at": "2026-11-21T03:10:02.000000Z",
        "local": "2026-11-21T03:10:02.000000",
        "doc": [1, "x"],
    },
    "note": "",
    "long": None,
}

ORACLE = """SELECT id = 9007199254740993, flag, small = -1, single = 'NaN', double = '-Infinity',
    amount::text = '-12.50', huge::text = repeat('9', 40), status = E'a "b", c\\n\\\\N', blob = '\\x00ff10',
    uuid = 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::uuid, day = '0001-01-01'::date, time::text = '24:00:00',
    at = '2026-11-21 03:10:02.5'::timestamp, "at zone" = '9999-12-31 23:59:59.999999+00'::timestamptz,
    doc::text = '{"n": 1e+20, "e": "\\u00e9"}', list = '[0.1, null, "Infinity"]', map = '{"a": "1", "b": null}',
    "p""a`ir" = '{"n": "1.50", "at": "2026-11-21T03:10:02.000000Z", "local": "2026-11-21T03:10:02.000000",
        "doc": [1, "x"]}', note = '', long IS NULL,
    _key = '1', _unavailable = '{}', _out_of_range = '{}', _committed_at IS NOT NULL,
    _context::text = '{"nul": "\\u0000", "half": "\\ud800", "n": 1.10}' FROM orders WHERE _key = '1'"""
"""Compares the values of row 1 in PostgreSQL with those that were published. Each column of the result must be true."""


def change(key: str, commit: int, op: Op = Op.CREATE, **values: Any) -> Record:
    state = None if op is Op.DELETE else json.dumps({"id": int(key), **values})
    return record(op, state, key=key, commit=commit)


def schema(folder: Path, shape: Struct) -> None:
    (folder / "schemas").mkdir(exist_ok=True)
    text = json.dumps(avro.state_schema("order", shape, ("id",), "booking"))
    (folder / "schemas" / "order.avsc").write_text(text, "utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A file log of two orders, and a schema with all types."""
    (tmp_path / "changelog.toml").write_text(CONFIG, "utf-8")
    schema(tmp_path, SHAPE)
    first = record(Op.CREATE, json.dumps(FULL), key="1", commit=1)
    provenance = first.envelope.provenance
    stamp = replace(provenance.stamp, context='{"nul": "\\u0000", "half": "\\ud800", "n": 1.10}')
    first = replace(first, envelope=replace(first.envelope, provenance=replace(provenance, stamp=stamp)))
    grow(tmp_path, [[first], [change("2", 2, status="PAID", day="infinity")]])
    return tmp_path


@pytest.fixture
def dsn(database: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("VIEWS_DSN", database)
    return database


POSTGRES = ("--output", "postgres", "--dsn", "env:VIEWS_DSN", "--to", "orders")


def rows(dsn: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(query.encode())
        return cursor.fetchall() if cursor.description else []


def comment(dsn: str) -> dict[str, Any]:
    ((text,),) = rows(dsn, "SELECT obj_description('orders'::regclass)")
    return dict(json.loads(text.removeprefix(to_postgres.MARK)))


def test_a_table_is_replaced_in_one_step(folder: Path, run: Run, dsn: str) -> None:
    typed = (*POSTGRES, "--schemas", str(folder / "schemas"))
    rows(dsn, "CREATE TABLE orders__new (left_by text); CREATE TABLE orders__new_parts (a_killed_run int)")
    first = run(*typed)
    assert (first["rows"], first["out_of_range"], first["view"]) == (2, 1, "orders")
    (values,) = rows(dsn, ORACLE)
    assert [number for number, value in enumerate(values) if value is not True] == []
    assert rows(dsn, "SELECT day, _out_of_range FROM orders WHERE id = 2") == [(None, ["day"])]
    assert comment(dsn)["position"] == first["position"]

    rows(dsn, "CREATE ROLE reader; GRANT SELECT ON orders TO reader; GRANT UPDATE (note) ON orders TO PUBLIC")
    grow(folder, [[change("3", 3)], [change("1", 4, Op.DELETE)]])
    counts: set[int] = set()
    reading = _Reading(dsn, counts)
    second = run(*typed)
    reading.stop()
    assert counts <= {2}
    assert rows(dsn, "SELECT id FROM orders ORDER BY id") == [(2,), (3,)]
    assert comment(dsn)["position"] == second["position"] > first["position"]
    assert rows(dsn, "SELECT has_table_privilege('reader', 'orders', 'SELECT')") == [(True,)]
    assert rows(dsn, "SELECT has_column_privilege('reader', 'orders', 'note', 'UPDATE')") == [(True,)]
    assert rows(dsn, "SELECT relname FROM pg_class WHERE relname LIKE 'orders\\_\\_new%' AND relkind = 'r'") == []
    rows(dsn, "DROP OWNED BY reader; DROP ROLE reader; CREATE VIEW over AS SELECT id FROM orders")
    assert "drop what depends on it" in run(*typed, code=3)["stderr"]
    assert rows(dsn, "SELECT id FROM over ORDER BY id") == [(2,), (3,)]


class _Reading:
    """Counts the table's rows again and again in a thread, while the table is replaced."""

    def __init__(self, dsn: str, counts: set[int]) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(dsn, counts))
        self._thread.start()

    def _run(self, dsn: str, counts: set[int]) -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            while not self._ended.is_set():
                row = connection.execute("SELECT count(*) FROM orders").fetchone()
                assert row is not None
                counts.add(row[0])

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()


def test_documents_are_jsonb(folder: Path, run: Run, dsn: str) -> None:
    run("--view", "statuses", *POSTGRES, "--schemas", str(folder / "schemas"))
    assert rows(dsn, "SELECT id, status, peers FROM orders") == [(2, "PAID", [])]


@pytest.mark.parametrize(
    ("statement", "arguments", "code", "message"),
    [
        ("CREATE TABLE orders (id int)", (), 2, "orders is a table that this job did not make"),
        ("CREATE VIEW orders AS SELECT 1", (), 2, r"public\.orders is a view.*replaces only tables that it wrote"),
        ("CREATE TABLE orders (id int) PARTITION BY LIST (id)", (), 2, "orders is a partitioned table"),
        ("", ("--to", "nowhere.orders"), 2, "has no schema nowhere"),
        ("", ("--to", "a.b.c"), 2, "'a.b.c' is not a table name"),
        ("", ("--dsn", "postgresql://me:secret@nowhere/app"), 2, "a secret must be given by reference; write env:NAME"),
        ("", ("--dsn", "env:NOT_THERE"), 2, "the environment has no NOT_THERE"),
        ("", ("--dsn", "env:UNREACHABLE"), 3, "cannot connect to PostgreSQL"),
        ("", ("--dsn", "env:NO_DSN"), 2, "--dsn is not a PostgreSQL connection string"),
        ("", ("--dsn", "env:POWERLESS"), 3, "permission denied .*grant the user of --dsn CREATE"),
        ("", ("--output", "files"), 2, "--output postgres and --dsn go together"),
    ],
)
def test_a_refused_run_changes_no_table(
    folder: Path,
    run: Run,
    dsn: str,
    monkeypatch: pytest.MonkeyPatch,
    statement: str,
    arguments: tuple[str, ...],
    code: int,
    message: str,
) -> None:
    monkeypatch.setenv("UNREACHABLE", "postgresql://nobody:secret@127.0.0.1:1/app")
    monkeypatch.setenv("NO_DSN", "secret?=")
    monkeypatch.setenv("POWERLESS", psycopg.conninfo.make_conninfo(dsn, options="-c role=pg_monitor"))
    rows(dsn, statement)
    before = rows(dsn, "SELECT oid, relname FROM pg_class ORDER BY oid")
    summary = run(*POSTGRES, *arguments, "--schemas", str(folder / "schemas"), code=code)
    assert re.search(message, summary["stderr"]), summary["stderr"]
    assert "secret" not in summary["stderr"].replace("a secret must", "")
    assert rows(dsn, "SELECT oid, relname FROM pg_class ORDER BY oid") == before


def test_two_runs_do_not_write_the_same_table_at_once(folder: Path, run: Run, dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as other:
        other.execute("SELECT pg_advisory_lock(%s, hashtext('public.orders'))", [to_postgres.LOCK_CLASS])
        summary = run(*POSTGRES, "--schemas", str(folder / "schemas"), code=3)
    assert "another run writes the table orders; wait until it ends" in summary["stderr"]


def test_each_view_is_one_commit_of_delta_lake(spark: SparkSession, folder: Path, run: Run) -> None:
    fetched("jars")
    at = folder / "delta"
    delta = ("--output", "delta", "--to", str(at), "--schemas", str(folder / "schemas"))
    assert "Delta Lake takes no column named 'at zone'" in run(*delta, code=2)["stderr"]
    assert not at.exists()
    schema(folder, PLAIN)
    first = run(*delta)
    assert (first["rows"], first["out_of_range"], first["after"]) == (2, 1, None)
    assert run(*delta)["rows"] == 2
    assert _versions(at) == 1
    grow(folder, [[change("3", 3)], [change("1", 4, Op.DELETE)]])
    second = run(*delta)
    assert (second["rows"], second["after"]) == (2, first["position"])
    (record,) = spark.sql(f"DESCRIBE HISTORY delta.`{at}` LIMIT 1").collect()
    assert json.loads(record["userMetadata"])["position"] == second["position"]
    table = spark.read.format("delta").load(str(at))
    assert sorted(row["id"] for row in table.collect()) == [2, 3]
    assert spark.read.format("delta").option("versionAsOf", 0).load(str(at)).count() == 2
    spark.range(1).write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(str(at))
    assert "are not a view that this job wrote; name another path" in run(*delta, code=2)["stderr"]
    assert _versions(at) == 3


@pytest.mark.usefixtures("starts_servers")
def test_without_delta_lake_one_line_says_what_to_add(folder: Path) -> None:
    """Runs in a separate Spark session, because the session of the other tests has Delta Lake."""
    java_needed()
    job = ["rebuild_view", "--config", "changelog.toml", "--entity", "order", "--output", "delta", "--to", "delta"]
    command = [sys.executable, "-m", f"changelog.spark_jobs.{job[0]}", *job[1:], "--schemas", "schemas"]
    environment = {**os.environ, "PYSPARK_SUBMIT_ARGS": f'--driver-java-options "{HASTY_JAVA}" pyspark-shell'}
    process = subprocess.run(command, cwd=folder, env=environment, check=False, capture_output=True, text=True)
    assert process.returncode == 2, process.stderr
    message = "Spark has no delta; add to spark-submit: --packages io.delta:delta-spark_2.13:4.0.1"
    error_lines = [line for line in process.stderr.splitlines() if line.startswith("rebuild_view: ")]
    assert error_lines == [f"rebuild_view: {message}"]
    assert "Traceback" not in process.stderr
    summary = json.loads(process.stdout.splitlines()[-1])
    assert (summary["verdict"], summary["error"]) == ("failed", message)
    assert not (folder / "delta").exists()


def _versions(path: Path) -> int:
    return len(list((path / "_delta_log").glob("*.json")))


def test_a_dry_run_names_the_table(folder: Path, run: Run, dsn: str) -> None:
    planned = run(*POSTGRES, "--dry-run")
    assert (planned["writes"], planned["output"]) == ("orders", "postgres")
    assert rows(dsn, "SELECT to_regclass('orders')::text") == [(None,)]
