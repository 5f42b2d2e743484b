"""Tests that the job `maintain_view` keeps tables equal to the states that plain Python computes from the same changes.
The batches may come in any order, and more than once. Each error of the job is one line.
"""

import json
import random
import re
import sqlite3
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from pyspark.sql import SparkSession

from changelog.connectors.config import TotalsConfig
from changelog.envelope.errors import ChangelogError
from changelog.envelope.model import Op, Record
from changelog.envelope.position import Position
from changelog.schemas.avro import Column
from changelog.schemas.types import ColumnType, Decimal, Primitive, Struct
from changelog.spark_jobs import rebuild_view
from changelog.spark_jobs.archiving.files import archive_log
from changelog.spark_jobs.archiving.levels import drop_days
from changelog.spark_jobs.archiving.write_files import ArchiveRun
from changelog.spark_jobs.maintain_view import JOB
from changelog.spark_jobs.maintaining import in_delta_lake, in_postgres
from changelog.spark_jobs.maintaining.derived.totals_columns import refuse_columns
from changelog.spark_jobs.maintaining.following.file_ranges import FileRanges
from changelog.spark_jobs.maintaining.parts import ViewPart
from changelog.spark_jobs.maintaining.target import GROUP, TargetSettings
from changelog.spark_jobs.reading.where import Files
from changelog.spark_jobs.storage.local_store import local
from changelog.spark_jobs.views import to_postgres
from changelog.spark_jobs.views.copy_rows import ViewColumns, copier
from changelog.spark_jobs.views.transforms import Chosen
from tests.servers import fetched
from tests.spark.maintained import (
    NAMES,
    SUMMED,
    TOTALS,
    CrashError,
    CrashOnce,
    check_totals,
    maintained,
    query,
    scattered,
    table,
)
from tests.spark.ran import Run
from tests.spark.test_rebuild_view import SHAPE, announced, flat, grow, position_of
from tests.spark.test_views import COLUMNS, frame, replay, states_of, transactions
from tests.unit.records import BEGIN, record

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "maintain-views.md"
TRANSACTIONS = 60
END = Position(9, 0, 0)
LONG_NAMES = ("x" * 56 + "é", "x" * 56 + "ł")
"""Two names of columns. With `count_` before them, both are too long: PostgreSQL cuts them to the same 62 bytes."""

CONFIG = """
name = "booking"
source = { kind = "postgres", dsn = "postgresql://nowhere" }
tables = { include = ["*"] }
sink = { path = "log" }
[views]
orders = { entity = "order" }
statuses = { entity = "order", columns = ["status", "id"] }
misspelt = { entity = "order", columns = ["statsu"] }
totals = { entity = "order", totals = { by = ["status"], sums = ["id"] } }
sums_of_text = { entity = "order", totals = { by = ["status"], sums = ["note"] } }
unknown = { entity = "room" }
chosen = { entity = "order", where = "id < 6" }
documents = { entity = "order", nested.peers = { entity = "order", on = { id = "id" } } }
"""


@pytest.fixture(scope="module")
def workload() -> list[list[Record]]:
    return transactions(31, TRANSACTIONS)


