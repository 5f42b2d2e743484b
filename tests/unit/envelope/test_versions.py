"""Tests which versions of an entity's columns are announced, and which stop the service until an operator accepts
them.
"""

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from changelog.connectors.capture.settings_guard import shapes_of
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.entity import SCHEMAS, Entity, Evolution
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import MISSING, Missing, Op, Provenance, Stamp
from changelog.envelope.position import Position
from changelog.envelope.versions import PUBLISHER, Announced, TableColumns, Version, Versions, settings_id
from changelog.schemas.compatibility import Mode
from changelog.schemas.types import ColumnType, Primitive, Struct
from tests.unit.records import checkpoint, record
from tests.unit.schemas.strategies import shapes

OLD = Struct(fields=(("id", Primitive.INT), ("amount", Primitive.INT)))
WIDER = Struct(fields=(*OLD.fields, ("note", Primitive.STRING)))
LONG = Struct(fields=(("id", Primitive.INT), ("amount", Primitive.LONG)))
TEXT = Struct(fields=(("id", Primitive.INT), ("amount", Primitive.STRING)))
OLDEST = Struct(fields=(*OLD.fields, ("at", Primitive.LONG)))
NEWER = Struct(fields=(*TEXT.fields, ("at", Primitive.LONG)))
NEWEST = Struct(fields=(*TEXT.fields, ("at", Primitive.STRING)))


def _entity(
    mode: Mode = Mode.FULL_TRANSITIVE, on_incompatible: Literal["stop", "publish"] = "stop", key: str = "id"
) -> Entity:
    return Entity(
        name="order",
        table=("public", "orders"),
        key=(key,),
        partition_by=(key,),
        partitions=1,
        masks={},
        default_stamp=Stamp(api_version="", service_name="", identifier=""),
        evolution=Evolution(mode=mode, on_incompatible=on_incompatible),
    )


def _first(commit: int = 1, ordinal: int = 2, op: Op = Op.UPDATE) -> Provenance:
    """Returns the provenance of the first row of a version."""
    return record(op, "{}", "{}", commit=commit, ordinal=ordinal, unavailable=("amount",)).envelope.provenance


def _nothing(entity: Entity, columns: Sequence[str]) -> Collection[str]:
    return ()


def _versions(known: Iterable[Version] = (), **accepted: Position) -> Versions:
    return Versions(known, accepted=accepted, filled=_nothing)


def _after(*shapes: Struct, **accepted: Position) -> Versions:
    """Returns the versions of a changelog whose entity had these sets of columns one after the other.

    All of them were published, even incompatible ones.
    """
    versions = _versions()
    known = [_announce(versions, columns, _entity(on_incompatible="publish")).version for columns in shapes]
    return _versions(known, **accepted)


def _announce(
    versions: Versions,
    columns: Struct,
    entity: Entity | None = None,
    *,
    relation: int | None = 7,
    first: Provenance | None = None,
) -> Announced:
    return versions.announce(
        entity or _entity(), TableColumns(columns=columns, relation=relation), first or _first(commit=1000)
    )


def _bytes(state: Raw | Missing | None) -> bytes:
    assert isinstance(state, Raw)
    return bytes(state)


def _state(announced: Announced) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(announced.version.state)
    return state


# Announcing versions


def test_the_first_version_is_created_and_each_next_one_updates_it() -> None:
    versions = _versions()
    first = _announce(versions, OLD)
    second = _announce(versions, WIDER)
    third = _announce(versions, OLD)
    assert [announced.version.number for announced in (first, second, third)] == [1, 2, 3]
    ops = [announced.record.envelope.provenance.source.op for announced in (first, second, third)]
    assert ops == [Op.CREATE, Op.UPDATE, Op.UPDATE]
    assert first.record.envelope.original is MISSING
    for before, after in ((first, second), (second, third)):
        assert _bytes(after.record.envelope.original) == _bytes(before.record.envelope.current) == before.version.state


@pytest.mark.parametrize("codec", ["json", "avro"])
def test_a_version_names_the_settings_as_a_checkpoint_stores_them(codec: str) -> None:
    entity = replace(_entity(), masks={"amount": "sha256", "a": "null"}, exclude_columns=("b",), where="id > 5")
    shapes = shapes_of([entity], codec=codec, hmac_key=b"secret")
    stored = Checkpoint.from_json(replace(checkpoint(1), settings=shapes).to_json())
    version = _announce(_versions(), OLD, entity).version
    assert settings_id(stored.settings["order"]) == version.settings
    moved = replace(entity, partition_by=("amount",))
    assert settings_id(moved.shape()) != version.settings


def test_a_version_has_the_position_of_its_first_row_but_not_its_stamp() -> None:
    announced = _announce(_versions(), OLD, first=_first(commit=5, ordinal=4))
    provenance = announced.record.envelope.provenance
    assert (announced.record.entity, announced.record.place.key, announced.record.place.partition) == (
        SCHEMAS,
        "order",
        0,
    )
    assert provenance.stamp == PUBLISHER
    assert provenance.source == replace(_first(commit=5, ordinal=4).source, op=Op.CREATE, unavailable=())


