"""Turns a chunk's rows from COPY's text into columns, and then into changelog rows at a position of the stream."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from changelog.connectors.capture.rows import row_records
from changelog.connectors.capture.rows.binding import Binding
from changelog.connectors.capture.rows.json_columns import Texts
from changelog.connectors.capture.rows.render_rows import Meta, Span, render
from changelog.connectors.capture.rows.row_records import Change, Origin
from changelog.connectors.sources.postgres.decode.columnar import CompiledBinding
from changelog.connectors.sources.postgres.snapshot.copyout import parse_copy, row_values
from changelog.envelope.columnar import batch
from changelog.envelope.model import Op

Mask = npt.NDArray[np.bool_]

_NONE = pa.array([], pa.utf8())


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTable:
    """How to read an entity's table while it has this `signature`.

    `columns` are the published columns, in the order of the binding `bound`. `where` is the entity's row filter.
    `casts` holds, for each column of the `key`, the SQL that converts a canonical text `{}` into a value; it is None if
    a column has no exact conversion. `only` excludes tables that inherit from this one.
    """

    signature: str
    bound: CompiledBinding
    columns: tuple[str, ...]
    where: str | None
    key: tuple[str, ...] = ()
    casts: tuple[str, ...] | None = None
    only: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRows:
    """The rows of a chunk: most of them as columns of texts, the few unusual ones as the server's values.

    `read_at` is when the rows were read, in microseconds since 1970.
    """

    origin: Origin
    bound: CompiledBinding
    texts: Texts
    unusual: Sequence[Sequence[bytes | None]]
    unusual_keys: Sequence[str]
    read_at: int
    nbytes: int

    @classmethod
    def encode(cls, origin: Origin, bound: CompiledBinding, data: bytearray, *, read_at: int) -> "ChunkRows":
        """Encodes the output of COPY as columns, modifying `data` in place.

        Raises ChangelogError (MALFORMED) if the output does not have the expected columns.
        """
        columns = parse_copy(data, bound.binding.width)
        buffer = np.frombuffer(data, np.uint8)
        texts = bound.template.texts(Op.READ, data, buffer, None, columns, np.ones(columns.count, bool))
        unusual = [row_values(data, columns, number) for number in texts.left.tolist()]
        return cls(
            origin=origin,
            bound=bound,
            texts=texts,
            unusual=unusual,
            unusual_keys=[row_records.place(bound.binding, values).key for values in unusual],
            read_at=read_at,
            nbytes=2 * len(data),
        )

    @property
    def numbers(self) -> npt.NDArray[np.int64]:
        """The number of each row in the output of COPY, in the order of `keys`."""
        return np.concatenate([self.texts.places, self.texts.left])

    @property
    def gone(self) -> pa.StringArray:
        """Always empty: these rows were read by their pages, not by their keys, so no requested key can be missing."""
        return _NONE

    @property
    def keys(self) -> pa.StringArray:
        """The entity key of each row, the unusual ones last."""
        unusual = pa.array(self.unusual_keys, pa.utf8())
        return unusual if self.texts.keys is None else pa.concat_arrays([self.texts.keys, unusual])

    def at(self, change: Change, keep: Mask, _delete: Mask | None = None) -> pa.RecordBatch:
        """Returns the rows in the mask `keep`, at positions after `change`, as if its transaction had written them."""
        transaction = replace(change.transaction, committed_at=self.read_at)
        usual = self.texts.size
        texts = self.texts.numbered(np.flatnonzero(keep[:usual]))
        meta = Meta([Span(transaction=transaction, stamp=None, ordinal=change.ordinal + 1, rows=len(keep))])
        rendered = render(self.origin, [texts] if texts.size else [], meta)
        unusual_records = [
            row_records.read(
                self.origin,
                self.bound.binding,
                values,
                Change(transaction=transaction, ordinal=change.ordinal + 1 + texts.size + number, stamp=None),
            )
            for number, values in enumerate(
                values for values, is_kept in zip(self.unusual, keep[usual:].tolist(), strict=True) if is_kept
            )
        ]
        parts = [] if rendered is None else [rendered[0]]
        if unusual_records or not parts:
            parts.append(batch.from_records(unusual_records))
        return combined(parts, self.bound.binding)


def combined(parts: Sequence[pa.RecordBatch], binding: Binding) -> pa.RecordBatch:
    """Joins non-empty parts into one batch, whose metadata describes the columns of the entity."""
    plain = [part.replace_schema_metadata(None) for part in parts]
    whole = plain[0] if len(plain) == 1 else pa.Table.from_batches(plain).combine_chunks().to_batches()[0]
    return batch.with_shapes(whole, {binding.entity.name: binding.shape}, relation=binding.relid)
