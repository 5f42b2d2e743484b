"""Keeps rows that were read from a table, already encoded as keys and JSON, until they become rows of the changelog."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from changelog.connectors.capture.rows import row_records
from changelog.connectors.capture.rows.binding import Binding
from changelog.connectors.capture.rows.json_columns import CompiledBinding, JsonRows
from changelog.connectors.capture.rows.render_rows import render
from changelog.connectors.capture.rows.row_change import Value
from changelog.connectors.capture.rows.row_records import Change, Origin, Transaction
from changelog.connectors.capture.rows.spans import Meta, Span
from changelog.connectors.capture.rows.text_columns import Data, TextColumns
from changelog.connectors.capture.tables.ghost_rows import deleted
from changelog.connectors.capture.tables.key_lookup import Ghost
from changelog.envelope.columnar import batch
from changelog.envelope.model import Op

Mask = npt.NDArray[np.bool_]

_NONE = pa.array([], pa.utf8())


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRows:
    """The rows of a chunk: a part of a table that was read at once.

    `texts` has the keys and JSON of most rows. `unusual` has the values, as the server printed them, of the few rows
    that `Template.texts` did not encode (`texts.other_places`). `read_at` is when the rows were read, in microseconds
    since 1970.
    """

    origin: Origin
    bound: CompiledBinding
    texts: JsonRows
    unusual: Sequence[Sequence[Value]]
    unusual_keys: Sequence[str]
    read_at: int
    nbytes: int

    @classmethod
    def encode(
        cls, origin: Origin, bound: CompiledBinding, data: Data, columns: TextColumns, *, read_at: int
    ) -> "ChunkRows":
        """Encodes rows. `columns` says where their values are in `data`, which ends with `INLINE` bytes of padding."""
        buffer = np.frombuffer(data, np.uint8)
        texts = bound.template.texts(Op.READ, data, buffer, None, columns, np.ones(columns.count, bool))
        unusual = [columns.row(data, number) for number in texts.other_places.tolist()]
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
        """For each row, in the order of `keys`: its number in the `columns` from which `encode` made it."""
        return np.concatenate([self.texts.places, self.texts.other_places])

    @property
    def gone(self) -> pa.StringArray:
        """Always empty: these rows were not read by their keys, so no requested key can be missing."""
        return _NONE

    @property
    def keys(self) -> pa.StringArray:
        """The entity key of each row. The keys of unusual rows come last."""
        unusual = pa.array(self.unusual_keys, pa.utf8())
        return unusual if self.texts.keys is None else pa.concat_arrays([self.texts.keys, unusual])

    def at(self, change: Change, keep: Mask, _delete: Mask | None = None) -> pa.RecordBatch:
        """Returns the rows that `keep` selects, as rows of `change.transaction` at positions after `change`. Their
        commit time is the time at which they were read.
        """
        transaction = change.transaction._replace(committed_at=self.read_at)
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
    """Joins non-empty parts into one batch. The batch's metadata describes the columns of the entity."""
    plain = [part.replace_schema_metadata(None) for part in parts]
    whole = plain[0] if len(plain) == 1 else pa.Table.from_batches(plain).combine_chunks().to_batches()[0]
    return batch.with_shapes(whole, {binding.entity.name: binding.shape}, relation=binding.relid)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedRows:
    """The rows that a table has for the requested keys.

    Some requested keys come from the changelog, and the table may no longer have them. For each of these, `ghosts`
    holds the changelog's last row.
    """

    origin: Origin
    rows: ChunkRows
    requested: pa.StringArray
    ghosts: Mapping[str, Ghost]

    @property
    def nbytes(self) -> int:
        """The size of the rows and ghosts in memory."""
        return self.rows.nbytes + sum(ghost.nbytes for ghost in self.ghosts.values())

    @property
    def keys(self) -> pa.StringArray:
        """The entity key of each row of the table."""
        return self.rows.keys

    @property
    def gone(self) -> pa.StringArray:
        """The requested keys that are not in the table."""
        return self.requested.filter(pc.invert(pc.is_in(self.requested, self.keys)))

    def at(self, change: Change, keep: Mask, delete: Mask) -> pa.RecordBatch:
        """See `windows.WindowRows`. For a key that is in neither the table nor `ghosts`, no row is returned.

        For a key in `ghosts`, only a delete can be returned. If the table has the key after all, nothing is returned
        for it, because the changelog already has the row.
        """
        ordinary_keys = [key for key in self.requested.to_pylist() if key not in self.ghosts]
        ordinary = pc.is_in(self.keys, pa.array(ordinary_keys, pa.utf8())).to_numpy(zero_copy_only=False)
        published = keep & ordinary
        reads = self.rows.at(change, published, np.zeros(0, bool))
        deleted_ghosts = [
            ghost
            for key, is_deleted in zip(self.gone.to_pylist(), delete.tolist(), strict=True)
            if is_deleted and (ghost := self.ghosts.get(key)) is not None
        ]
        if not deleted_ghosts:
            return reads
        transaction = change.transaction._replace(committed_at=self.rows.read_at)
        binding, count = self.rows.bound.binding, len(published)
        deletes = batch.from_records(
            [
                deleted(self.origin, binding, ghost, _after(change, transaction, count + number))
                for number, ghost in enumerate(deleted_ghosts)
            ]
        )
        return combined([reads, deletes], binding)


def _after(change: Change, transaction: Transaction, count: int) -> Change:
    return Change(transaction=transaction, ordinal=change.ordinal + 1 + count, stamp=None)
