"""Reads the records of single keys of one entity, with the truncates that deleted their rows, and follows rows that
moved from one key to another.

A *life* of a key is all records of one row at the key, up to the delete or truncate that ends the row there. If a row
moved to the key from another one, its life before the move is on the other key.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from changelog.connectors.sinks import Log
from changelog.envelope.columnar import batch
from changelog.envelope.model import Op, Record, position_of

KEYS_MAX: Final = 100
"""To follow a row that moved, at most this many other keys are read. Records on still earlier keys are not read."""


@dataclass(slots=True)
class KeyRecords:
    """The records of an entity's keys. The records of a key are read once, when they are first needed."""

    log: Log
    entity: str
    _by_key: dict[str, list[Record]] = field(default_factory=dict)

    def of(self, key: str) -> Sequence[Record]:
        """Returns the records of a key in the order of their positions, with the truncates that deleted its row.

        Raises the ChangelogError of `Log.read_key`.
        """
        if key not in self._by_key:
            rows = self.log.read_key(self.entity, key)
            records = sorted((record for part in rows for record in batch.records(part)), key=position_of)
            self._by_key[key] = list(_effective(records))
        return self._by_key[key]

    def before_arrival(self, create: Record) -> Sequence[Record]:
        """Returns the records, up to the move, of the key from which a row moved here. `create` is the record by which
        the row arrived here.

        Returns no records if that key would have to be read, but `KEYS_MAX` other keys have been read already.
        """
        place = create.moved_from
        if place is None or (place.key not in self._by_key and len(self._by_key) > KEYS_MAX):
            return []
        records = self.of(place.key)
        return records[: bisect_left(records, position_of(create), key=position_of)]


def life_begin(records: Sequence[Record]) -> int:
    """Returns the index of the last life's first record. If the last record ends a life, it belongs to that life."""
    ends = (index for index in range(len(records) - 2, -1, -1) if ends_life(records[index]))
    return next(ends, -1) + 1


def is_arrival(record: Record) -> bool:
    """Returns whether the record is the create by which a row moved here from another key."""
    return record.moved_from is not None and record.moved_from.key != record.place.key


def _effective(records: Iterable[Record]) -> Iterator[Record]:
    """Yields the records of a key, without the records of truncates that found no row there.

    A truncate has a record in each partition. Only the first of them can have found a row.
    """
    exists = False
    for record in records:
        is_truncate = record.envelope.provenance.source.op is Op.TRUNCATE
        if exists or not is_truncate:
            yield record
        exists = not ends_life(record)


def ends_life(record: Record) -> bool:
    """Returns whether the key has no row after the record. The delete of a move between partitions ends no life,
    because the row stays at its key.
    """
    is_gone = record.envelope.provenance.source.op in (Op.DELETE, Op.TRUNCATE)
    return is_gone and (record.moved_to is None or record.moved_to.key != record.place.key)
