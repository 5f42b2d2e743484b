"""Tests that the job `maintain_view` keeps correct documents of several entities. They must equal the documents that
`rebuild_view` makes, and those that SQL and plain Python make of the same rows.
"""

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from changelog.connectors.config import ViewConfig
from changelog.connectors.servers.kafka import Broker
from changelog.connectors.sinks.kafka.admin.topics import TopicSettings
from changelog.envelope.entity import TRUNCATE_KEY
from changelog.envelope.errors import ChangelogError
from changelog.envelope.model import Op, Record
from changelog.schemas.avro import Column
from changelog.schemas.types import Array, ColumnType, Decimal, Primitive
from changelog.spark_jobs import rebuild_view
from changelog.spark_jobs.maintain_view import JOB
from changelog.spark_jobs.maintaining import in_postgres
from changelog.spark_jobs.maintaining.derived.documents import refuse_names
from changelog.spark_jobs.maintaining.parts import parts_of
from changelog.spark_jobs.maintaining.target import FAIL_POINTS, TargetSettings, ViewTarget
from changelog.spark_jobs.views.to_postgres import ClaimedName
from tests.patience import until
from tests.spark.documented import (
    ENTITIES,
    JOINED,
    VIEW,
    WITH_SESSIONS,
    Guests,
    announcements,
    documents,
    expected_documents,
    guest_parts,
    toml,
)
from tests.spark.maintained import CrashError, maintained_parts, query, scattered
from tests.spark.ran import Run
from tests.spark.test_derive_deltas_kafka import settings_of
from tests.spark.test_maintain_view_kafka import ViewedTopics
from tests.spark.test_rebuild_view import announced, grow
from tests.spark.test_view_outputs import FULL, SHAPE
from tests.spark.test_views import frame
from tests.unit.records import record

CONFIG = """
name = "booking"
source = {{ kind = "postgres", dsn = "postgresql://nowhere" }}
tables = {{ include = ["*"] }}
sink = {{ path = "log" }}
[views]
guests = {view}
ids = {{ entity = "guest", columns = ["id"] }}
filtered = {{ entity = "guest", nested.sessions = {{ entity = "session", on = {{ id = "id" }}, where = "id < 6" }} }}
same = {{ entity = "order", nested.rows = {{ entity = "order", on = {{ id = "id" }} }} }}
"""