def test_an_announced_version_has_all_members() -> None:
    versions = Versions([], accepted={}, filled=lambda entity, columns: {"stock"} & {*columns})
    _announce(versions, OLD)
    entity = _entity(on_incompatible="publish")
    columns = Struct(fields=(("id", Primitive.LONG), ("sum", Primitive.INT), ("stock", Primitive.INT)))
    state = _state(_announce(versions, columns, entity))
    breaks = state.pop("breaks")
    assert state == {
        "entity": "order",
        "version": 2,
        "key": ["id"],
        "settings": state["settings"],
        "cluster": "",
        "columns": [["id", "long"], ["sum", "int"], ["stock", "int"]],
        "relation": 7,
        "changes": [
            {"kind": "retyped", "column": "id", "oldType": "int", "newType": "long"},
            {"kind": "replaced", "column": "sum", "before": "amount", "oldType": "int", "newType": "int"},
            {"kind": "added", "column": "stock", "newType": "int"},
        ],
        "mode": "FULL_TRANSITIVE",
        "restated": ["sum", "stock"],
    }
    assert breaks
    assert all(rule_break.keys() == {"rule", "path", "breaks", "against", "text"} for rule_break in breaks)
    assert {rule_break["against"] for rule_break in breaks} == {"version 1"}


def test_only_added_columns_are_looked_up() -> None:
    lookups: list[Sequence[str]] = []

    def filled(entity: Entity, columns: Sequence[str]) -> Collection[str]:
        lookups.append(columns)
        return columns

    versions = Versions([], accepted={}, filled=filled)
    for columns in (OLD, TEXT, OLD, WIDER):
        _announce(versions, columns, _entity(on_incompatible="publish"))
    assert lookups == [["note"]]


@settings(deadline=None)
@given(st.lists(shapes, min_size=1, max_size=3), st.sampled_from(Mode))
def test_an_announced_version_is_read_back(columns: Sequence[Struct], mode: Mode) -> None:
    entity = _entity(mode, "publish", key=columns[0].fields[0][0])
    versions, known = _versions(), []
    for number, shape in enumerate(columns, 1):
        announced = _announce(versions, shape, entity, relation=number)
        current = announced.record.envelope.current
        assert current is not None
        known.append(Version.parse(current))
        assert known[-1] == announced.version
        assert (known[-1].columns, known[-1].relation, known[-1].key) == (shape, number, entity.key)
        assert _versions(known).has(entity, TableColumns(columns=shape, relation=number))
    following = _versions(known).announce(entity, TableColumns(columns=OLD, relation=9), _first())
    assert following.version.number == len(columns) + 1
    assert _bytes(following.record.envelope.original) == known[-1].state


@pytest.mark.parametrize(
    "state",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"entity":"order","version":1,"key":[],"columns":[["id","whole"]],"relation":1,"restated":[],"breaks":[]}',
        b'{"entity":"order","version":1,"key":[],"columns":null,"relation":1,"restated":[],"breaks":[]}',
    ],
)
def test_an_invalid_version_is_malformed(state: bytes) -> None:
    with pytest.raises(ChangelogError, match="is not a version") as caught:
        Version.parse(state)
    assert caught.value.kind is Kind.MALFORMED


# Known versions


def test_a_version_is_known_by_its_columns_their_order_its_table_and_its_key() -> None:
    versions = _after(OLD)
    assert versions.has(_entity(), TableColumns(columns=OLD, relation=7))
    assert versions.has(_entity(), TableColumns(columns=OLD))  # without a relation, tables are not compared
    turned = Struct(fields=OLD.fields[::-1])
    assert not versions.has(_entity(), TableColumns(columns=turned, relation=7))
    assert not versions.has(_entity(), TableColumns(columns=OLD, relation=8))
    assert not versions.has(_entity(key="amount"), TableColumns(columns=OLD, relation=7))
    assert not versions.has(replace(_entity(), name="bill"), TableColumns(columns=OLD, relation=7))
    assert not _after(OLD, WIDER).has(_entity(), TableColumns(columns=OLD, relation=7))  # the last version counts


def test_a_table_that_replaces_another_restates_every_column() -> None:
    assert _announce(_after(OLD), OLD, relation=8).version.restated == ("id", "amount")
    assert _announce(_after(OLD), WIDER, relation=8).version.restated == ("id", "amount", "note")
    assert _announce(_after(OLD), WIDER, relation=7).version.restated == ()
    assert _announce(_after(OLD), WIDER, relation=None).version.restated == ()


# Stops


