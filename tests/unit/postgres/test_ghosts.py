"""What is alive in a changelog, whatever the order in which its partitions are read and however small the memory."""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from connectors.capture.tables.key_lookup import Ghost
from connectors.capture.tables.survivors import Read, of_keys, older_than
from envelope.columnar import batch
from envelope.entity import TRUNCATE_KEY
from envelope.errors import ChangelogError, Kind
from envelope.model import MISSING, Envelope, Op, Place, Provenance, Record, Source, Stamp
from envelope.position import Position

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


def record(op: Op, key: str, partition: int, at: int) -> Record:
    dead = op in (Op.DELETE, Op.TRUNCATE)
    envelope = Envelope(
        provenance=replace(PROVENANCE, source=replace(SOURCE, op=op, position=Position(1, at, 0))),
        current=None if dead else Raw(json.dumps({"at": at}).encode()),
        original=None if op is Op.TRUNCATE else MISSING,
    )
    return Record(entity="e", place=Place(key=key, partition=partition), envelope=envelope)


def written(changes: Sequence[tuple[Op, int, int]]) -> list[Record]:
    found = []
    for at, (op, key, partition) in enumerate(changes, start=1):
        if op is Op.TRUNCATE:
            found += [record(op, TRUNCATE_KEY, number, at) for number in range(PARTITIONS)]
        else:
            found.append(record(op, f"k{key}", partition, at))
    return found


def folded(records: Sequence[Record]) -> dict[str, Record]:
    alive: dict[str, Record] = {}
    for each in records:
        if each.place.key == TRUNCATE_KEY:
            alive.clear()
        elif each.envelope.current is None:
            alive.pop(each.place.key, None)
        else:
            alive[each.place.key] = each
    return alive


def stored(records: Sequence[Record], seed: int) -> Read:
    """Partition by partition in any order, in small batches."""
    order = list(range(PARTITIONS))

    def read(entity: str, key: str | None) -> Iterator[pa.RecordBatch]:
        assert entity == "e"
        random.Random(seed).shuffle(order)
        for partition in order:
            mine = [each for each in records if each.place.partition == partition and key in (None, each.place.key)]
            for first in range(0, len(mine), 4):
                yield batch.from_records(mine[first : first + 4])

    return read


@given(steps, st.integers(0, 60), st.integers(1, 6), st.integers(1, 5), st.integers())
@settings(deadline=None)
def test_what_is_older_is_found_in_parts(
    changes: list[tuple[Op, int, int]], start: int, folded_max: int, ghosts_max: int, seed: int
) -> None:
    records = written(changes)
    expected = {
        key: each
        for key, each in folded(records).items()
        if each.envelope.provenance.source.position < Position(1, start, 0)
    }
    found: dict[str, Ghost] = {}
    parts = older_than(
        stored(records, seed), "e", str(Position(1, start, 0)), folded_max=folded_max, ghosts_max=ghosts_max
    )
    short = False
    for some, more in parts:
        assert len(some) <= ghosts_max
        assert not found.keys() & {ghost.key for ghost in some}
        found |= {ghost.key: ghost for ghost in some}
        short |= more
    if short:
        assert found.keys() < expected.keys()
    else:
        assert found.keys() == expected.keys()
    for key, ghost in found.items():
        assert bytes(ghost.current) == bytes(expected[key].envelope.current or b"")
        assert ghost.partition == expected[key].place.partition
        assert (ghost.json_null, ghost.mask) == (("j",), "m")


@given(steps, st.sets(st.integers(0, 14), min_size=1, max_size=5), st.integers())
@settings(deadline=None)
def test_of_asked_keys_those_that_are_alive_are_found(
    changes: list[tuple[Op, int, int]], asked: set[int], seed: int
) -> None:
    records = written(changes)
    keys = {f"k{number}" for number in asked}
    alive = folded(records)
    found = of_keys(stored(records, seed), "e", keys)
    assert {ghost.key for ghost in found} == keys & alive.keys()
    assert all(bytes(ghost.current) == bytes(alive[ghost.key].envelope.current or b"") for ghost in found)


def test_rows_that_go_away_between_two_looks_have_it_looked_again() -> None:
    """A broker compacts and deletes while it is read."""
    looks = [written([(Op.CREATE, 1, 0), (Op.CREATE, 2, 0)]), written([(Op.CREATE, 1, 0)])]

    def read(_entity: str, _key: str | None) -> Iterator[pa.RecordBatch]:
        yield batch.from_records(looks.pop(0))

    with pytest.raises(ChangelogError) as caught:
        list(older_than(read, "e", str(Position(2, 0, 0))))
    assert caught.value.kind is Kind.CONNECTION
