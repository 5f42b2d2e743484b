"""Tests the tables that `ChangelogReader.table` returns. A table must have the rows that a replay of the entity's
changes gives, and its values must have the types of its columns.
"""

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal as Number
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import changelog
from changelog.envelope.columnar.batch import from_records
from changelog.envelope.model import Op, Record, position_of
from changelog.envelope.position import Position
from changelog.envelope.states import newest_changes
from changelog.envelope.states.fold import ABOUT
from changelog.schemas.types import Array, ColumnType, Decimal, Map, Primitive, Struct
from tests.unit.api.shop import ORDER, State, created, replay, shop, version_of, workload
from tests.unit.records import BEGIN, record

P = Primitive
COMMITS = workload(7, 150)
RECORDS = [change for commit in COMMITS for change in commit]
END = position_of(RECORDS[-1])


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> changelog.ChangelogReader:
    few = [[change for commit in COMMITS[begin : begin + 50] for change in commit] for begin in range(0, 150, 50)]
    return shop(tmp_path_factory.mktemp("shop"), few, order=ORDER, guest=ORDER)


def states(table: pa.Table) -> dict[str, State]:
    """Returns the rows of a table as `replay` returns them: the state of each row, by its key."""
    rows = {}
    for row in table.to_pylist():
        state = {name: row[name] for name in ORDER if name not in row["_unavailable"]}
        if "doc" in state:
            state["doc"] = json.loads(state["doc"])
        state["amount"] = str(state["amount"])
        assert row["_key"] not in rows
        rows[row["_key"]] = state
    return rows


def moments() -> list[Position]:
    """Returns positions of changes, positions between two changes, and the last position."""
    chance = random.Random(11)
    some = [position_of(change) for change in chance.choices(RECORDS[20:], k=6)]
    return [*some[:3], *(Position(at.epoch, at.commit, at.ordinal + 1) for at in some[3:]), END]


