"""Completes the rows of a block with their position, transaction and provenance, and sorts them as in the log.

A block is a stretch of the database's log that is decoded at once. Its rows are numbered from 0; a row's number is its
place. The rows of a block arrive here as several `Texts`. Each has the keys and JSON objects of the rows that share a
relation and an op. The columns that are added here follow from a row's transaction, its stamp (who made the change),
and its ordinal.

The ordinal of a row is the number of rows and messages before it in its transaction. Each row is published as a record.
The last part of the record's position, the *position ordinal*, is twice the row's ordinal. A row that moves to another
key or partition has two records; the position ordinal of the second one is 1 greater.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from changelog.connectors.capture.rows.binding import Binding
from changelog.connectors.capture.rows.json_columns import Texts
from changelog.connectors.capture.rows.row_records import Change, Origin, Transaction, provenance
from changelog.envelope.codec import json_codec
from changelog.envelope.columnar import batch
from changelog.envelope.columnar.splice import Pool, Segment, splice
from changelog.envelope.model import Op, Record, Stamp
from changelog.envelope.position import Position

Ints = npt.NDArray[np.int64]

_UNIX = datetime(1970, 1, 1, tzinfo=UTC)
_HEX = np.frombuffer(b"0123456789ABCDEF", np.uint8)
_POSITION_LENGTH = len(str(Position(0, 0, 0)))
_NO_STAMP = Stamp(api_version="", service_name="", identifier="")
_NO_TRANSACTION = Transaction(xid=0, name="0", epoch=0, commit=0, committed_at=0)


@dataclass(slots=True, kw_only=True)
class Span:
    """Consecutive rows of one transaction with the same stamp; `rows` is how many there are.

    The assembly adds rows to its last span until the span is encoded.

    The first row has the ordinal `ordinal`, and each further row has the next one. `published` says how much of the
    transaction is in the changelog already: it is the position ordinal of the last published record, or -1 if nothing
    was published.
    """

    transaction: Transaction
    stamp: Stamp | None
    ordinal: int
    rows: int
    published: int = -1


def parted(spans: Sequence[Span], count: int) -> tuple[list[Span], list[Span]]:
    """Splits off the last `count` rows, all of which must be in the last span.

    Returns the spans of the earlier rows, and a list with the one span of the last `count` rows. This list is empty if
    `count` is 0.
    """
    if not count:
        return [*spans], []
    *earlier, last = spans
    rows_before = last.rows - count
    split_off = [replace(last, ordinal=last.ordinal + rows_before, rows=count)]
    return [*earlier, replace(last, rows=rows_before)] if rows_before else earlier, split_off


class Meta:
    """The facts about each row of a block that follow from its span, as arrays with one element for each row.

    - `spans`: the number of the row's span in `span_list`; `span` returns the span with that number.
    - `ordinals`: the row's ordinal.
    - `published`: the position ordinal of the last record of the row's transaction that was published already, or -1.
    - `commits`: the commit of the row's transaction.
    - `stamped`: whether the row has a stamp.
    """

    def __init__(self, spans: Sequence[Span]) -> None:
        self.span_list = spans
        row_counts = [span.rows for span in spans]
        self.spans: Ints = np.repeat(np.arange(len(spans)), row_counts)
        begins = np.cumsum([0, *row_counts])[:-1]
        ordinal_shifts = np.array([span.ordinal for span in spans], np.int64) - begins
        self.ordinals: Ints = np.arange(len(self.spans)) + ordinal_shifts[self.spans]
        self.published = self._spread([span.published for span in spans])
        self.commits = self._spread([span.transaction.commit for span in spans])
        self.stamped: npt.NDArray[np.bool_] = self._spread([span.stamp is not None for span in spans]).astype(bool)

    def _spread(self, values: Sequence[int]) -> Ints:
        """Returns for each row the value of its span; `values` has one for each span."""
        return np.array(values, np.int64)[self.spans]

    def span(self, number: int) -> Span:
        """Returns the span for a number that `spans` contains."""
        return self.span_list[number]

    def change(self, place: int) -> Change:
        """Returns the transaction, the ordinal and the stamp of the row with the number `place`."""
        span = self.span_list[self.spans[place]]
        return Change(transaction=span.transaction, ordinal=int(self.ordinals[place]), stamp=span.stamp)

    def xids(self, places: Ints) -> Ints:
        """Returns the 64-bit transaction ids of the rows with the numbers `places`."""
        return self._spread([span.transaction.xid for span in self.span_list])[places]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Constants:
    """The parts of the provenance JSON that are the same for all rows of one binding and op.

    `source` is the text between the stamp and the position. `tail` is the text after the transaction.
    """

    source: bytes
    tail: bytes


def render(origin: Origin, parts: Sequence[Texts], meta: Meta) -> tuple[pa.RecordBatch, Ints] | None:
    """Returns the rows of all `parts` in the order of the block, and each row's number in the block.

    The rows follow `batch.SCHEMA`. Returns None if there are no parts.
    """
    if not parts:
        return None
    places = np.concatenate([part.places for part in parts])
    part_codes = np.repeat(np.arange(len(parts)), [part.size for part in parts])
    order = None if len(parts) == 1 else np.argsort(places, kind="stable")
    if order is not None:
        places, part_codes = places[order], part_codes[order]
    span_numbers = meta.spans[places]
    stamps, stamp_codes = _stamps(parts, meta, part_codes, span_numbers)
    used_numbers, transaction_codes = np.unique(span_numbers, return_inverse=True)
    transactions = [meta.span(number).transaction for number in used_numbers.tolist()]
    positions = _positions(transactions, transaction_codes, 2 * meta.ordinals[places])

    def joined(name: str) -> pa.Array:
        columns = [getattr(part, name) for part in parts]
        arrays = [
            pa.nulls(part.size, pa.utf8()) if column is None else column
            for part, column in zip(parts, columns, strict=True)
        ]
        all_rows = arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)
        return all_rows if order is None else all_rows.take(pa.array(order))

    partitions = np.concatenate([part.partitions for part in parts if part.partitions is not None])
    count = len(places)
    columns = {
        "entity": _pick([part.binding.entity.name for part in parts], part_codes),
        "partition": pa.array(partitions if order is None else partitions[order], pa.int32()),
        "key": joined("keys"),
        "op": _pick([part.op.value for part in parts], part_codes),
        "position": pa.Array.from_buffers(
            pa.utf8(),
            count,
            [
                None,
                pa.py_buffer(np.arange(0, (count + 1) * _POSITION_LENGTH, _POSITION_LENGTH, dtype=np.int32)),
                pa.py_buffer(positions),
            ],
        ),
        "transaction": _pick([transaction.name for transaction in transactions], transaction_codes),
        "committed_at": pa.array(
            np.array([transaction.committed_at for transaction in transactions], np.int64)[transaction_codes],
            batch.SCHEMA.field("committed_at").type,
        ),
        "api_version": _pick([stamp.api_version for stamp in stamps], stamp_codes),
        "service_name": _pick([stamp.service_name for stamp in stamps], stamp_codes),
        "identifier": _pick([stamp.identifier for stamp in stamps], stamp_codes),
        "provenance": _provenance(
            [_constants(origin, part.binding, part.op) for part in parts],
            part_codes,
            stamps,
            stamp_codes,
            positions,
            transactions,
            transaction_codes,
        ),
        "current": joined("current"),
        "original": joined("original"),
        "moved": pa.nulls(count, pa.utf8()),
        "context": _pick([stamp.context for stamp in stamps], stamp_codes),
    }
    return pa.RecordBatch.from_pydict(columns, batch.SCHEMA), places


def merged(
    rendered: tuple[pa.RecordBatch, Ints] | None, records: Sequence[Record], places: Sequence[int]
) -> tuple[pa.RecordBatch, Ints]:
    """Merges the result of `render` with records that were made one by one, each at a place of `places`.

    Returns the rows in the order of the block, and each row's number in the block.
    """
    if rendered is None:
        return batch.from_records(records), np.array(places, np.int64)
    if not records:
        return rendered
    all_places = np.concatenate([rendered[1], np.array(places, np.int64)])
    order = np.argsort(all_places, kind="stable")
    rows = pa.Table.from_batches([rendered[0], batch.from_records(records)])
    return rows.take(order).combine_chunks().to_batches()[0], all_places[order]


def _pick(values: Sequence[str | None], codes: Ints) -> pa.StringArray:
    """Returns for each row the value whose index in `values` is the row's code."""
    if len(values) == 1:
        return pa.repeat(pa.scalar(values[0], pa.utf8()), len(codes))
    return pa.array(values, pa.utf8()).take(pa.array(codes))