@pytest.fixture
def config(tmp_path: Path, workload: list[list[Record]]) -> Path:
    """A configuration, and a log with half of the transactions."""
    file = tmp_path / "changelog.toml"
    file.write_text(CONFIG, "utf-8")
    first = next(record for records in workload for record in records if record.entity == "order")
    grow(tmp_path, [[announced(first)], *workload[: TRANSACTIONS // 2]])
    return file


@pytest.fixture
def dsn(database: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("VIEWS_DSN", database)
    return database


POSTGRES = ("--available-now", "--view", "orders", "--output", "postgres", "--dsn", "env:VIEWS_DSN", "--to", "orders")


def test_a_table_follows_a_file_log(
    config: Path, run: Run, spark: SparkSession, dsn: str, workload: list[list[Record]]
) -> None:
    choice = Chosen(drop_services=("nightly-batch",))
    without_batch = ("--to", "without_batch", "--drop-service", "nightly-batch")
    half, end = TRANSACTIONS // 2, position_of(workload[-1][-1])
    for name in ((), without_batch):
        run(JOB, config, *POSTGRES, *name)
    assert table(dsn) == replay(flat(workload), position_of(workload[half - 1][-1]))
    for records in (workload[half:-2], workload[-2:-1], workload[-1:]):
        grow(config.parent, records)
    archive = ArchiveRun(spark=spark, store=local(config.parent / "log"), at=BEGIN + timedelta(days=7))
    assert archive_log(archive, config.parent / "log", before=date.max).files
    for name in ((), without_batch):
        assert run(JOB, config, *POSTGRES, *name).summary["batches"] == 1
    assert table(dsn) == replay(flat(workload), end)
    assert table(dsn, "without_batch") == replay(flat(workload), end, choice) != table(dsn)
    before = query(dsn, "SELECT xmin::text, * FROM orders ORDER BY _key")
    again = run(JOB, config, *POSTGRES).summary
    assert (again["batches"], again["rows"], again["deleted"]) == (0, 0, 0)
    assert query(dsn, "SELECT xmin::text, * FROM orders ORDER BY _key") == before


# Order and repetition


def test_late_and_repeated_batches_do_no_harm_in_postgres(
    spark: SparkSession, dsn: str, tmp_path: Path, seed: int
) -> None:
    records = flat(transactions(seed, 40))
    batches = scattered(records, random.Random(seed), shares=(0, 0.7, 1))
    with in_postgres.opened(TargetSettings(to="orders", dsn=dsn, totals=TOTALS)) as target:
        view = maintained(target, SUMMED)
        for number, batch in enumerate(batches):
            (tmp_path / str(number)).mkdir()
            view.apply(frame(spark, tmp_path / str(number), batch), {"number": number})
            check_totals(dsn, TOTALS)
        assert table(dsn) == replay(records, END)
        progress = target.progress()
        assert progress is not None
        assert json.loads(progress)["maintained"]["checkpoint"] == {"number": len(batches) - 1}
        target.forget(datetime.now(UTC) + timedelta(seconds=1))
        assert query(dsn, "SELECT * FROM orders__deleted") == []


def test_late_and_repeated_batches_do_no_harm_in_delta_lake(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    """At the end, the first batch is applied once more. This changes no row, but the batch's progress is stored."""
    fetched("jars")
    records = flat(transactions(seed + 2, 15))
    first, *others = scattered(records, random.Random(seed + 2), shares=(0.7,))
    batches = [first, flat(others), first]
    path = tmp_path / "delta"
    crashes = CrashOnce("view:staged", 1)
    with (
        in_delta_lake.opened(TargetSettings(to=str(path), reach=crashes)) as target,
        in_delta_lake.opened(TargetSettings(to=str(path))) as other_target,
    ):
        view = maintained(target)
        assert other_target.progress() is not None
        other_view = replace(view, target=other_target)
        for number, batch in enumerate(batches):
            (tmp_path / str(number)).mkdir()
            rows = frame(spark, tmp_path / str(number), batch)
            try:
                view.apply(rows, {"number": number})
            except CrashError:
                view.apply(rows, {"number": number})
        assert states_of(spark.read.format("delta").load(str(path))) == replay(records, END)
        progress = target.progress()
        assert progress is not None
        assert json.loads(progress)["maintained"]["checkpoint"] == {"number": len(batches) - 1}
        with pytest.raises(ChangelogError, match="another run has written"):
            other_view.apply(rows, {})
        target.forget(datetime.now(UTC) + timedelta(seconds=1))
        assert spark.read.format("delta").load(f"{path}__deleted").isEmpty()


def test_a_late_state_does_not_bring_a_deleted_row_back(spark: SparkSession, dsn: str, tmp_path: Path) -> None:
    late = record(Op.UPDATE, '{"id":1,"status":"LATE"}', commit=2, key="1")
    batches: list[tuple[list[Record], list[tuple[object, ...]]]] = [
        (
            [record(Op.DELETE, commit=3, key="1"), record(Op.READ, '{"id":2,"status":"READ"}', commit=3, key="2")],
            [(2, "READ", [])],
        ),
        ([late, record(Op.UPDATE, '{"id":2}', commit=4, key="2", unavailable=("status",))], [(2, "READ", [])]),
        (
            [
                record(Op.CREATE, '{"id":1,"status":"AGAIN"}', commit=5, key="1"),
                record(Op.CREATE, '{"id":2}', commit=6, key="2", unavailable=("status",)),
            ],
            [(1, "AGAIN", []), (2, None, ["status"])],
        ),
    ]
    with in_postgres.opened(TargetSettings(to="orders", dsn=dsn, totals=TOTALS)) as target:
        view = maintained(target, SUMMED)
        for number, (batch, expected) in enumerate(batches):
            (tmp_path / str(number)).mkdir()
            view.apply(frame(spark, tmp_path / str(number), batch), {})
            assert query(dsn, "SELECT id, status, _unavailable FROM orders ORDER BY id") == expected
            check_totals(dsn, TOTALS)
    sums = query(dsn, "SELECT status, _count, count_amount, sum_amount, sum_id FROM orders__totals ORDER BY status")
    assert sums == [("AGAIN", 1, 0, None, 1), (None, 1, 0, None, 2)], "a sum of no values is null"


def test_a_value_does_not_come_from_an_earlier_row_of_the_key_in_a_slower_partition(
    spark: SparkSession, dsn: str, tmp_path: Path
) -> None:
    """The last change of each row lacks the note. Rows 1 to 3 are created in partition 0, deleted, and created again in
    partition 1. When the last change of rows 1 and 2 is applied, the view has the new row, but not yet the changes in
    partition 0. All changes of row 3 are in one batch. Row 4 gets another partition without a delete, as after a
    repartition.
    """

    def change(op: Op, key: int, commit: int, partition: int, note: str | None = None) -> Record:
        state = None if op is Op.DELETE else json.dumps({"id": key} | ({} if note is None else {"note": note}))
        unavailable = ("note",) if op is Op.UPDATE and note is None else ()
        made = record(op, state, key=str(key), commit=commit, unavailable=unavailable)
        return replace(made, place=replace(made.place, partition=partition))

    first_lives = {key: [change(Op.CREATE, key, 1, 0, "old"), change(Op.UPDATE, key, 2, 0, "old")] for key in (1, 2, 3)}
    deletes = {key: change(Op.DELETE, key, 3, 0) for key in (1, 2, 3)}
    again = {key: change(Op.CREATE, key, 4, 1, "new") for key in (1, 2, 3)}
    last = {key: change(Op.UPDATE, key, 5, 1) for key in (1, 2, 3, 4)}
    batches = [
        [again[1], again[2]],
        [*first_lives[1], last[1], *first_lives[2], deletes[2], last[2]],
        [deletes[1], *first_lives[3], deletes[3], again[3], last[3]],
        [change(Op.CREATE, 4, 1, 0, "old"), last[4]],
    ]
    with in_postgres.opened(TargetSettings(to="orders", dsn=dsn)) as target:
        view = maintained(target)
        for number, batch in enumerate(batches):
            (tmp_path / str(number)).mkdir()
            view.apply(frame(spark, tmp_path / str(number), batch), {"number": number})
            assert target.progress() == view.progress.to_json()
    notes = query(dsn, "SELECT id, note, _unavailable FROM orders ORDER BY id")
    assert notes == [(1, "new", []), (2, "new", []), (3, "new", []), (4, "old", [])]
    assert view.rows == 6


@pytest.mark.parametrize(
    ("by", "sums", "message"),
    [
        (("statsu",), (), "the view has no column statsu; it has: id, status"),
        (("status",), ("ratio",), "sums: column ratio is neither an integer nor a decimal number of a fixed scale"),
        (
            ("status",),
            ("digits",),
            "sums: column digits is neither an integer nor a decimal number .* at most 38 digits",
        ),
        (("ratio",), (), "by: rows cannot be grouped by column ratio; group by numbers without a floating point"),
        (("doc",), (), "by: rows cannot be grouped by column doc"),
        (("sum_id",), ("id",), "two columns of the totals have the same name; each sum adds"),
        (("id", "id"), (), "two columns of the totals have the same name"),
        (("status",), LONG_NAMES, "two columns of the totals have the same name"),
    ],
)
def test_totals_that_a_view_cannot_have_are_refused(by: tuple[str, ...], sums: tuple[str, ...], message: str) -> None:
    types: dict[str, ColumnType] = {
        "ratio": Primitive.DOUBLE,
        "digits": Decimal(precision=39, scale=2),  # such a number can be NaN
        **dict.fromkeys(("sum_id", *LONG_NAMES), Primitive.LONG),
    }
    columns = [*COLUMNS, *(Column(name=name, type=type_, nullable=True) for name, type_ in types.items())]
    with pytest.raises(ChangelogError, match=message):
        refuse_columns(TotalsConfig(by=by, sums=sums), columns, "totals")


def test_a_late_task_of_an_earlier_batch_copies_nothing(dsn: str) -> None:
    shape, names = ViewColumns(COLUMNS), (sql.Identifier("staged"), sql.Identifier("staged_parts"))
    with psycopg.connect(dsn, autocommit=True) as connection:
        earlier, present = (to_postgres.create_to_fill(connection, *names, shape) for _ in range(2))
    late, task = (copier(dsn, "staged", "staged_parts", staging.nonce, shape) for staging in (earlier, present))
    with pytest.raises(ChangelogError, match="copying rows to PostgreSQL: "):
        list(late([]))
    assert [batch.to_pylist() for batch in task([])] == [[{"rows": 0, "out_of_range": 0, "unavailable": 0}]]


# The job


def test_delta_lake_and_sqlite_follow_a_file_log(
    config: Path, run: Run, spark: SparkSession, workload: list[list[Record]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The module `sqlite_target` and its entry point are copied from the documentation."""
    fetched("jars")
    package = config.parent / "package"
    page = PAGE.read_text("utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    (name, value) = re.findall(rf'"{re.escape(GROUP)}"\]\n(\w+) = "(.*)"', page)[0]
    (package / "shop-1.dist-info").mkdir(parents=True)
    (package / "shop-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: shop\nVersion: 1\n", "utf-8")
    (package / "shop-1.dist-info" / "entry_points.txt").write_text(f"[{GROUP}]\n{name} = {value}\n", "utf-8")
    (package / "sqlite_target.py").write_text(code, "utf-8")
    monkeypatch.syspath_prepend(package)
    delta, sqlite = config.parent / "delta", config.parent / "orders.db"
    for grown in (False, True):
        if grown:
            grow(config.parent, workload[TRANSACTIONS // 2 :])
        for output, path in (("delta", delta), ("sqlite", sqlite)):
            run(JOB, config, "--view", "orders", "--available-now", "--output", output, "--to", str(path))
    expected = replay(flat(workload), position_of(workload[-1][-1]))
    assert states_of(spark.read.format("delta").load(str(delta))) == expected
    with sqlite3.connect(sqlite) as connection:
        rows = connection.execute("SELECT key, row FROM states WHERE row IS NOT NULL").fetchall()
    connection.close()
    shown = {key: json.loads(row) for key, row in rows}
    assert {key: row | {"doc": json.loads(row["doc"] or "null")} for key, row in shown.items()} == {
        key: dict.fromkeys(NAMES) | state for key, state in expected.items()
    }
    again = ("--view", "statuses", "--output", "delta", "--to", str(delta))
    assert (
        "is a view whose definition differs in: columns; use another --to, or run the job once"
        in run(JOB, config, *again, code=2).lines[0]
    )
    rebuild = ("--entity", "order", "--output", "delta", "--to", str(delta))
    assert "are not a view that this job wrote" in run(rebuild_view.JOB, config, *rebuild, code=2).lines[0]


def test_altered_columns_stop_the_job(config: Path, run: Run, dsn: str, spark: SparkSession, tmp_path: Path) -> None:
    run(JOB, config, *POSTGRES)
    before = query(dsn, "SELECT * FROM orders ORDER BY _key")
    later = record(Op.CREATE, '{"id":7,"status":"NEW","extra":1}', key="7", commit=TRANSACTIONS + 1)
    shape = Struct(fields=(*SHAPE.fields, ("extra", Primitive.LONG)))
    grow(config.parent, [[announced(later, shape), later]])
    (line,) = run(JOB, config, *POSTGRES, code=2).lines
    assert (
        "orders is a view whose definition differs in: columns; use another --to, or run the job once with --rebuild"
        in line
    )
    assert query(dsn, "SELECT * FROM orders ORDER BY _key") == before
    run(JOB, config, *POSTGRES, "--rebuild")
    assert query(dsn, "SELECT extra FROM orders WHERE id = 7") == [(1,)]
    with in_postgres.opened(TargetSettings(to="others", dsn=dsn)) as target:
        view = maintained(target)
        columns = [*COLUMNS, Column(name="extra", type=Primitive.LONG, nullable=True)]
        view.read_parts = lambda: [ViewPart(entity="order", columns=columns)]
        rows = frame(spark, tmp_path, [announced(later, shape), later])
        with pytest.raises(
            ChangelogError, match=r"the columns of the entity order have changed \(extra\); run the job once"
        ):
            view.apply(rows, {})
    assert query(dsn, "SELECT * FROM others") == []


def test_lost_history_stops_the_job(config: Path, run: Run, dsn: str, spark: SparkSession) -> None:
    """The job needs changes that were dropped from the archive. At first, the archive still has some days. Then it has
    none, and the history begins with the oldest file of the log.
    """
    run(JOB, config, *POSTGRES)
    for days in (2, 4, 6, 7):
        grow(config.parent, [[record(Op.CREATE, '{"id":1,"doc":{}}', key="1", commit=days * 86_400)]])
    archive = ArchiveRun(spark=spark, store=local(config.parent / "log"), at=BEGIN + timedelta(days=7))
    archive_log(archive, config.parent / "log")
    for keep_days in (5, 2):
        assert drop_days(archive, keep_days=keep_days)
        (line,) = run(JOB, config, *POSTGRES, code=3).lines
        expected = "history may be lost: the view goes up to .* begins at .*; run the job once with --rebuild"
        assert re.search(expected, line), line
    ranges = FileRanges(where=Files(path=config.parent / "log"), entities=["order"])
    with pytest.raises(ChangelogError, match="history may be lost: the view goes up to"):
        ranges.read(spark, {"position": str(Position(1, 1, 0))}, {"position": str(Position(1, 2, 0))})


@pytest.mark.parametrize(
    ("statement", "arguments", "code", "message"),
    [
        ("", ("--view", "nowhere"), 2, r"has no view nowhere; add \[views.nowhere\]"),
        ("", ("--view", "misspelt"), 2, "the entity order has no column statsu; it has: id, status"),
        ("", ("--view", "unknown"), 2, "has no entity room; it has: "),
        ("", ("--view", "chosen"), 2, "the view chosen has a `where`; use a view without it"),
        ("", ("--view", "documents", "--output", "delta"), 2, "--output delta keeps no nested arrays; use --output po"),
        (
            "",
            ("--view", "sums_of_text"),
            2,
            r"\[views.sums_of_text\] totals.sums: column note is neither an integer nor a",
        ),
        ("", ("--view", "totals", "--output", "delta"), 2, "--output delta keeps no totals; use --output postgres"),
        ("", ("--output", "mongo"), 2, "there is no target mongo; --output is one of: delta, postgres"),
        ("", ("--output", "delta"), 2, "--output delta needs no --dsn"),
        ("", ("--dsn", "env:UNREACHABLE"), 3, "cannot connect to PostgreSQL"),
        ("", ("--dsn", "postgresql://me:secret@nowhere/app"), 2, "a secret must be given by reference; write env:NAME"),
        ("", ("--to", "a.b.c"), 2, "'a.b.c' is not a table name"),
        ("", ("--keep-service", "a", "--drop-service", "a"), 2, "both kept and dropped"),
        ("CREATE TABLE orders (id int)", (), 2, "orders is a table that this job did not make"),
        ("CREATE VIEW orders AS SELECT 1", (), 2, r"public\.orders is a view"),
        ("CREATE TABLE orders__batch (id int)", (), 2, "orders__batch is a table that this job did not make"),
        ("CREATE TABLE orders__totals (id int)", (), 2, "orders__totals is a table that this job did not make"),
    ],
)
def test_a_refused_run_changes_nothing(
    config: Path,
    run: Run,
    dsn: str,
    monkeypatch: pytest.MonkeyPatch,
    statement: str,
    arguments: tuple[str, ...],
    code: int,
    message: str,
) -> None:
    monkeypatch.setenv("UNREACHABLE", "postgresql://nobody:secret@127.0.0.1:1/app")
    query(dsn, statement)
    before = query(dsn, "SELECT oid, relname FROM pg_class ORDER BY oid")
    (line,) = run(JOB, config, *POSTGRES, *arguments, code=code).lines
    assert re.search(message, line), line
    assert "secret" not in line.replace("a secret must", "")
    assert query(dsn, "SELECT oid, relname FROM pg_class ORDER BY oid") == before


def test_a_table_that_does_not_fit_the_view_is_refused(config: Path, run: Run, dsn: str) -> None:
    run(JOB, config, *POSTGRES)
    for arguments, message in (
        (("--view", "statuses"), "orders is a view whose definition differs in: columns; use another --to"),
        (("--drop-service", "admin"), "orders is a view whose definition differs in: choice; use another --to"),
    ):
        (line,) = run(JOB, config, *POSTGRES, *arguments, code=2).lines
        assert message in line
    rebuild = ("--entity", "order", *POSTGRES[3:])
    assert "a table that this job did not make" in run(rebuild_view.JOB, config, *rebuild, code=2).lines[0]
    query(dsn, "DROP TABLE orders__deleted")
    assert '"orders__deleted" of the view is missing; run the job once' in run(JOB, config, *POSTGRES, code=3).lines[0]
    with_totals = (*POSTGRES, "--view", "totals")
    assert run(JOB, config, *with_totals, "--rebuild").summary["rows"] > 0
    check_totals(dsn, TotalsConfig(by=("status",), sums=("id",)))
    assert (
        "orders is a view whose definition differs in: totals; use another --to"
        in run(JOB, config, *POSTGRES, code=2).lines[0]
    )
    query(dsn, "ALTER TABLE orders DROP COLUMN note")
    grow(config.parent, [[record(Op.CREATE, '{"id":1,"doc":{}}', key="1", commit=TRANSACTIONS + 1)]])
    assert "the table was altered: run the job once with --rebuild" in run(JOB, config, *with_totals, code=3).lines[0]
    query(dsn, "DROP TABLE orders__totals")
    assert '"orders__totals" of the view is missing; run the job' in run(JOB, config, *with_totals, code=3).lines[0]


def test_a_dry_run_names_the_table(config: Path, run: Run, dsn: str) -> None:
    planned = run(JOB, config, *POSTGRES, "--dry-run").summary
    assert (planned["writes"], planned["output"], planned["entities"]) == ("orders", "postgres", ["order"])
    assert query(dsn, "SELECT to_regclass('orders')::text") == [(None,)]