def _stop(versions: Versions, columns: Struct, mode: Mode = Mode.FULL_TRANSITIVE, **first: Any) -> ChangelogError:
    with pytest.raises(ChangelogError) as caught:
        _announce(versions, columns, _entity(mode), first=_first(**{"commit": 1000, **first}))
    return caught.value


def test_a_stop_names_the_position_the_problem_and_the_command() -> None:
    error = _stop(_after(OLD), TEXT, commit=9, ordinal=4)
    assert error.kind is Kind.STOP
    assert error.position == Position(1, 9, 4)
    assert "entity order" in error.message
    assert "FULL_TRANSITIVE" in error.message
    assert "amount" in error.message
    assert error.hint is not None
    assert f"changelog schemas accept order {Position(1, 9, 4)}" in error.hint
    assert "\n" not in str(error.message)


@pytest.mark.parametrize(
    ("mode", "before", "columns", "stops"),
    [
        (Mode.FULL_TRANSITIVE, [OLD], WIDER, False),
        (Mode.FULL_TRANSITIVE, [OLD], LONG, True),
        (Mode.FULL, [OLD], LONG, True),
        (Mode.BACKWARD, [OLD], LONG, False),
        (Mode.BACKWARD_TRANSITIVE, [OLD], LONG, False),
        (Mode.FORWARD, [OLD], LONG, True),
        (Mode.FORWARD, [LONG], OLD, False),
        (Mode.BACKWARD, [LONG], OLD, True),
        (Mode.NONE, [OLD], TEXT, False),
    ],
)
def test_the_mode_decides_when_to_stop(mode: Mode, before: Sequence[Struct], columns: Struct, *, stops: bool) -> None:
    versions = _after(*before)
    if stops:
        assert mode.value in _stop(versions, columns, mode).message
    else:
        assert _state(_announce(versions, columns, _entity(mode)))["breaks"] == []


def test_a_version_at_which_the_service_stops_is_not_announced() -> None:
    versions = _after(OLD)
    _stop(versions, TEXT)
    assert versions.has(_entity(), TableColumns(columns=OLD, relation=7))
    assert _announce(versions, WIDER).version.number == 2


def test_the_policy_publish_announces_an_incompatible_version_with_its_breaks() -> None:
    announced = _announce(_after(OLD), TEXT, _entity(on_incompatible="publish"))
    assert _state(announced)["breaks"]
    assert announced.version.restated == ("amount",)


def test_versions_before_an_incompatible_one_are_not_compared_any_more() -> None:
    versions = _after(OLD, TEXT)
    assert _announce(versions, Struct(fields=(*TEXT.fields, ("note", Primitive.STRING)))).version.number == 3


# Accepted versions


def test_an_accepted_change_is_announced_at_its_position() -> None:
    versions = _after(OLD, order=Position(1, 9, 4))
    announced = _announce(versions, TEXT, first=_first(commit=9, ordinal=4))
    assert _state(announced)["breaks"]


@pytest.mark.parametrize(
    ("accepted", "commit", "ordinal", "op"),
    [
        (Position(1, 9, 4), 9, 6, Op.UPDATE),  # a later change than the accepted one
        (Position(1, 9, 4), 10, 4, Op.UPDATE),
        (Position(1, 9, 4), 8, 4, Op.UPDATE),
        (Position(2, 9, 4), 9, 4, Op.UPDATE),  # the accepted change is in another epoch
        (Position(1, 9, 4), 9, 2, Op.READ),
    ],
)
def test_a_change_that_is_not_accepted_stops_the_service(accepted: Position, commit: int, ordinal: int, op: Op) -> None:
    versions = _after(OLD, order=accepted)
    assert _stop(versions, TEXT, commit=commit, ordinal=ordinal, op=op).position == Position(1, commit, ordinal)


def test_an_acceptance_holds_for_one_entity_only() -> None:
    _stop(_after(OLD, bill=Position(1, 9, 4)), TEXT, commit=9, ordinal=4)


def test_two_changes_of_one_transaction_are_announced_if_the_second_is_accepted() -> None:
    """At an earlier stop, an operator accepted the first change. Later, the operator accepted the second one.

    Only the last acceptance is stored, so it must also hold for earlier changes of its transaction.
    """
    versions = _after(OLDEST, order=Position(1, 9, 8))
    assert _announce(versions, NEWER, first=_first(commit=9, ordinal=4)).version.number == 2
    assert _announce(versions, NEWEST, first=_first(commit=9, ordinal=8)).version.number == 3


def test_a_table_that_is_read_again_after_the_accepted_position_may_announce_one_change() -> None:
    versions = _after(OLD, order=Position(1, 9, 4))
    assert _announce(versions, TEXT, first=_first(commit=12, op=Op.READ)).version.number == 2
    fields: tuple[tuple[str, ColumnType], ...] = (("id", Primitive.INT), ("amount", Primitive.BOOLEAN))
    _stop(versions, Struct(fields=fields), commit=14, op=Op.READ)
