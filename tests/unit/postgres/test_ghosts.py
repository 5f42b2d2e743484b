"""Tests the search for *ghosts*: keys that exist in the changelog, but perhaps not in the table.

The result must not depend on the order in which partitions are read, or on how much memory the search may use.
"""

import json
import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from changelog.connectors.capture.tables import survivors
from changelog.connectors.capture.tables.key_lookup import Ghost
from changelog.connectors.capture.tables.survivors import Read, of_keys, older_than
from changelog.envelope.columnar import batch
from changelog.envelope.entity import TRUNCATE_KEY
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import MISSING, Envelope, Op, Place, Provenance, Record, Source, Stamp
from changelog.envelope.position import Position

PARTITIONS = 3

SOURCE = Source(
    connector="postgres",
    name="n",
    database="d",
    table="public.t",
    op=Op.UPDATE,
    position=Position(1, 1, 0),
    transaction="1",
    committed_at=datetime(2026, 1, 1, tzinfo=UTC),
    json_null=("j",),
    mask="m",
)
PROVENANCE = Provenance(stamp=Stamp(api_version="", service_name="", identifier=""), source=SOURCE)

steps = st.lists(
    st.tuples(
        st.sampled_from([Op.CREATE, Op.UPDATE, Op.READ, Op.DELETE, Op.DELETE, Op.TRUNCATE]),
        st.integers(0, 12),
        st.integers(0, 2),
    ),
    max_size=60,
)
starting = st.dictionaries(st.sampled_from("efgh"), st.integers(0, 60), min_size=1)
asking = st.dictionaries(st.sampled_from("efgh"), st.sets(st.integers(0, 12).map(lambda number: f"k{number}")))


def record(op: Op, key: str, partition: int, at: int, entity: str = "e") -> Record:
    is_deletion = op in (Op.DELETE, Op.TRUNCATE)
    envelope = Envelope(
        provenance=replace(PROVENANCE, source=replace(SOURCE, op=op, position=Position(1, at, 0))),
        current=None if is_deletion else Raw(json.dumps({"at": at}).encode()),
        original=None if op is Op.TRUNCATE else MISSING,
    )
    return Record(entity=entity, place=Place(key=key, partition=partition), envelope=envelope)


def records_of(changes: Sequence[tuple[Op, int, int]], names: str = "e") -> list[Record]:
    """Returns the records of these changes. Each letter of `names` is the name of an entity. The changes belong to
    these entities in turn.
    """
    records = []
    for at, (op, key, partition) in enumerate(changes, start=1):
        name = names[at % len(names)]
        if op is Op.TRUNCATE:
            records += [record(op, TRUNCATE_KEY, number, at, name) for number in range(PARTITIONS)]
        else:
            records.append(record(op, f"k{key}", partition, at, name))
    return records


def live_records(records: Sequence[Record]) -> dict[str, Record]:
    live: dict[str, Record] = {}
    for change in records:
        if change.place.key == TRUNCATE_KEY:
            live.clear()
        elif change.envelope.current is None:
            live.pop(change.place.key, None)
        else:
            live[change.place.key] = change
    return live


def reader_of(records: Sequence[Record], seed: int) -> Read:
    """Returns a function that reads the records in small batches. It reads one partition after the other, in random
    order.
    """
    order = list(range(PARTITIONS))

    def read(entities: Collection[str], key: str | None) -> Iterator[pa.RecordBatch]:
        assert len(entities) == 1 or key is None
        random.Random(seed).shuffle(order)
        selected = [change for change in records if change.entity in entities and key in (None, change.place.key)]
        for partition in order:
            of_partition = [change for change in selected if change.place.partition == partition]
            for first in range(0, len(of_partition), 4):
                yield batch.from_records(of_partition[first : first + 4])

    return read


@given(steps, starting, asking, st.integers(1, 6), st.integers(1, 5), st.integers())
@settings(deadline=None)
def test_old_keys_and_requested_keys_are_found_in_parts(
    changes: list[tuple[Op, int, int]],
    start_commits: dict[str, int],
    absent_keys: dict[str, set[str]],
    folded_max: int,
    ghosts_max: int,
    seed: int,
) -> None:
    records = records_of(changes, "efgh")
    starts = {name: str(Position(1, start, 0)) for name, start in start_commits.items()}
    expected: dict[str, dict[str, Record]] = {
        name: {
            key: change
            for key, change in live_records([change for change in records if change.entity == name]).items()
            if str(change.envelope.provenance.source.position) < start or key in absent_keys.get(name, ())
        }
        for name, start in starts.items()
    }
    found_ghosts: dict[str, dict[str, Ghost]] = {name: {} for name in starts}
    ended: set[str] = set()
    for part in older_than(reader_of(records, seed), starts, absent_keys, folded_max=folded_max, ghosts_max=ghosts_max):
        assert sum(map(len, part.ghosts.values())) <= ghosts_max
        assert not ended & (part.ghosts.keys() | part.whole | part.cut)
        assert not part.whole & part.cut
        for name, ghosts in part.ghosts.items():
            assert not found_ghosts[name].keys() & {ghost.key for ghost in ghosts}
            found_ghosts[name] |= {ghost.key: ghost for ghost in ghosts}
        assert all(found_ghosts[name].keys() == expected[name].keys() for name in part.whole)
        assert all(found_ghosts[name].keys() < expected[name].keys() for name in part.cut)
        ended |= part.whole | part.cut
    assert ended == starts.keys()
    for name, ghosts_of in found_ghosts.items():
        for key, ghost in ghosts_of.items():
            assert bytes(ghost.current) == bytes(expected[name][key].envelope.current or b"")
            assert ghost.partition == expected[name][key].place.partition
            assert (ghost.json_null, ghost.mask) == (("j",), "m")


