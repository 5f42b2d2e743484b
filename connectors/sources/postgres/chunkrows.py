"""A chunk's rows: from COPY's text to columns, and from there to rows of the changelog at a place in the stream."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import psycopg
import pyarrow as pa
from psycopg import sql

from connectors.sources.postgres import rows
from connectors.sources.postgres.binding import Binding
from connectors.sources.postgres.columnar import Bound
from connectors.sources.postgres.objects import Columns, Texts
from connectors.sources.postgres.rendering import Meta, Span, render
from connectors.sources.postgres.rows import Change, Origin, Transaction
from envelope import batch
from envelope.errors import ChangelogError, Kind
from envelope.model import Op
from envelope.splice import INLINE

Mask = npt.NDArray[np.bool_]
Connection = psycopg.Connection[tuple[Any, ...]]

CHUNK_BYTES_MAX = 32 << 20
"""Text of one chunk; one that is larger is given back and read in smaller parts, down to one page or key."""

_OFFSET_MAX = 2**31 - 1
_NONE = pa.array([], pa.utf8())
_ESCAPES = re.compile(rb"\\(.)", re.DOTALL)
_ESCAPED = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTable:
    """How one entity's table is read while its columns are those of `signature`: its binding and, in the same

    order, its columns. `casts` are, for each column of the `key`, the SQL that makes its value of a canonical text
    `{}`, None where that cannot be told; `only` says that tables that inherit from it are not of it.
    """

    signature: str
    bound: Bound
    columns: tuple[str, ...]
    where: str | None
    key: tuple[str, ...] = ()
    casts: tuple[str, ...] | None = None
    only: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRows:
    """A chunk's rows: most as columns of texts, the few unusual ones as the server's values.

    `read_at` is the time of reading, in microseconds since 1970.
    """

    origin: Origin
    bound: Bound
    texts: Texts
    unusual: Sequence[Sequence[bytes | None]]
    unusual_keys: Sequence[str]
    read_at: int
    nbytes: int

    @classmethod
    def encode(cls, origin: Origin, bound: Bound, copied: Sequence[bytes], *, read_at: int) -> "ChunkRows":
        """The rows that COPY gave, as columns. Raises ChangelogError (MALFORMED) when they are not as asked for."""
        data, columns = parse_copy(copied, bound.binding.width)
        buffer = np.frombuffer(data, np.uint8)
        texts = bound.template.texts(Op.READ, data, buffer, None, columns, np.ones(len(copied), bool))
        unusual = [row_values(data, columns, number) for number in texts.left.tolist()]
        return cls(
            origin=origin,
            bound=bound,
            texts=texts,
            unusual=unusual,
            unusual_keys=[rows.place(bound.binding, values).key for values in unusual],
            read_at=read_at,
            nbytes=2 * len(data),
        )

    @property
    def numbers(self) -> npt.NDArray[np.int64]:
        """Which of the copied rows each is."""
        return np.concatenate([self.texts.places, self.texts.left])

    @property
    def gone(self) -> pa.StringArray:
        """None: all that a range holds was read."""
        return _NONE

    @property
    def keys(self) -> pa.StringArray:
        """The entity key of each row, the unusual ones last."""
        unusual = pa.array(self.unusual_keys, pa.utf8())
        return unusual if self.texts.keys is None else pa.concat_arrays([self.texts.keys, unusual])

    def at(self, change: Change, keep: Mask, _delete: Mask | None = None) -> pa.RecordBatch:
        """The rows to keep, behind `change`, as if its transaction had held them."""
        transaction = Transaction(
            xid=change.transaction.xid,
            epoch=change.transaction.epoch,
            commit=change.transaction.commit,
            committed_at=self.read_at,
        )
        usual = self.texts.size
        texts = self.texts.numbered(np.flatnonzero(keep[:usual]))
        meta = Meta([Span(transaction=transaction, stamp=None, ordinal=change.ordinal + 1, rows=len(keep))])
        found = render(self.origin, [texts] if texts.size else [], meta)
        others = [
            rows.read(
                self.origin,
                self.bound.binding,
                values,
                Change(transaction=transaction, ordinal=change.ordinal + 1 + texts.size + number, stamp=None),
            )
            for number, values in enumerate(
                values for values, kept in zip(self.unusual, keep[usual:].tolist(), strict=True) if kept
            )
        ]
        parts = [] if found is None else [found[0]]
        if others or not parts:
            parts.append(batch.from_records(others))
        return combined(parts, self.bound.binding)


def combined(parts: Sequence[pa.RecordBatch], binding: Binding) -> pa.RecordBatch:
    """The rows of the parts, of which each has some, as one batch that says how they are shaped."""
    plain = [part.replace_schema_metadata(None) for part in parts]
    whole = plain[0] if len(plain) == 1 else pa.Table.from_batches(plain).combine_chunks().to_batches()[0]
    return batch.with_shapes(whole, {binding.entity.name: binding.shape}, relation=binding.relid)


def copy_rows(reading: Connection, query: sql.Composed, *, single: bool) -> list[bytes] | None:
    """What a COPY to STDOUT gives, a row each; None when it is too large to hold, unless it is of a `single` part."""
    found: list[bytes] = []
    room = CHUNK_BYTES_MAX
    with reading.cursor() as cursor, cursor.copy(query) as copy:
        for row in copy:
            found.append(bytes(row))
            room -= len(row)
            if room < 0 and not single:
                return None
    return found


def parse_copy(copied: Sequence[bytes], width: int) -> tuple[bytes, Columns]:
    """Rows in COPY's text format (SQL-COPY, *Text Format*) as slices of one buffer, padded for `splice`.

    Values with escapes are unescaped behind the rows' own bytes.
    """
    data = b"".join([*copied, bytes(INLINE)])
    buffer = np.frombuffer(data, np.uint8)[: len(data) - INLINE]
    ends = np.flatnonzero((buffer == ord("\t")) | (buffer == ord("\n")))
    if len(ends) != width * len(copied):
        raise ChangelogError(Kind.MALFORMED, f"COPY gave {len(ends)} values where {width} columns were asked for")
    starts = np.concatenate([[0], ends[:-1] + 1])[: len(ends)]
    lengths = ends - starts
    escapes = np.flatnonzero(buffer == ord("\\"))
    null = np.zeros(len(starts), bool)
    if len(escapes):
        touched = np.unique(np.searchsorted(ends, escapes))
        null[touched] = (lengths[touched] == 2) & (buffer[starts[touched] + 1] == ord("N"))
        parts, length = [data], len(data)
        for number in touched[~null[touched]].tolist():
            text = _unescaped(data[starts[number] : ends[number]])
            starts[number], lengths[number] = length, len(text)
            parts.append(text)
            length += len(text)
        data = b"".join([*parts, bytes(INLINE)])
    if len(data) > _OFFSET_MAX:
        what = f"the rows of one page hold {len(data)} bytes of text, and {_OFFSET_MAX} can be read at once"
        raise ChangelogError(Kind.LIMIT, what, hint="spread these rows: UPDATE some of them, then VACUUM the table")
    lengths[null] = 0
    shape = (len(copied), width)
    columns = Columns(
        starts=starts.astype(np.int32).reshape(shape).T,
        lengths=lengths.astype(np.int32).reshape(shape).T,
        null=null.reshape(shape).T,
    )
    return data, columns


def _unescaped(text: bytes) -> bytes:
    return _ESCAPES.sub(lambda match: _ESCAPED.get(match[1], match[1]), text)


def row_values(data: bytes, columns: Columns, number: int) -> list[bytes | None]:
    """The values of one row as the server prints them."""
    return [
        None if null else data[start : start + length]
        for start, length, null in zip(
            columns.starts[:, number].tolist(),
            columns.lengths[:, number].tolist(),
            columns.null[:, number].tolist(),
            strict=True,
        )
    ]
