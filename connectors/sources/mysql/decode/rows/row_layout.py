"""Finds the rows of an event, and the values of many rows, without a Python object for each value.

A row is a bitmap of its nulls, then the values that are not null, one after another:

    │ nulls │ id: 8 bytes │ 5 │ "hello" │ …          a value of variable size comes after its length
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from changelog.connectors.sources.mysql.decode.rows.value_framing import Framing, framing
from changelog.connectors.sources.mysql.values.batches.raw_columns import Ints, Mask, RawColumn
from changelog.connectors.sources.mysql.values.columns import LogColumn
from changelog.envelope.columnar.splice import Bytes
from changelog.envelope.errors import ChangelogError

_EVENTS_MIN = 32
_ROWS_MAX = 8
"""`starts_in` finds rows only if there are at least _EVENTS_MIN events, with at most _ROWS_MAX rows each."""

Scan = Callable[[bytes, Callable[[int], None]], bool]
"""Takes the bytes of an event's rows, and a function. Calls this function with the offset of each row. Returns false,
or raises IndexError, if `row_images` has to read the rows.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawValues:
    """The values of one column: `raw` has the values that are not null.

    The mask `null` says which values are null; it is None if no value is null.
    """

    raw: RawColumn
    null: Mask | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLayout:
    """How the rows of a table are stored, if they contain all of its columns. An event with such rows has the bitmap
    `every_column`, in which the bits of all columns are set.
    """

    frames: tuple[Framing, ...]
    nullable: tuple[bool, ...]
    scan: Scan
    every_column: bytes

    @classmethod
    def of(cls, columns: Sequence[LogColumn]) -> "RowLayout | None":
        """Returns the layout of a table; None if it has a column whose values are never in rows, such as an array."""
        try:
            frames = tuple(framing(column) for column in columns)
        except ChangelogError:
            return None
        nullable = tuple(column.nullable for column in columns)
        every_column = ((1 << len(frames)) - 1).to_bytes((len(frames) + 7) // 8, "little")
        return cls(frames=frames, nullable=nullable, scan=_compiled(frames, nullable), every_column=every_column)

    def starts(self, body: bytes) -> list[int]:
        """Returns the offset of each row of an event.

        Returns an empty list if `row_images` has to read the rows, because they are malformed, or because a column that
        is not nullable has a null.
        """
        starts: list[int] = []
        try:
            return starts if self.scan(body, starts.append) else []
        except IndexError:
            return []

    def starts_in(self, octets: Bytes, begins: Ints, sizes: Ints) -> Ints | None:
        """Takes many events with few rows each. Returns where each row begins in the joined rows of all events.

        The rows of an event are `sizes` bytes of `octets` from `begins` on. After the last row, `octets` must have
        `PADDING_BYTES` more bytes. Returns None if `starts` has to find the rows: if there are few events, or if an
        event has many or unusual rows.
        """
        if len(begins) < _EVENTS_MIN:
            return None
        shifts, limits = np.cumsum(sizes) - sizes - begins, begins + sizes
        numbers, at, rounds = np.arange(len(begins)), begins, list[tuple[Ints, Ints]]()
        while len(numbers):
            rounds.append((numbers, at + shifts[numbers]))
            at = self._ends(octets, at, limits[numbers])
            if len(rounds) > _ROWS_MAX or (at < 0).any():
                return None
            more = at < limits[numbers]
            numbers, at = numbers[more], at[more]
        if len(rounds) == 1:
            return rounds[0][1]
        order = np.argsort(np.concatenate([numbers for numbers, _ in rounds]), kind="stable")
        ordered: Ints = np.concatenate([starts for _, starts in rounds])[order]
        return ordered

    def _ends(self, octets: Bytes, rows: Ints, limits: Ints) -> Ints:
        """Returns where each row ends; -1 for an unusual row, and for a row that goes beyond its limit (where its
        event's rows end).
        """
        null_bytes = (len(self.frames) + 7) // 8
        at, is_wrong = rows + null_bytes, rows + null_bytes > limits
        rows = np.where(is_wrong, 0, rows)
        fixed = 0
        for place, (frame, nullable) in enumerate(zip(self.frames, self.nullable, strict=True)):
            null = (octets[rows + place // 8] >> place % 8 & 1).astype(bool)
            if not nullable:
                is_wrong |= null
            if not frame.prefix and not nullable:
                fixed += frame.size
                continue
            size: Ints | int = frame.size
            if frame.prefix:
                at, fixed = at + fixed, 0
                is_wrong |= at > limits
                at = np.minimum(at, limits)
                raw = RawColumn(octets=octets, starts=at, lengths=at)
                size = frame.prefix + raw.unsigned(frame.prefix).astype(np.int64)
            at = at + (np.where(null, 0, size) if nullable else size)
        at += fixed
        return np.where(is_wrong | (at > limits), -1, at)

    def values(self, octets: Bytes, rows: Ints) -> Iterator[RawValues]:
        """Yields the values of each column. `rows` has the offsets in `octets` of rows that `starts` or `starts_in`
        found.
        """
        begins = rows + (len(self.frames) + 7) // 8
        for place, (frame, nullable) in enumerate(zip(self.frames, self.nullable, strict=True)):
            null = (octets[rows + place // 8] >> place % 8 & 1).astype(bool) if nullable else None
            if null is not None and not null.any():
                null = None
            present = None if null is None else np.flatnonzero(~null)
            starts = begins if present is None else begins[present]
            raw = _framed(octets, starts, frame)
            yield RawValues(raw=raw, null=null)
            if present is None:
                begins = raw.starts + raw.lengths
            else:
                begins[present] = raw.starts + raw.lengths


def _framed(octets: Bytes, starts: Ints, frame: Framing) -> RawColumn:
    if not frame.prefix:
        return RawColumn(octets=octets, starts=starts, lengths=np.full(len(starts), frame.size, np.int64))
    lengths = RawColumn(octets=octets, starts=starts, lengths=starts).unsigned(frame.prefix).astype(np.int64)
    return RawColumn(octets=octets, starts=starts + frame.prefix, lengths=lengths)


def _compiled(frames: Sequence[Framing], nullable: Sequence[bool]) -> Scan:
    """Compiles a function that finds the rows of one table.

    Each row begins where the row before it ends, so a loop must go from row to row. The loop has only the operations
    that this table needs: one addition for all columns that have a fixed size and are not nullable, and a few
    operations for each other column.
    """
    null_bytes = (len(frames) + 7) // 8
    never = sum(1 << place for place, may_be_null in enumerate(nullable) if not may_be_null)
    lines, fixed = [], null_bytes
    for place, (frame, may_be_null) in enumerate(zip(frames, nullable, strict=True)):
        if not frame.prefix and not may_be_null:
            fixed += frame.size
            continue
        length = " + ".join(f"(body[at + {fixed + byte}] << {8 * byte})" for byte in range(frame.prefix))
        step = f"at += {frame.prefix} + {length}" if frame.prefix else f"at += {frame.size}"
        lines.append(f"if not nulls & {1 << place}: {step}" if may_be_null else step)
    bitmap = " | ".join(f"body[at + {byte}] << {8 * byte}" for byte in range(null_bytes))
    source = "\n".join(
        [
            "def scan(body, report):",
            "    at, end = 0, len(body)",
            "    while at < end:",
            "        report(at)",
            f"        nulls = {bitmap}",
            f"        if nulls & {never}: return False",
            *(f"        {line}" for line in lines),
            f"        at += {fixed}",
            "    return at == end",
        ]
    )
    namespace: dict[str, Scan] = {}
    exec(source, namespace)
    return namespace["scan"]
