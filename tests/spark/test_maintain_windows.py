"""Tests the totals of windows and of sessions. A window is a span of time with a fixed length. A session is a series of
rows without a long pause between two of them.

After each random batch, the totals must equal those that plain Python computes from the rows of the view. Rows come
late, move in time and between groups, and are deleted and truncated.
"""

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal as Number
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from changelog.connectors.config import SessionConfig, TotalsConfig, WindowConfig
from changelog.envelope.errors import ChangelogError
from changelog.schemas.avro import Column
from changelog.schemas.types import ColumnType, Decimal, Primitive
from changelog.spark_jobs.maintaining import in_postgres
from changelog.spark_jobs.maintaining.derived.totals_columns import refuse_columns
from changelog.spark_jobs.maintaining.in_postgres import PostgresTarget
from changelog.spark_jobs.maintaining.target import StateBatch, TargetSettings
from changelog.spark_jobs.views.transforms import schema_of
from tests.spark.maintained import query

TYPES: Mapping[str, ColumnType] = {
    "guest": Primitive.LONG,
    "low": Primitive.STRING,  # the SQL of sessions has a column of this name, too
    "time": Primitive.TIMESTAMP_TZ,
    "local": Primitive.TIMESTAMP,
    "amount": Decimal(precision=10, scale=2),
}
COLUMNS = [Column(name=name, type=type_, nullable=True) for name, type_ in TYPES.items()]

HOUR, DAY = 3600, 86_400
BEGIN = datetime(1969, 12, 30, 22, 30, tzinfo=UTC)  # windows of times before 1970 are counted from 1970, too