def test_batches_of_an_entity_that_is_left_to_a_later_pass_are_ignored() -> None:
    """The search reads two entities in one pass, and each of them is too large for the memory. It leaves one of them,
    and half of the keys of the other, to later passes. The rest of this pass still brings batches of both.
    """
    records = [record(Op.CREATE, "k", 0, 1, "alone")]
    at = 1
    for names in ("aabb", "aaaa", "bbbb"):
        for number, name in enumerate(names):
            at += 1
            records.append(record(Op.CREATE, f"k{at if len(set(names)) == 1 else number}", 0, at, name))
    starts = {name: str(Position(1, 100, 0)) for name in ("alone", "a", "b")}
    keys: dict[str, set[str]] = {name: set() for name in starts}
    for part in older_than(reader_of(records, 0), starts, {}, folded_max=1):
        for name, ghosts in part.ghosts.items():
            keys[name] |= {ghost.key for ghost in ghosts}
    assert keys == {name: {change.place.key for change in records if change.entity == name} for name in starts}


def test_small_entities_share_a_pass_and_a_large_one_has_its_own() -> None:
    """As long as the entities are small, each pass reads twice as many as the pass before. The large entity comes in a
    pass with others, turns out to be too large, and is read again in a pass of its own.
    """
    names = [f"small_{number}" for number in range(6)]
    records = [record(Op.CREATE, "k", 0, at, name) for at, name in enumerate(names)]
    records += [record(Op.CREATE, f"k{number}", 0, 10 + number, "large") for number in range(5)]
    read = reader_of(records, 0)
    readings: list[list[str]] = []

    def read_and_record(entities: Collection[str], key: str | None) -> Iterator[pa.RecordBatch]:
        readings.append(sorted(entities))
        yield from read(entities, key)

    starts = dict.fromkeys([*names[:4], "large", *names[4:]], str(Position(1, 0, 0)))
    parts = list(older_than(read_and_record, starts, {}, folded_max=5))
    assert readings == [[names[0]], names[1:3], ["large", *sorted([names[3], *names[4:]])], ["large"]]
    assert [sorted(part.whole) for part in parts] == [[names[0]], names[1:3], names[3:], ["large"]]


def test_large_ghosts_of_several_entities_come_in_several_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survivors, "GHOSTS_BYTES_MAX", 300)
    records = [record(Op.CREATE, f"k{at}", 0, at, "abc"[at % 3]) for at in range(6)]
    starts = dict.fromkeys("abc", str(Position(2, 0, 0)))
    parts = list(older_than(reader_of(records, 0), starts, {}))
    assert [[len(ghosts) for ghosts in part.ghosts.values()] for part in parts] == [[2], [2], [2]]
    assert {name for part in parts for name in part.whole} == {"a", "b", "c"}


@given(steps, st.sets(st.integers(0, 14), min_size=1, max_size=5), st.integers())
@settings(deadline=None)
def test_requested_keys_that_exist_in_the_changelog_are_found(
    changes: list[tuple[Op, int, int]], numbers: set[int], seed: int
) -> None:
    records = records_of(changes)
    keys = {f"k{number}" for number in numbers}
    live = live_records(records)
    ghosts = of_keys(reader_of(records, seed), "e", keys)
    assert {ghost.key for ghost in ghosts} == keys & live.keys()
    assert all(bytes(ghost.current) == bytes(live[ghost.key].envelope.current or b"") for ghost in ghosts)


def test_rows_that_disappear_between_two_readings_are_an_error_of_the_connection() -> None:
    """A broker may remove rows between two readings of its topics. The error must make the service try again."""
    readings = [records_of([(Op.CREATE, 1, 0), (Op.CREATE, 2, 0)]), records_of([(Op.CREATE, 1, 0)])]

    def read(_entities: Collection[str], _key: str | None) -> Iterator[pa.RecordBatch]:
        yield batch.from_records(readings.pop(0))

    with pytest.raises(ChangelogError) as caught:
        list(older_than(read, {"e": str(Position(2, 0, 0))}, {}))
    assert caught.value.kind is Kind.CONNECTION