def _stamps(parts: Sequence[Texts], meta: Meta, part_codes: Ints, span_numbers: Ints) -> tuple[list[Stamp], Ints]:
    """Returns the distinct stamps of the rows, and for each row the index of its stamp in them.

    A row without a stamp has the default stamp of its entity.
    """
    objects = {id(span.stamp): span.stamp for span in meta.span_list}
    numbers, span_stamps = {key: number for number, key in enumerate(objects)}, list(objects.values())
    numbers_of_spans = np.array([numbers[id(span.stamp)] for span in meta.span_list], np.int64)
    pairs, pair_codes = np.unique(numbers_of_spans[span_numbers] * len(parts) + part_codes, return_inverse=True)
    indexes: dict[Stamp, int] = {}
    pair_indexes = []
    for pair in pairs.tolist():
        number, part_code = divmod(pair, len(parts))
        stamp = span_stamps[number] or parts[part_code].binding.entity.default_stamp
        pair_indexes.append(indexes.setdefault(stamp, len(indexes)))
    return list(indexes), np.array(pair_indexes, np.int64)[pair_codes]


def _positions(transactions: Sequence[Transaction], codes: Ints, position_ordinals: Ints) -> npt.NDArray[np.uint8]:
    """Returns the texts of the rows' positions, as a matrix of bytes of shape (rows, _POSITION_LENGTH).

    `codes` has the index of each row's transaction in `transactions`.
    """
    texts = np.full((len(codes), _POSITION_LENGTH), ord("/"), np.uint8)
    texts[:, :8] = _hex(np.array([transaction.epoch for transaction in transactions], np.int64)[codes], 8)
    texts[:, 9:25] = _hex(np.array([transaction.commit for transaction in transactions], np.int64)[codes], 16)
    texts[:, 26:] = _hex(position_ordinals, 8)
    return texts