TUMBLING = TotalsConfig(by=("guest",), sums=("amount",), window=WindowConfig(column="time", seconds=HOUR))
HOPPING = TotalsConfig(
    sums=("amount",), window=WindowConfig(column="local", seconds=5 * HOUR, every_seconds=2 * HOUR, keep_days=1)
)
SESSIONS = TotalsConfig(
    by=("guest", "low"), sums=("amount",), session=SessionConfig(column="time", gap_seconds=HOUR // 2)
)

Row = dict[str, Any]
Totals = list[tuple[Any, ...]]


def test_totals_of_windows_and_sessions_are_those_of_the_rows(spark: SparkSession, database: str, seed: int) -> None:
    rng = random.Random(seed)
    keys = [str(number) for number in range(40)]
    rows: dict[str, Row] = {}
    newest = BEGIN.replace(tzinfo=None)
    with ExitStack() as stack:
        targets = {
            name: stack.enter_context(_opened(database, name, totals))
            for name, totals in {"tumbling": TUMBLING, "hopping": HOPPING, "sessions": SESSIONS}.items()
        }
        for number in range(10):
            truncated = f"{number:04}" if number == 6 else None
            if truncated:
                rows.clear()
            states = [_state(rng, key, f"{number:04}.{key}") for key in rng.sample(keys, rng.choice([1, 5, 30]))]
            for state in states:
                rows[state["_key"]] = state
                if state["_op"] == "delete":
                    del rows[state["_key"]]
            for target in targets.values():
                _apply(spark, target, states, truncated)
            newest = max([newest, *(row["local"] for row in rows.values() if row["local"] is not None)])
            assert _stored(database, "tumbling", ["guest"]) == _windows(rows, TUMBLING)
            expected = [total for total in _windows(rows, HOPPING) if total[1] >= newest - timedelta(days=1)]
            assert _stored(database, "hopping", []) == expected
            assert _stored(database, "sessions", ["guest", "low"]) == _sessions(rows, SESSIONS)


def test_sessions_expire_and_late_rows_do_not_bring_them_back(spark: SparkSession, database: str) -> None:
    session = SessionConfig(column="time", gap_seconds=HOUR, keep_days=2)
    with _opened(database, "visits", TotalsConfig(by=("guest",), session=session)) as target:

        def apply(key: str, hours: int, *, op: str = "create") -> list[tuple[int, int, int]]:
            state = _about(key, f"{hours:04}.{op}", op) | {"guest": 1, "time": BEGIN + timedelta(hours=hours)}
            _apply(spark, target, [state], None)
            return [
                ((start - BEGIN) // timedelta(hours=1), (end - BEGIN) // timedelta(hours=1), count)
                for _, start, end, count in _stored(database, "visits", ["guest"])
            ]

        assert apply("a", 10) == [(10, 10, 1)]
        assert apply("b", 11) == [(10, 11, 2)]
        assert apply("c", 50) == [(10, 11, 2), (50, 50, 1)]
        assert apply("d", 60) == [(50, 50, 1), (60, 60, 1)]
        assert apply("e", 49) == [(49, 50, 2), (60, 60, 1)]
        assert apply("f", 9) == [(49, 50, 2), (60, 60, 1)]
        assert apply("d", 60, op="delete") == [(49, 50, 2)]
        assert apply("g", 11) == [(49, 50, 2)], "the newest time is remembered after its row is deleted"


@pytest.mark.parametrize(
    ("totals", "message"),
    [
        (TotalsConfig(window=WindowConfig(column="at", seconds=1)), "totals: the view has no column at; it has: guest"),
        (
            TotalsConfig(window=WindowConfig(column="low", seconds=1)),
            "totals.window: column low is not a date with a time; name a column of type timestamp",
        ),
        (
            TotalsConfig(by=("guest",), session=SessionConfig(column="guest", gap_seconds=1)),
            "totals.session: column guest is not a date with a time",
        ),
    ],
)
def test_times_that_a_view_cannot_have_are_refused(totals: TotalsConfig, message: str) -> None:
    with pytest.raises(ChangelogError, match=message):
        refuse_columns(totals, COLUMNS, "totals")


@contextmanager
def _opened(dsn: str, name: str, totals: TotalsConfig) -> Iterator[PostgresTarget]:
    """Opens an empty view."""
    with in_postgres.opened(TargetSettings(to=name, dsn=dsn, totals=totals)) as target:
        target.create(COLUMNS, "{}")
        yield target


def _apply(spark: SparkSession, target: PostgresTarget, states: Sequence[Row], truncated: str | None) -> None:
    schema = schema_of(COLUMNS)
    table = pa.Table.from_pylist([{**dict.fromkeys(schema.names), **state} for state in states], schema)
    frame = spark.createDataFrame(table).coalesce(1)
    target.apply(StateBatch(columns=COLUMNS, states=frame, has_deletes=True, truncated=truncated, progress="{}"))


def _about(key: str, position: str, op: str) -> Row:
    return {"_key": key, "_position": position, "_op": op, "_unavailable": [], "_out_of_range": [], "_begun": True}


def _state(rng: random.Random, key: str, position: str) -> Row:
    at = BEGIN + timedelta(minutes=rng.choice([0, 15, 30, 60, 61, 90, 600, 601, 1200]) + rng.randrange(0, 4000, 400))
    return _about(key, position, rng.choice(["create", "update", "read", "delete"])) | {
        "guest": rng.choice([1, 2, None]),
        "low": rng.choice(["a", "b", None]),
        "time": rng.choice([at, at, None]),
        "local": rng.choice([at.replace(tzinfo=None), None]),
        "amount": rng.choice([Number("1.25"), Number("-3.00"), None]),
    }


def _stored(dsn: str, name: str, by: Sequence[str]) -> Totals:
    """Returns the sorted totals of a table, with times in UTC."""
    names = "".join(f"{column}, " for column in by)
    sums = "" if name == "visits" else ", count_amount, sum_amount"
    totals = query(dsn, f"SELECT {names} _start, _end, _count{sums} FROM {name}__totals")
    return sorted((tuple(map(_in_utc, total)) for total in totals), key=str)


def _in_utc(value: Any) -> Any:
    return value.astimezone(UTC) if isinstance(value, datetime) and value.tzinfo else value


def _windows(rows: Mapping[str, Row], totals: TotalsConfig) -> Totals:
    """Computes the totals of windows from the rows of the view."""
    window = totals.window
    assert window is not None
    size, every = timedelta(seconds=window.seconds), timedelta(seconds=window.every_seconds or window.seconds)
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows.values():
        time = row[window.column]
        if time is None:
            continue
        epoch = datetime(1970, 1, 1, tzinfo=time.tzinfo)
        start = epoch + (time - epoch) // every * every
        while start + size > time:
            groups[(*(row[name] for name in totals.by), start, start + size)].append(row)
            start -= every
    return sorted(((*group, *_sums(members)) for group, members in groups.items()), key=str)


def _sessions(rows: Mapping[str, Row], totals: TotalsConfig) -> Totals:
    """Computes the totals of sessions from the rows of the view."""
    assert totals.session is not None
    gap = timedelta(seconds=totals.session.gap_seconds)
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows.values():
        group = tuple(row[name] for name in totals.by)
        if row["time"] is not None and None not in group:
            groups[group].append(row)
    sessions: Totals = []
    for group, members in groups.items():
        members.sort(key=lambda row: row["time"])
        begins = [i for i, row in enumerate(members) if i == 0 or row["time"] - members[i - 1]["time"] > gap]
        for first, end in zip(begins, [*begins[1:], len(members)], strict=True):
            session = members[first:end]
            sessions.append((*group, session[0]["time"], session[-1]["time"], *_sums(session)))
    return sorted(sessions, key=str)


def _sums(rows: Sequence[Row]) -> tuple[Any, ...]:
    amounts = [row["amount"] for row in rows if row["amount"] is not None]
    return len(rows), len(amounts), sum(amounts) if amounts else None
