"""Tests how a store of current rows is restored from a changelog.

After a loss of rows, or a change of settings, the restored store must equal one that has followed the changelog from
the beginning.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from changelog.connectors.sinks import Log
from changelog.connectors.state import pending
from changelog.connectors.state.before_images import BeforeImages, Watcher
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.columnar import batch
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.gap import Gap, Side
from changelog.envelope.model import Op, Place, Record, position_of
from changelog.envelope.position import Position
from changelog.schemas.types import Primitive
from tests.unit.state.memory_store import MemoryStore
from tests.unit.state.shop import ENTITIES, STAMP, Shop, checkpoint, described, entity, settings


class StoredLog:
    """A changelog in memory. Inside a partition, the records are in order.

    With `random`, the partitions take random turns, as in Kafka.
    """

    def __init__(self, random: Random | None = None) -> None:
        self.records: list[Record] = []
        self.reads = 0
        self._random = random

    def read(
        self,
        *,
        entity: str | None = None,
        key: str | None = None,
        after: Position | None = None,
        identifier: str | None = None,
    ) -> Iterator[pa.RecordBatch]:
        self.reads += 1
        yield from self._batches(
            [
                record
                for record in self.records
                if (record.entity == entity if entity else record.entity != "schemas")
                and (after is None or position_of(record) > after)
                and (identifier is None or record.envelope.provenance.stamp.identifier == identifier)
            ]
        )

    def read_together(self, entities: Collection[str], /) -> Iterator[pa.RecordBatch]:
        self.reads += 1
        yield from self._batches([record for record in self.records if record.entity in entities])

    def _batches(self, records: Sequence[Record]) -> Iterator[pa.RecordBatch]:
        parts: dict[tuple[str, int], list[Record]] = {}
        for record in records:
            parts.setdefault((record.entity, record.place.partition) if self._random else ("", 0), []).append(record)
        while parts:
            part = self._random.choice(sorted(parts)) if self._random else ("", 0)
            count = self._random.choice([1, 5, 40]) if self._random else 30
            yield batch.from_records(parts[part][:count])
            parts[part] = parts[part][count:]
            if not parts[part]:
                del parts[part]


class Counting(Watcher):
    def __init__(self) -> None:
        self.restored = 0

    def restoring(self, rows: int) -> None:
        self.restored += rows


def state_of(store: MemoryStore, log: StoredLog, **arguments: Any) -> BeforeImages:
    def open_log() -> Log:
        return log  # type: ignore[return-value]

    return BeforeImages(store, open_log, new_id=lambda: "id-1", **arguments)


def follow(state: BeforeImages, log: StoredLog, records: Sequence[Record], stored: Checkpoint | None) -> Checkpoint:
    """Fills in the values of `records` from the state, and appends the records to the log in one commit."""
    present = checkpoint(position_of(records[-1]))
    rows = state.fill([batch.from_records(records)], present)
    state.add()
    log.records += [record for part in rows for record in batch.records(part)]
    present = state.mark(present)
    state.fold(present)
    return present


def partitioned(records: Sequence[Record]) -> list[Record]:
    """Distributes records over three partitions. The create of a row decides the partition of the row's records.

    A truncate is in all partitions.
    """
    result: list[Record] = []
    partitions: dict[tuple[str, str], int] = {}
    for record in records:
        place = record.entity, record.place.key
        if record.envelope.provenance.source.op is Op.TRUNCATE:
            result += [replace(record, place=replace(record.place, partition=number)) for number in range(3)]
            continue
        number = position_of(record).commit % 3
        if record.entity == "schemas" or record.moved_to or record.moved_from:
            number = 0 if record.entity == "schemas" else partitions.get(place, number)
        elif record.envelope.provenance.source.op in (Op.DELETE, Op.UPDATE, Op.READ):
            number = partitions.get(place, number)
        partitions[place] = number
        result.append(replace(record, place=replace(record.place, partition=number)))
    return result


@pytest.mark.parametrize("mixed", [True, False])
@pytest.mark.parametrize("seed", range(2))
def test_a_deleted_or_older_store_is_restored_completely(seed: int, mixed: bool) -> None:
    random = Random(seed)
    shop = Shop(random)
    while len(shop.lacking) < 400:
        shop.step()
    records = partitioned(shop.lacking)
    store, log = MemoryStore(), StoredLog(random if mixed else None)
    state = state_of(store, log)
    state.recover(None)
    stored: Checkpoint | None = None
    begin, older = 0, None
    while begin < len(records):
        end = begin + random.choice([3, 30])
        while end < len(records) and position_of(records[end]).commit == position_of(records[end - 1]).commit:
            end += 1
        stored = follow(state, log, records[begin:end], stored)
        begin = end
        if older is None and begin > 250:
            older = dict(store.rows), store.facts()
    whole, facts = dict(store.rows), store.facts()
    assert older is not None
    for rows, its_facts in (({}, {}), older):
        again = MemoryStore()
        again.rows, again._facts = dict(rows), dict(its_facts)
        state_of(again, log).recover(stored)
        assert again.rows == whole
        assert again.facts() == facts
        assert again.cleared == 0


def test_a_store_of_another_changelog_or_ahead_of_its_changelog_is_rebuilt() -> None:
    shop = Shop(Random(1))
    for key in range(6):
        shop.insert(ENTITIES[0], key)
    store, log = MemoryStore(), StoredLog()
    state = state_of(store, log)
    state.recover(None)
    stored = follow(state, log, shop.lacking, None)
    for other in (
        replace(stored, state={"id": "another"}),
        replace(stored, state={}),
        replace(stored, position=position_of(shop.lacking[2])),
    ):
        again = MemoryStore()
        again.rows, again._facts = {**store.rows, b"order\x0099": b""}, store.facts()
        state_of(again, log).recover(other)
        assert again.cleared == 1
        assert b"order\x0099" not in again.rows
    again = MemoryStore()
    again.rows, again._facts = dict(store.rows), store.facts()
    state_of(again, log).recover(None)
    assert again.rows == {}


def test_a_store_that_is_up_to_date_reads_nothing() -> None:
    shop = Shop(Random(1))
    shop.insert(ENTITIES[0], 1)
    store, log = MemoryStore(), StoredLog()
    state = state_of(store, log)
    state.recover(None)
    stored = follow(state, log, shop.lacking, None)
    reads = log.reads
    state_of(store, log).recover(stored)
    assert log.reads == reads


def test_a_service_that_stops_also_stops_restoring_its_store() -> None:
    shop = Shop(Random(1))
    shop.insert(ENTITIES[0], 1)
    log = StoredLog()
    log.records += shop.lacking
    with pytest.raises(ChangelogError) as caught:
        state_of(MemoryStore(), log, stopping=lambda: True).recover(checkpoint(position_of(shop.lacking[-1])))
    assert caught.value.kind is Kind.CONNECTION


def restored(log: StoredLog, stored: Checkpoint) -> tuple[BeforeImages, MemoryStore, Counting]:
    store, watcher = MemoryStore(), Counting()
    state = state_of(store, log, watcher=watcher)
    state.recover(stored)
    return state, store, watcher


def test_rows_of_other_masks_are_not_restored() -> None:
    """Otherwise, an original could show a value that is masked now and was not masked before."""
    shop = Shop(Random(1))
    shop.insert(ENTITIES[0], 1)
    log = StoredLog()
    log.records += shop.lacking
    stored = checkpoint(position_of(shop.lacking[-1]))
    masked = {"order": {**settings()["order"], "mask_id": "a" * 16}}
    _, store, watcher = restored(log, replace(stored, settings=masked))
    assert watcher.restored == 1
    assert store.rows == {}
    _, store, _ = restored(log, stored)
    assert len(store.rows) == 1


def test_new_settings_of_an_entity_forget_its_rows() -> None:
    shop = Shop(Random(1), entities=[entity("order"), entity("guest")])
    shop.insert(shop.entities[0], 1)
    shop.insert(shop.entities[1], 1)
    masked = entity("order", masks={"name": "sha256"})
    shop.update(masked, 1, {"name": "other"})
    store, log = MemoryStore(), StoredLog()
    state = state_of(store, log)
    state.recover(None)
    stored = follow(state, log, shop.lacking, None)
    assert described(log.records[-1])["original"] is shop.lacking[-1].envelope.original, (
        "the original must stay unknown"
    )
    followed = dict(store.rows)
    assert sorted(followed) == [b"guest\x001", b"order\x001"]
    _, again, _ = restored(log, stored)
    assert again.rows == followed


def test_a_gap_forgets_the_rows_of_its_entities() -> None:
    shop = Shop(Random(1))
    shop.insert(ENTITIES[0], 1)
    shop.insert(ENTITIES[1], 1)
    shop.commit += 1
    position = Position(1, shop.commit, 0)
    side = Side(position=str(position), epoch=1, through=None, system=None, timeline=None)
    gap = Gap(name="shop", reason="slot lost", before=side, after=side, entities=("order",))
    at = shop.lacking[0].envelope.provenance.source.committed_at
    shop.lacking.append(gap.record(connector="postgres", database="app", at=at))
    shop.update(ENTITIES[1], 1, {"name": "x"})
    store, log = MemoryStore(), StoredLog()
    state = state_of(store, log)
    state.recover(None)
    stored = follow(state, log, shop.lacking, None)
    assert list(store.rows) == [b"guest\x001"]
    _, again, _ = restored(log, stored)
    assert again.rows == store.rows


def test_a_truncate_forgets_the_rows_of_its_entity() -> None:
    shop = Shop(Random(1))
    for key in range(4):
        shop.insert(ENTITIES[0], key)
    shop.truncate(ENTITIES[0])
    shop.insert(ENTITIES[0], 2)
    store, log = MemoryStore(), StoredLog()
    state = state_of(store, log)
    state.recover(None)
    stored = follow(state, log, shop.lacking, None)
    assert list(store.rows) == [b"order\x002"]
    _, again, _ = restored(log, stored)
    assert again.rows == store.rows


def test_values_of_altered_columns_are_unavailable() -> None:
    shop = Shop(Random(1))
    shop.insert(ENTITIES[0], 1)
    shop.columns = {"id": Primitive.INT, "name": Primitive.JSON, "doc": Primitive.JSON, "extra": Primitive.STRING}
    shop.update(ENTITIES[0], 1, {"doc": [1], "extra": "e", "name": {}})
    shop.update(ENTITIES[0], 1, {"doc": [2]})
    log = StoredLog()
    state = state_of(MemoryStore(), log)
    state.recover(None)
    follow(state, log, shop.lacking, None)
    first, second = (described(record) for record in log.records[-2:])
    assert list(first["original"]) == ["id", "doc"]
    assert first["source"].unavailable_original == ("name", "extra")
    assert second["original"] == first["current"]
    assert second["source"].unavailable_original == ()


def test_rows_of_immutable_entities_are_not_kept() -> None:
    event = entity("event", immutable=True)
    shop = Shop(Random(1), entities=[event])
    shop.insert(event, 1)
    store, log = MemoryStore(), StoredLog()
    state = state_of(store, log)
    state.recover(None)
    rows = state.fill([batch.from_records(shop.lacking)], checkpoint(None, [event]))
    state.add()
    state.fold(checkpoint(position_of(shop.lacking[-1]), [event]))
    assert store.rows == {}
    assert [row for part in rows for row in batch.records(part)] == shop.lacking


def test_rows_that_the_sink_refused_are_dropped() -> None:
    shop = Shop(Random(1))
    shop.insert(ENTITIES[0], 1)
    shop.insert(ENTITIES[0], 2)
    store, log = MemoryStore(), StoredLog()
    state = state_of(store, log)
    state.recover(None)
    state.fill([batch.from_records(shop.lacking[:2])], checkpoint(None))
    state.add()
    state.fill([batch.from_records(shop.lacking[2:])], checkpoint(None))
    state.fold(checkpoint(position_of(shop.lacking[1])))
    assert list(store.rows) == [b"order\x001"]


def test_the_bytes_that_are_filled_into_a_piece_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending, "FILLED_BYTES_MAX", 100)
    shop = Shop(Random(1))
    shop.insert(ENTITIES[0], 1)
    shop.tables["order"][1]["body"] = "x" * 200
    shop.lacking[-1] = shop.lacking[-1].__class__(
        entity="order",
        place=Place(key="1", partition=0),
        envelope=shop._with(shop.lacking[-1], shop.tables["order"][1], None, (), ()).envelope,
    )
    shop.update(ENTITIES[0], 1, {"name": "a"})
    shop.update(ENTITIES[0], 1, {"body": "short"})
    store, log = MemoryStore(), StoredLog()
    state = state_of(store, log)
    state.recover(None)
    follow(state, log, shop.lacking, None)
    lacking, filled = (described(record) for record in log.records[-2:])
    assert lacking["source"].unavailable == ("body",), "the limit leaves no room for the value"
    assert "body" not in lacking["current"]
    assert "short" in str(filled["current"])
    assert STAMP.service_name == "shop"
