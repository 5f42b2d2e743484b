"""Tests `writes`, which counts what a service or a request wrote, by entity.

A search through all records must give the same numbers.
"""

import tempfile
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from changelog.connectors.history.moments import Moment
from changelog.connectors.history.writes import FIRST_MAX, EntityWrites, writes
from changelog.envelope.entity import TRUNCATE_KEY
from changelog.envelope.model import Op, Place, Record, position_of
from changelog.envelope.position import Position
from tests.unit.blame.world import World, worlds
from tests.unit.history.stored import COMMITS, store
from tests.unit.records import BEGIN, record


@settings(max_examples=25)
@given(worlds(), st.data())
def test_the_counts_equal_those_of_a_search(world: World, data: st.DataObject) -> None:
    service = data.draw(st.none() | st.sampled_from(["service-0", "service-1", "service-2"]))
    identifier = data.draw(st.none() | st.integers(1, 14).map(lambda number: f"req-{number}"))
    position = position_of(data.draw(st.sampled_from(world.records)))
    since: Moment | None = data.draw(st.sampled_from([None, position, BEGIN + timedelta(seconds=position.commit)]))
    own_records = [
        item
        for item in world.records
        if item.envelope.provenance.source.op is not Op.READ
        and service in (None, item.envelope.provenance.stamp.service_name)
        and identifier in (None, item.envelope.provenance.stamp.identifier)
        and (since is None or (position_of(item) >= since if isinstance(since, Position) else _time(item) >= since))
    ]
    with tempfile.TemporaryDirectory() as folder:
        log = store(Path(folder), world.records, archived=data.draw(st.integers(0, COMMITS)))
        result = writes(log, service=service, identifier=identifier, since=since)
    if not own_records:
        assert result == []
        return
    [writes_to_order] = result
    of_keys = [item for item in own_records if item.place.key != TRUNCATE_KEY]
    kinds = Counter(_kind(item) for item in of_keys)
    truncates = {position_of(item) for item in own_records if item.place.key == TRUNCATE_KEY}
    assert writes_to_order == EntityWrites(
        entity="order",
        creates=kinds["create"],
        updates=kinds["update"],
        moves=kinds["arrival"],
        deletes=kinds["delete"],
        truncates=len(truncates),
        keys=tuple(dict.fromkeys(item.place.key for item in of_keys)),
        services=tuple(dict.fromkeys(item.envelope.provenance.stamp.service_name for item in own_records)),
        first_position=position_of(own_records[0]),
        last_position=position_of(own_records[-1]),
        first_time=_time(own_records[0]),
        last_time=_time(own_records[-1]),
    )


def _time(item: Record) -> datetime:
    return item.envelope.provenance.source.committed_at


def _kind(item: Record) -> str:
    if item.moved_from is not None:
        return "arrival"
    return "departure" if item.moved_to is not None else item.envelope.provenance.source.op.value


def test_entities_are_counted_apart_and_only_the_first_keys_are_listed(tmp_path: Path) -> None:
    orders = [record(Op.CREATE, "{}", commit=number, key=f"o{number}", service=f"s{number}") for number in range(1, 13)]
    guests = [record(Op.UPDATE, "{}", commit=number, entity="guest", key="g") for number in range(13, 16)]
    of_changelog = [
        record(Op.CREATE, "{}", commit=16, entity="gaps"),
        record(Op.CREATE, "{}", commit=17, entity="schemas"),
    ]
    log = store(tmp_path, [*orders, *guests, *of_changelog])
    by_guest, by_order = writes(log)
    assert (by_guest.entity, by_guest.updates, by_guest.keys, by_guest.changes) == ("guest", 3, ("g",), 3)
    assert (by_order.entity, by_order.creates) == ("order", 12)
    assert by_order.keys == tuple(f"o{number}" for number in range(1, FIRST_MAX + 1))
    assert by_order.services == tuple(f"s{number}" for number in range(1, FIRST_MAX + 1))
    assert [item.entity for item in writes(log, entity="guest")] == ["guest"]
    assert writes(log, identifier="req-4")[0].keys == ("o4",)
    assert writes(log, service="nobody") == []


@pytest.mark.parametrize("since", [Position(0, 0, 0), Position(1, 0, 0), Position(1, 2, 0), Position(1, 2, 1)])
def test_since_includes_the_change_at_its_position(tmp_path: Path, since: Position) -> None:
    here, there = Place(key="1", partition=0), Place(key="2", partition=0)
    records = [
        record(Op.CREATE, "{}", commit=1, ordinal=0, key="1"),
        record(Op.DELETE, None, commit=2, ordinal=0, key="1", moved_to=there),
        record(Op.CREATE, "{}", commit=2, ordinal=1, key="2", moved_from=here),
    ]
    [of_order] = writes(store(tmp_path, records), since=since)
    assert of_order.first_position == min(position_of(item) for item in records if position_of(item) >= since)
    assert of_order.moves == 1