@pytest.fixture
def dsn(database: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("VIEWS_DSN", database)
    return database


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "changelog.toml"
    file.write_text(CONFIG.format(view=toml(VIEW)), "utf-8")
    return file


def output(view: str, to: str) -> list[str]:
    return ["--view", view, "--output", "postgres", "--dsn", "env:VIEWS_DSN", "--to", to]


MAINTAINED = [*output("guests", "guests"), "--available-now"]


# The same documents as those of rebuild_view


def test_documents_follow_a_file_log(config: Path, run: Run, dsn: str, seed: int) -> None:
    workload = Guests(random.Random(seed))
    transactions = [announcements(), *workload.transactions(60)]
    for _ in range(2):
        grow(config.parent, transactions, ENTITIES)
        run(JOB, config, *MAINTAINED)
        run(rebuild_view.JOB, config, *output("guests", "rebuilt"))
        assert documents(dsn) == expected_documents(workload.rows)
        assert _texts(dsn, "guests") == _texts(dsn, "rebuilt")
        transactions = list(workload.transactions(8))
    before = query(dsn, "SELECT xmin::text, * FROM guests ORDER BY _key")
    assert run(JOB, config, *MAINTAINED).summary["batches"] == 0
    assert query(dsn, "SELECT xmin::text, * FROM guests ORDER BY _key") == before
    _refuse_another_view(config, run, dsn)


def _texts(dsn: str, table: str) -> list[tuple[Any, ...]]:
    """Returns the rows of a view, with arrays as text and the position of each row's last change."""
    columns = 'id, status, sessions::text, orders::text, "Same status"::text'
    return query(dsn, f"SELECT _key, _position, {columns} FROM {table} ORDER BY _key")


def _refuse_another_view(config: Path, run: Run, dsn: str) -> None:
    """Checks that documents of another shape are refused, and that a rebuild drops the tables of the earlier arrays."""
    config.write_text(CONFIG.format(view=toml(WITH_SESSIONS)), "utf-8")
    assert (
        "guests is a view whose definition differs in: nested; use another --to"
        in run(JOB, config, *MAINTAINED, code=2).lines[0]
    )
    run(JOB, config, *MAINTAINED, "--rebuild")
    tables = query(dsn, "SELECT relname FROM pg_class WHERE relname LIKE 'guests%' AND relkind = 'r' ORDER BY 1")
    suffixes = ("", "__deleted", "__progress", "__sessions", "__sessions__deleted")
    assert [name for (name,) in tables] == [f"guests{suffix}" for suffix in suffixes]
    flat = [*output("ids", "guests__sessions"), "--available-now"]
    assert "guests__sessions is a table that this job did not make" in run(JOB, config, *flat, code=2).lines[0]
    query(dsn, "DROP TABLE guests__sessions__deleted")
    assert '"guests__sessions__deleted" of the view is missing' in run(JOB, config, *MAINTAINED, code=3).lines[0]


NUMBERS = (0.0, -0.0, 1.0, 0.1, 16777217.0, 1e15, 123456789012345678.0, 1e16, 1e-7, 1.5e300, 3.4e38, 5e-324)


def test_maintained_documents_have_the_values_of_rebuilt_documents(config: Path, run: Run, dsn: str) -> None:
    rows: list[Mapping[str, Any]] = [FULL, {"id": 2, "doc": None}]
    rows += [{"id": 3 + n, "single": number, "double": number} for n, number in enumerate(NUMBERS)]
    rows += [
        {"id": 50, "double": "NaN", "single": "-Infinity", "time": "03:10:02.50", "huge": "NaN", "blob": ""},
        {"id": 51, "at": "0001-01-01T00:00:00.000000", "at zone": "2026-11-21T03:10:02.000000Z", "doc": "text"},
        {"id": 52, "blob": "QUJD" * 100, "amount": "0.00", "doc": {"n": 1.0, "nested": [{}]}, "flag": False},
    ]
    records = [
        record(Op.CREATE, json.dumps(row), key=str(row["id"]), commit=1, ordinal=2 * n) for n, row in enumerate(rows)
    ]
    grow(config.parent, [[announced(record(Op.CREATE, "{}", commit=0), SHAPE)], records])
    run(JOB, config, *output("same", "maintained"), "--available-now")
    run(rebuild_view.JOB, config, *output("same", "rebuilt"))
    texts = [query(dsn, f"SELECT id, rows::text FROM {table} ORDER BY id") for table in ("maintained", "rebuilt")]
    assert texts[0] == texts[1]
    assert len(texts[0]) == len(rows)


# Order, repetition and crashes


CLAIMS = """SELECT count(*) FROM pg_locks JOIN pg_database d ON d.oid = database
    WHERE locktype = 'advisory' AND datname = current_database()"""


@contextmanager
def _opened(settings: TargetSettings) -> Iterator[ViewTarget]:
    """Opens the target, as soon as the server has noticed that the last run's session has ended."""
    assert settings.dsn is not None
    dsn = settings.dsn
    until(lambda: query(dsn, CLAIMS) == [(0,)], "the server keeps the claim of a session that has ended")
    with in_postgres.opened(settings) as target:
        yield target


def test_late_and_repeated_batches_and_crashes_do_no_harm(
    spark: SparkSession, dsn: str, tmp_path: Path, seed: int
) -> None:
    """Each batch has a run of its own, which continues the view from the progress that the target has stored. A run
    crashes just before the first batch is applied, and another one just after the second batch is applied. After each
    crash, the next run repeats the batch.
    """
    chance, workload = random.Random(seed), Guests(random.Random(seed + 1))
    records = [change for transaction in workload.transactions(60) for change in transaction]
    batches = scattered(records, chance, shares=(0.7, 1), entities=ENTITIES)
    crashes = {0: FAIL_POINTS[0], 1: FAIL_POINTS[1]}

    def reach(point: str) -> None:
        if crashes.get(number) == point:
            del crashes[number]
            raise CrashError

    parts = guest_parts()
    settings = TargetSettings(to="guests", dsn=dsn, arrays=parts[1:], reach=reach)
    for number, batch in enumerate(batches):
        (tmp_path / str(number)).mkdir()
        rows = frame(spark, tmp_path / str(number), batch)
        for _ in range(2 if number in crashes else 1):
            with _opened(settings) as target:
                view = maintained_parts(target, parts, reach=reach)
                try:
                    view.apply(rows, {})
                except CrashError:
                    continue
        assert documents(dsn) == query(dsn, JOINED)
    assert documents(dsn) == expected_documents(workload.rows)


def test_another_run_ignores_changes_before_a_truncate(spark: SparkSession, dsn: str, tmp_path: Path) -> None:
    guests = [_change("guest", Op.CREATE, key, key, status="NEW") for key in (1, 2)]
    sessions = [_change("session", Op.CREATE, key, key, guest_id=1) for key in (1, 2, 5)]
    truncates = [record(Op.TRUNCATE, entity=entity, key=TRUNCATE_KEY, commit=4) for entity in ("guest", "session")]
    guest = _change("guest", Op.CREATE, 1, 5, status="PAID")
    parts = guest_parts(WITH_SESSIONS)
    settings = TargetSettings(to="guests", dsn=dsn, arrays=parts[1:])
    for number, batch in enumerate(([*guests, *truncates, guest], [*guests, *sessions])):
        (tmp_path / str(number)).mkdir()
        with _opened(settings) as target:
            maintained_parts(target, parts).apply(frame(spark, tmp_path / str(number), batch), {})
    rows = query(dsn, "SELECT id, status, sessions FROM guests")
    assert [(id_, status, [session["id"] for session in array]) for id_, status, array in rows] == [(1, "PAID", [5])]


def _change(entity: str, op: Op, key: int, commit: int, unavailable: Sequence[str] = (), **values: Any) -> Record:
    state = None if op is Op.DELETE else json.dumps({"id": key, **values})
    return record(op, state, entity=entity, key=str(key), commit=commit, unavailable=tuple(unavailable))


def test_a_row_belongs_to_the_rows_that_its_values_name(spark: SparkSession, dsn: str, tmp_path: Path) -> None:
    """Each step has a batch of changes, and the ids of the sessions that each guest must have after it."""
    created = [_change("guest", Op.CREATE, 1, 2), _change("guest", Op.CREATE, 2, 2)]
    moved = [_change("session", Op.UPDATE, 5, 4, guest_id=2), _change("session", Op.UPDATE, 6, 4, guest_id=None)]
    steps: list[tuple[list[Record], dict[int, list[int]]]] = [
        ([_change("session", Op.CREATE, 5, 1, guest_id=1), _change("session", Op.READ, 6, 1, guest_id=1)], {}),
        (created, {1: [5, 6], 2: []}),
        ([_change("session", Op.UPDATE, 5, 3, ["guest_id"], note="x")], {1: [5, 6], 2: []}),
        (moved, {1: [], 2: [5]}),
        ([_change("session", Op.UPDATE, 5, 3, guest_id=1)], {1: [], 2: [5]}),
        ([_change("guest", Op.DELETE, 2, 5), _change("session", Op.DELETE, 6, 5)], {1: []}),
        ([_change("guest", Op.CREATE, 2, 6), _change("guest", Op.UPDATE, 1, 6, status="a")], {1: [], 2: [5]}),
        ([record(Op.TRUNCATE, entity="session", key=TRUNCATE_KEY, commit=8)], {1: [], 2: []}),
        ([_change("session", Op.CREATE, 5, 7, guest_id=1)], {1: [], 2: []}),
    ]
    parts = guest_parts(WITH_SESSIONS)
    with in_postgres.opened(TargetSettings(to="guests", dsn=dsn, arrays=parts[1:])) as target:
        view = maintained_parts(target, parts)
        for number, (batch, expected) in enumerate(steps):
            (tmp_path / str(number)).mkdir()
            view.apply(frame(spark, tmp_path / str(number), batch), {})
            rows = query(dsn, "SELECT id, sessions FROM guests ORDER BY id")
            sessions = {id_: [session["id"] for session in array] for id_, array in rows}
            assert sessions == expected, f"step {number}"


# Topics


def test_documents_follow_topics(
    spark: SparkSession, broker: Broker, tmp_path: Path, own_name: str, seed: int, dsn: str
) -> None:
    workload, settings = Guests(random.Random(seed)), settings_of(broker, own_name)
    lags = next(iter(settings.entities.values()))
    settings = replace(settings, entities=dict.fromkeys(ENTITIES, TopicSettings(settings=lags.settings)))
    topics = ViewedTopics(
        folder=tmp_path,
        settings=settings,
        workload=workload,
        records=[],
        dsn=dsn,
        view=f"guests = {toml(WITH_SESSIONS)}",
    )
    arguments = ("--view", "guests", "--to", "guests", "--available-now")
    for transactions, first in ((20, announcements()), (5, [])):
        topics.grow(transactions, first=first)
        assert topics.run(*arguments) == 0
        sessions = [(row[0], row[3]) for row in expected_documents(workload.rows)]
        assert query(dsn, 'SELECT _key, sessions FROM guests ORDER BY _key COLLATE "C"') == sessions


# The work of a batch


FILL = """
INSERT INTO guests (_key, _position, id, status) SELECT n, '', n, n % 1000 FROM generate_series(1, 20000) n;
INSERT INTO guests__sessions (_key, _position, id, guest_id)
    SELECT n, '', n, n % 10000 FROM generate_series(1, 20000) n;
INSERT INTO guests__orders (_key, _position, id, guest_id, status)
    SELECT n, '', n, n % 10000, 'NEW' FROM generate_series(1, 20000) n;
INSERT INTO guests__orders__items (_key, _position, note, order_id, status)
    SELECT n, '', n, n % 10000, 'NEW' FROM generate_series(1, 20000) n;
INSERT INTO "guests__Same status" (_key, _position, id, status)
    SELECT n, '', n, n % 1000 FROM generate_series(1, 20000) n;
"""

UPDATED = "SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = 'guests'"
READ = "SELECT coalesce(sum(seq_tup_read), 0)::int FROM pg_stat_user_tables WHERE relname LIKE 'guests%'"


def test_the_work_of_a_batch_does_not_depend_on_the_size_of_the_tables(
    spark: SparkSession, dsn: str, tmp_path: Path
) -> None:
    """The tables have no statistics, as if they had just been filled. Yet no statement may read all rows of a table."""
    parts = guest_parts()
    batch = [
        _change("session", Op.UPDATE, 5, 1, guest_id=7),
        _change("item", Op.UPDATE, 8, 1, order_id=9, status="NEW"),
        _change("guest", Op.UPDATE, 3, 1, status="4"),
    ]
    with in_postgres.opened(TargetSettings(to="guests", dsn=dsn, arrays=parts[1:])) as target:
        view = maintained_parts(target, parts)
        for (table,) in query(dsn, "SELECT quote_ident(tablename) FROM pg_tables WHERE tablename LIKE 'guests%'"):
            query(dsn, f"ALTER TABLE {table} SET (autovacuum_enabled = false)")
        query(dsn, FILL)
        view.apply(frame(spark, tmp_path, batch), {})
    sessions = query(dsn, "SELECT id, jsonb_array_length(sessions) FROM guests WHERE id IN (5, 7) ORDER BY id")
    assert sessions == [(5, 1), (7, 3)]
    assert query(dsn, "SELECT jsonb_array_length(\"Same status\") FROM guests WHERE status = '4'") == [(21,)] * 21
    until(lambda: query(dsn, UPDATED)[0][0] > 0, "the server counts no updates")
    assert query(dsn, READ)[0][0] < 1000


# What is refused


TYPES: dict[str, ColumnType] = {
    "id": Primitive.LONG,
    "number": Primitive.INT,
    "text": Primitive.STRING,
    "ratio": Primitive.DOUBLE,
    "time": Primitive.TIME,
    "digits": Decimal(precision=39, scale=0),
    "list": Array(element=Primitive.INT),
}


@pytest.mark.parametrize(
    ("view", "message"),
    [
        (
            {"on": {"ids": "id"}},
            r"\[views.v.nested.rows\] on: the entity session has no column ids; it has: id, number",
        ),
        ({"on": {"id": "ids"}}, r"\[views.v\] nested: the entity guest has no column ids; it has: id, number"),
        (
            {"on": {"id": "id"}, "columns": ["x"]},
            r"\[views.v.nested.rows\] columns: the entity session has no column x",
        ),
        ({"on": {"id": "text"}}, "on: session.id and guest.text have different types; name columns of the same type"),
        ({"on": {"ratio": "ratio"}}, "on: values of column ratio cannot be compared; use integers, decimal numbers"),
        ({"on": {"time": "time"}}, "on: values of column time cannot be compared"),
        ({"on": {"digits": "digits"}}, "on: values of column digits cannot be compared"),
        ({"on": {"list": "list"}}, "on: values of column list cannot be compared"),
        (
            {"on": {"id": "id"}, "nested": {"Text": {"entity": "guest", "on": {"id": "id"}}}},
            (
                r"\[views.v.nested.rows\] nested: another column or array of the entity session has the name Text; "
                "rename the array"
            ),
        ),
    ],
)
def test_documents_that_a_view_cannot_have_are_refused(view: Mapping[str, Any], message: str) -> None:
    columns = [Column(name=name, type=type_, nullable=True) for name, type_ in TYPES.items()]
    config = ViewConfig.model_validate({"entity": "guest", "nested": {"rows": {"entity": "session", **view}}})
    with pytest.raises(ChangelogError, match=message):
        parts_of("v", config, {"guest": columns, "session": columns})


def test_on_may_name_only_columns_that_the_view_has() -> None:
    columns = [Column(name=name, type=type_, nullable=True) for name, type_ in TYPES.items()]
    rows = {"entity": "session", "on": {"id": "id"}}
    config = ViewConfig.model_validate({"entity": "guest", "columns": ["text"], "nested": {"rows": rows}})
    with pytest.raises(ChangelogError, match=r"the view does not have the column id, .*; add id to its columns"):
        parts_of("v", config, {"guest": columns, "session": columns})


def test_a_condition_of_an_array_is_refused(config: Path, run: Run, dsn: str) -> None:
    arguments = [*output("filtered", "guests"), "--available-now"]
    assert "the view filtered has a `where`; use a view without it" in run(JOB, config, *arguments, code=2).lines[0]


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ([("deleted",)], "the array deleted needs the table guests__deleted, which the view already uses; rename"),
        ([("a__b",), ("a",), ("a", "b")], "the array a.b needs the table guests__a__b, which the view already uses"),
        (
            [("a" * 43,)],
            "needs the table guests__a*__batch_parts, whose name is longer than 63 bytes; use a",
        ),
    ],
)
def test_arrays_whose_tables_cannot_have_their_names_are_refused(
    paths: Sequence[tuple[str, ...]], message: str
) -> None:
    suffixes = ["", "__deleted", "__batch_parts"]
    with pytest.raises(ChangelogError, match=message):
        refuse_names(ClaimedName("public", "guests"), suffixes, paths, suffixes)