def _hex(numbers: Ints, digits: int) -> npt.NDArray[np.uint8]:
    """Returns the hexadecimal digits of each number, as a matrix of shape (numbers, digits)."""
    texts: npt.NDArray[np.uint8] = _HEX[(numbers[:, None] >> np.arange(4 * digits - 4, -4, -4)) & 15]
    return texts


def _constants(origin: Origin, binding: Binding, op: Op) -> _Constants:
    """Encodes a provenance with an empty stamp and transaction, and cuts out the parts that differ from row to row."""
    change = Change(transaction=_NO_TRANSACTION, ordinal=0, stamp=_NO_STAMP)
    position = change.position()
    text = json_codec.provenance_json(provenance(origin, binding, op, change, position))
    head, tail = text.split(str(position).encode(), 1)
    return _Constants(
        source=head[len(_stamp_text(_NO_STAMP)) :],
        tail=tail[len(_transaction_text(_NO_TRANSACTION)) :],
    )


def _stamp_text(stamp: Stamp) -> bytes:
    encode = msgspec.json.encode
    return b'{"apiVersion":%b,"serviceName":%b,"identifier":%b,%b' % (
        encode(stamp.api_version),
        encode(stamp.service_name),
        encode(stamp.identifier),
        b"" if stamp.context is None else b'"context":%b,' % stamp.context.encode(),
    )


def _transaction_text(transaction: Transaction) -> bytes:
    second, microseconds = divmod(transaction.committed_at, 1_000_000)
    name = msgspec.json.encode(transaction.name)
    return b'","transaction":%b,"committedAt":"%b.%06dZ"' % (name, _second_text(second), microseconds)


@lru_cache(maxsize=1024)
def _second_text(second: int) -> bytes:
    """Returns a time, given in seconds since 1970, as `json_codec` writes it; many transactions share a second."""
    return (_UNIX + timedelta(seconds=second)).replace(tzinfo=None).isoformat(timespec="seconds").encode()


def _provenance(
    constants: Sequence[_Constants],
    part_codes: Ints,
    stamps: Sequence[Stamp],
    stamp_codes: Ints,
    positions: npt.NDArray[np.uint8],
    transactions: Sequence[Transaction],
    transaction_codes: Ints,
) -> pa.StringArray:
    """Returns the provenance JSON of each row, as `json_codec` writes it."""
    pool = Pool(positions.tobytes())
    segments = [
        _segment(pool, [_stamp_text(stamp) for stamp in stamps], stamp_codes),
        _segment(pool, [constant.source for constant in constants], part_codes),
        (np.arange(len(part_codes), dtype=np.int32) * _POSITION_LENGTH, _POSITION_LENGTH),
        _segment(pool, [_transaction_text(transaction) for transaction in transactions], transaction_codes),
        _segment(pool, [constant.tail for constant in constants], part_codes),
    ]
    return splice(pool.buffer(), len(part_codes), segments)


def _segment(pool: Pool, texts: Sequence[bytes], codes: Ints) -> Segment:
    """Adds the texts to the pool. Returns where the text of each row is in the pool. The row's code is the index of its
    text in `texts`.
    """
    start = pool.add(b"".join(texts))
    if len(texts) == 1:
        return start, len(texts[0])
    lengths = np.fromiter(map(len, texts), np.int32, len(texts))
    starts = start + np.cumsum(lengths, dtype=np.int32) - lengths
    return starts[codes], lengths[codes]
