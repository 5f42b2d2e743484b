"""Reads the tables of a `World` (a database in memory), in ranges of keys or by single keys."""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from changelog.connectors.capture.rows import row_records
from changelog.connectors.capture.rows.binding import Binding, Field
from changelog.connectors.capture.rows.codec import Codec, Shape, string
from changelog.connectors.capture.rows.row_records import Change, Origin
from changelog.connectors.capture.tables.ghost_rows import deleted
from changelog.connectors.capture.tables.key_lookup import Ghost
from changelog.connectors.capture.tables.windows import Mask
from changelog.envelope.columnar import batch
from changelog.envelope.entity import Entity
from changelog.schemas.types import Primitive
from tests.unit.memory.world import KEYS, Row

RANGE_KEYS = 5

_NUMBER = Codec(shape=Shape.RAW, to_json=bytes, column_type=Primitive.INT)
_TEXT = Codec(shape=Shape.TEXT, to_json=string, column_type=Primitive.STRING)


def bind(entity: Entity, columns: Sequence[str]) -> Binding:
    """Returns the binding of an entity to a table with these columns."""
    table = ".".join(entity.table)
    fields = tuple(
        Field(
            index=index,
            name=name,
            label=b'"%s":' % name.encode(),
            codec=_NUMBER if name == "id" else _TEXT,
            json=False,
        )
        for index, name in enumerate(columns)
    )
    return Binding(
        entity=entity,
        table=table,
        relid=zlib.crc32(table.encode()),
        width=len(columns),
        fields=fields,
        key=fields[:1],
        partition=fields[:1],
        identity=frozenset(range(len(columns))),
        full=True,
        lost=None,
        unlogged=(),
        whole_rows="",
        crossing=False,
        leaves=frozenset(),
        mask=None,
    )


def values(row: Row, columns: Sequence[str]) -> tuple[bytes | None, ...]:
    """Returns the values of a row as a decoder returns them."""
    return tuple(None if row.get(name) is None else str(row[name]).encode() for name in columns)


class RangeTask:
    """The ranges of a table's keys that must still be read. Implements `TableTask` of the module `windows`."""

    generation = 0

    def __init__(self, entity: str, columns: tuple[str, ...], stored: Mapping[str, Any]) -> None:
        self.entity, self._columns = entity, columns
        self._again = {"again": stored["again"]} if "again" in stored else {}
        self._out: list[tuple[int, int]] = []
        same = stored.get("columns") == list(columns)
        self._left = [(first, end) for first, end in stored["leaves"]["all"]["left"]] if same else [(0, KEYS)]

    @property
    def available(self) -> bool:
        """Whether there is a range to hand out."""
        return bool(self._left)

    @property
    def complete(self) -> bool:
        return not self._left and not self._out

    def next_range(self) -> tuple[int, int] | None:
        if not self._left:
            return None
        first, end = self._left.pop(0)
        cut = min(first + RANGE_KEYS, end)
        if cut < end:
            self._left.insert(0, (cut, end))
        self._out.append((first, cut))
        return first, cut

    def admit(self, taken: tuple[int, int], fingerprint: tuple[str, ...]) -> bool:
        """Returns whether the reading of the table began with these columns. If not, it begins again at the start."""
        if fingerprint == self._columns:
            return True
        self.generation += 1
        self._columns, self._left, self._out = fingerprint, [(0, KEYS)], []
        return False

    def give_back(self, taken: tuple[int, int]) -> None:
        self._out.remove(taken)
        self._left.append(taken)

    def divide(self, taken: tuple[int, int]) -> None:
        self.give_back(taken)

    def publish(self, taken: tuple[int, int], gone: Sequence[str]) -> None:
        self._out.remove(taken)

    def withdraw(self, taken: tuple[int, int]) -> None:
        self._left.append(taken)

    def to_json(self) -> dict[str, Any]:
        if self.complete:
            return {"complete": True}
        unread = [list(part) for part in sorted([*self._left, *self._out])]
        return {
            "complete": False,
            "columns": list(self._columns),
            "leaves": {"all": {"pages": KEYS, "left": unread}},
            **self._again,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRows:
    """Rows that were read from a table and have no position yet. Implements `WindowRows` of the module `windows`.

    - `requested` has the keys that were looked up. It is None if a range of keys was read.
    - `ghosts` has keys that the changelog has and the table may lack. If the table lacks one, `at` publishes a delete.
    """

    origin: Origin
    binding: Binding
    rows: Mapping[str, tuple[bytes | None, ...]]
    requested: Sequence[str] | None
    ghosts: Mapping[str, Ghost]

    @property
    def nbytes(self) -> int:
        return 100 * len(self.rows)

    @property
    def keys(self) -> pa.StringArray:
        return pa.array(list(self.rows), pa.utf8())

    @property
    def gone(self) -> pa.StringArray:
        return pa.array([key for key in self.requested or () if key not in self.rows], pa.utf8())

    def at(self, change: Change, keep: Mask, delete: Mask) -> pa.RecordBatch:
        untouched = [key for key, is_kept in zip(self.rows, keep, strict=True) if is_kept]
        published = [self.rows[key] for key in untouched if key not in self.ghosts]
        missing = [key for key, is_lost in zip(self.gone.to_pylist(), delete, strict=True) if is_lost]
        deleted_keys = [key for key in missing if key in self.ghosts]
        places = (
            replace(change, ordinal=change.ordinal + 1 + number) for number in range(len(published) + len(deleted_keys))
        )
        records = [row_records.read(self.origin, self.binding, row, next(places)) for row in published]
        records += [deleted(self.origin, self.binding, self.ghosts[key], next(places)) for key in deleted_keys]
        shapes = {self.binding.entity.name: self.binding.shape}
        return batch.with_shapes(batch.from_records(records), shapes, relation=self.binding.relid)
