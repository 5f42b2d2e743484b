"""A chunk's rows: from COPY's text to columns, and from there to rows of the changelog at a place in the stream."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from connectors.capture.rows import row_records
from connectors.capture.rows.binding import Binding
from connectors.capture.rows.json_columns import Texts
from connectors.capture.rows.render_rows import Meta, Span, render
from connectors.capture.rows.row_records import Change, Origin, Transaction
from connectors.sources.postgres.decode.columnar import CompiledBinding
from connectors.sources.postgres.snapshot.copyout import parse_copy, row_values
from envelope.columnar import batch
from envelope.model import Op

Mask = npt.NDArray[np.bool_]

_NONE = pa.array([], pa.utf8())


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTable:
    """How one entity's table is read while its columns are those of `signature`: its binding and, in the same

    order, its columns. `casts` are, for each column of the `key`, the SQL that makes its value of a canonical text
    `{}`, None where that cannot be told; `only` says that tables that inherit from it are not of it.
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
    """A chunk's rows: most as columns of texts, the few unusual ones as the server's values.

    `read_at` is the time of reading, in microseconds since 1970.
    """

    origin: Origin
    bound: CompiledBinding
    texts: Texts
    unusual: Sequence[Sequence[bytes | None]]
    unusual_keys: Sequence[str]
    read_at: int
    nbytes: int

    @classmethod
    def encode(cls, origin: Origin, bound: CompiledBinding, copied: bytearray, *, read_at: int) -> "ChunkRows":
        """The rows that COPY gave, as columns. Raises ChangelogError (MALFORMED) when they are not as asked for.

        `copied` is worked on in place.
        """
        columns = parse_copy(copied, bound.binding.width)
        buffer = np.frombuffer(copied, np.uint8)
        texts = bound.template.texts(Op.READ, copied, buffer, None, columns, np.ones(columns.count, bool))
        unusual = [row_values(copied, columns, number) for number in texts.left.tolist()]
        return cls(
            origin=origin,
            bound=bound,
            texts=texts,
            unusual=unusual,
            unusual_keys=[row_records.place(bound.binding, values).key for values in unusual],
            read_at=read_at,
            nbytes=2 * len(copied),
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
            row_records.read(
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