@pytest.mark.parametrize("position", moments())
@pytest.mark.parametrize("entity", ["order", "guest"])
def test_a_table_as_of_a_position_equals_a_replay(
    log: changelog.ChangelogReader, entity: str, position: Position, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(newest_changes, "ROWS_MIN", 5)  # so that `NewestChanges` removes outdated changes often
    table = log.table(entity, as_of=min(position, END))
    assert states(table) == replay(COMMITS, entity, position)
    assert table.schema.metadata == {b"changelog.position": str(min(position, END)).encode()}


@settings(max_examples=15)
@given(seed=st.integers(0, 1 << 30), rows=st.integers(1, 40), minimum=st.integers(1, 60))
def test_repeated_and_reordered_changes_make_no_difference(seed: int, rows: int, minimum: int) -> None:
    changes = [change for commit in workload(seed, 25) for change in commit if change.entity == "order"]
    chance = random.Random(seed)
    repeated = [*changes, *chance.sample(changes, len(changes) // 3)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(newest_changes, "ROWS_MIN", minimum)
        assert newest_positions(chance.sample(repeated, len(repeated)), rows) == newest_positions(changes, 1000)


def newest_positions(changes: Sequence[Record], rows: int) -> dict[str, list[str]]:
    """Adds the changes to `NewestChanges`, in batches of `rows` changes. Returns the positions of the changes that it
    keeps, by key.
    """
    newest = newest_changes.NewestChanges()
    for begin in range(0, len(changes), rows):
        newest.add(from_records(changes[begin : begin + rows]))
    positions: dict[str, list[str]] = {}
    for batch in newest.changes():
        for key, position in zip(batch.column("key").to_pylist(), batch.column("position").to_pylist(), strict=True):
            positions.setdefault(key, []).append(position)
    assert all(places == sorted(places, reverse=True) for places in positions.values())
    return {key: sorted(set(places)) for key, places in positions.items()}


def test_by_default_a_table_is_as_of_the_last_position(log: changelog.ChangelogReader) -> None:
    assert log.position() == END
    assert log.table("order").sort_by("_key").equals(log.table("order", as_of=END).sort_by("_key"))


def test_a_time_selects_all_transactions_that_committed_by_then(log: changelog.ChangelogReader) -> None:
    at = BEGIN + timedelta(seconds=70.5)  # each transaction commits a second after the one before it
    expected = replay(COMMITS, "order", Position(1, 70, 99))
    assert states(log.table("order", as_of=at)) == expected
    assert states(log.table("order", as_of=at.isoformat())) == expected
    assert states(log.table("order", as_of=datetime(2100, 1, 1, tzinfo=UTC))) == replay(COMMITS, "order", END)


def test_a_clock_may_step_back(tmp_path: Path) -> None:
    """Then a later transaction may have an earlier time. A table ends before the first transaction after `as_of`."""
    changes = [
        committed(created("item", f'{{"id":{number}}}', key=str(number), commit=number), second)
        for number, second in enumerate((10, 30, 20, 40), 1)
    ]
    log = shop(tmp_path, [changes], item={"id": P.INT})
    numbers = {
        second: sorted(log.table("item", as_of=BEGIN + timedelta(seconds=second))["id"].to_pylist())
        for second in (10, 25, 30, 50)
    }
    assert numbers == {10: [1], 25: [1], 30: [1, 2, 3], 50: [1, 2, 3, 4]}


def committed(change: Record, second: int) -> Record:
    provenance = change.envelope.provenance
    source = replace(provenance.source, committed_at=BEGIN + timedelta(seconds=second))
    return replace(change, envelope=replace(change.envelope, provenance=replace(provenance, source=source)))


def test_provenance_can_be_left_out(log: changelog.ChangelogReader) -> None:
    assert log.table("order", provenance=False).schema.names == [*ORDER]
    assert log.table("order").schema.names == [*ORDER, *ABOUT.names]


TYPED: list[tuple[ColumnType, str, pa.DataType, Any]] = [
    (P.BOOLEAN, "true", pa.bool_(), True),
    (P.INT, "-2147483648", pa.int32(), -(2**31)),
    (P.LONG, "9223372036854775807", pa.int64(), 2**63 - 1),
    (P.FLOAT, "1.5", pa.float32(), 1.5),
    (P.DOUBLE, "-0", pa.float64(), -0.0),
    (P.STRING, '"a\\n\\u00e9"', pa.utf8(), "a\né"),
    (P.BYTES, '"AP8Q"', pa.binary(), b"\x00\xff\x10"),
    (P.UUID, '"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"', pa.utf8(), "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    (P.DATE, '"2026-11-21"', pa.date32(), date(2026, 11, 21)),
    (P.DATE, '"infinity"', pa.date32(), None),
    (P.TIME, '"24:00:00"', pa.utf8(), "24:00:00"),
    (P.TIMESTAMP, '"2026-11-21T03:10:02.500000"', pa.timestamp("us"), datetime(2026, 11, 21, 3, 10, 2, 500000)),  # noqa: DTZ001
    (
        P.TIMESTAMP_TZ,
        '"2026-11-21T03:10:02.500000Z"',
        pa.timestamp("us", tz="UTC"),
        datetime(2026, 11, 21, 3, 10, 2, 500000, tzinfo=UTC),
    ),
    (P.JSON, '{"b": 1e+20}', pa.utf8(), '{"b": 1e+20}'),
    (Decimal(precision=12, scale=2), '"13.50"', pa.decimal128(12, 2), Number("13.50")),
    (Decimal(precision=12, scale=2), '"NaN"', pa.decimal128(12, 2), None),
    (Decimal(precision=40, scale=0), f'"{"9" * 40}"', pa.utf8(), "9" * 40),
    (Array(element=P.INT), "[1,null,3]", pa.list_(pa.field("element", pa.int32())), [1, None, 3]),
    (Map(value=P.STRING), '{"a":"1","b":null}', pa.map_(pa.utf8(), pa.utf8()), [("a", "1"), ("b", None)]),
    (Struct(fields=(("n", P.INT), ("at", P.DATE))), '{"n":1,"at":null}', None, {"n": 1, "at": None}),
]


def test_values_have_their_types(tmp_path: Path) -> None:
    columns = {f"c{number}": type_ for number, (type_, *_) in enumerate(TYPED)}
    state = ",".join(f'"c{number}":{token}' for number, (_, token, *_) in enumerate(TYPED))
    table = shop(tmp_path, [[created("thing", f"{{{state}}}")]], thing=columns).table("thing")
    (row,) = table.to_pylist()
    for name, (_, token, arrow, value) in zip(columns, TYPED, strict=True):
        assert arrow is None or table.schema.field(name).type == arrow
        assert (row[name], type(row[name])) == (value, type(value)), token
    assert row["_out_of_range"] == ["c15", "c9"]


def test_names_of_columns_may_be_anything(tmp_path: Path) -> None:
    names = ["_key", "ID", "id", 'a"b', "a\\b", "", " ", "größe", "\x00", "c.d"]
    state = json.dumps({name: index for index, name in enumerate(names)})
    log = shop(tmp_path, [[created("odd", state)]], odd=dict.fromkeys(names, P.INT))
    assert log.table("odd", provenance=False).to_pylist() == [{name: index for index, name in enumerate(names)}]
    with pytest.raises(changelog.ChangelogError, match=r"odd has a column _key, .*; leave .* provenance=False"):
        log.table("odd")


def test_a_table_may_have_a_thousand_columns(tmp_path: Path) -> None:
    names = [f"c{number}" for number in range(1000)]
    state = json.dumps(dict.fromkeys(names, 7))
    log = shop(tmp_path, [[created("wide", state)]], wide=dict.fromkeys(names, P.LONG))
    assert log.table("wide", provenance=False).to_pylist() == [dict.fromkeys(names, 7)]


def test_a_table_has_the_columns_that_its_entity_had_at_the_moment(tmp_path: Path) -> None:
    first, second = created("item", '{"id":1}', key="1"), created("item", '{"id":2,"name":"b"}', key="2", commit=5)
    versions = [
        version_of("item", {"id": P.INT}, first),
        version_of("item", {"id": P.LONG, "name": P.STRING}, second),
    ]
    log = shop(tmp_path, [[versions[0], first], [versions[1], second]])
    old, new = log.table("item", as_of=position_of(first)), log.table("item", provenance=False)
    assert (old.schema.names[:2], old.column("id").to_pylist()) == (["id", "_key"], [1])
    assert new.schema.field("id").type == pa.int64()
    assert new.sort_by("id").to_pylist() == [{"id": 1, "name": None}, {"id": 2, "name": "b"}]


def test_unknown_values_are_null_and_listed_as_unavailable(tmp_path: Path) -> None:
    update = record(Op.UPDATE, '{"id":1}', entity="thing", key="1", unavailable=("long",))
    log = shop(tmp_path, [[update]], thing={"id": P.INT, "long": P.STRING})
    (row,) = log.table("thing").to_pylist()
    assert (row["id"], row["long"], row["_unavailable"]) == (1, None, ["long"])


def test_moments_outside_the_changelog_are_refused(log: changelog.ChangelogReader) -> None:
    with pytest.raises(changelog.ChangelogError, match="is before the first transaction of the changelog in"):
        log.table("order", as_of=BEGIN)
    with pytest.raises(changelog.ChangelogError, match=r"is past the end: the changelog in .* ends at"):
        log.table("order", as_of=Position(2, 0, 0))
    with pytest.raises(
        changelog.ChangelogError, match="the entity order has no columns at 00000001/0000000000000000/00000000"
    ):
        log.table("order", as_of=Position(1, 0, 0))
    too_early = datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14)))  # in UTC, it would be in the year 0
    for moment in (datetime(2026, 11, 21), "2026-11-21", "yesterday", 7, too_early, too_early.isoformat()):  # noqa: DTZ001
        with pytest.raises(changelog.ChangelogError, match=r"as_of=.* is neither a position nor a time with a zone"):
            log.table("order", as_of=moment)  # type: ignore[arg-type]


def test_unknown_entities_are_refused(log: changelog.ChangelogReader) -> None:
    with pytest.raises(changelog.ChangelogError, match=r"has no entity orders; it has: guest, order"):
        log.table("orders")


def test_an_entity_without_changes_has_no_columns_yet(tmp_path: Path) -> None:
    log = shop(tmp_path, [[created("order", '{"id":1}')]], order={"id": P.INT}, guest={"id": P.INT})
    assert log.entities() == ["guest", "order"]
    with pytest.raises(
        changelog.ChangelogError, match="has no change of the entity guest yet, so its columns are unknown"
    ):
        log.table("guest")
