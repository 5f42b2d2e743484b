"""The columns that follow from where rows stand in the log: position, transaction, provenance."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

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
from changelog.envelope.model import Op, Stamp
from changelog.envelope.position import Position

Ints = npt.NDArray[np.int64]

_UNIX = datetime(1970, 1, 1, tzinfo=UTC)
_HEX = np.frombuffer(b"0123456789ABCDEF", np.uint8)
_ORDINAL_SHIFTS = np.arange(28, -4, -4)
_POSITION_LENGTH = len(str(Position(0, 0, 0)))
_NO_STAMP = Stamp(api_version="", service_name="", identifier="")
_NO_TRANSACTION = Transaction(xid=0, epoch=0, commit=0, committed_at=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Rows between two control messages: they share transaction and stamp, and count on from `ordinal`.

    Rows at or before the position ordinal `published` are in the changelog already.
    """

    transaction: Transaction
    stamp: Stamp | None
    ordinal: int
    rows: int
    published: int = -1


def parted(spans: Sequence[Span], count: int) -> tuple[list[Span], list[Span]]:
    """Those spans but for their last `count` rows, which are of one span, and these rows."""
    if not count:
        return [*spans], []
    *whole, last = spans
    before = last.rows - count
    rest = [replace(last, ordinal=last.ordinal + before, rows=count)]
    return [*whole, replace(last, rows=before)] if before else whole, rest


class Meta:
    """The spans of a block, spread over its rows."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self._spans = spans
        counts = [span.rows for span in spans]
        self.spans: Ints = np.repeat(np.arange(len(spans)), counts)
        begins = np.cumsum([0, *counts])[:-1]
        firsts = np.array([span.ordinal for span in spans], np.int64) - begins
        self.ordinals: Ints = np.arange(len(self.spans)) + firsts[self.spans]
        self.published = self._spread([span.published for span in spans])
        self.commits = self._spread([span.transaction.commit for span in spans])
        self.stamped: npt.NDArray[np.bool_] = self._spread([span.stamp is not None for span in spans]).astype(bool)

    def _spread(self, values: Sequence[int]) -> Ints:
        return np.array(values, np.int64)[self.spans]

    @property
    def count(self) -> int:
        """How many spans there are."""
        return len(self._spans)

    def span(self, number: int) -> Span:
        """One of the spans; `spans` has the number of each row's."""
        return self._spans[number]

    def change(self, place: int) -> Change:
        """Where the row at `place` stands."""
        span = self._spans[self.spans[place]]
        return Change(transaction=span.transaction, ordinal=int(self.ordinals[place]), stamp=span.stamp)

    def xids(self, places: Ints) -> Ints:
        """The 64-bit transaction ids of the rows at `places`."""
        return self._spread([span.transaction.xid for span in self._spans])[places]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Constants:
    """The parts of one binding's provenance that do not change from row to row."""

    source: bytes
    tail: bytes


def render(origin: Origin, parts: Sequence[Texts], meta: Meta) -> tuple[pa.RecordBatch, Ints] | None:
    """The rows of all parts in the order of the block, and their places in it; None without rows."""
    if not parts:
        return None
    places = np.concatenate([part.places for part in parts])
    groups = np.repeat(np.arange(len(parts)), [part.size for part in parts])
    order = None if len(parts) == 1 else np.argsort(places, kind="stable")
    if order is not None:
        places, groups = places[order], groups[order]
    spans = meta.spans[places]
    stamps, stamp_codes = _stamps(parts, meta, groups, spans)
    used, transaction_codes = np.unique(spans, return_inverse=True)
    transactions = [meta.span(number).transaction for number in used.tolist()]
    positions = _positions(transactions, transaction_codes, 2 * meta.ordinals[places])

    def joined(name: str) -> pa.Array:
        columns = [getattr(part, name) for part in parts]
        arrays = [
            pa.nulls(part.size, pa.utf8()) if column is None else column
            for part, column in zip(parts, columns, strict=True)
        ]
        whole = arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)
        return whole if order is None else whole.take(pa.array(order))

    partitions = np.concatenate([part.partitions for part in parts if part.partitions is not None])
    count = len(places)
    columns = {
        "entity": _pick([part.binding.entity.name for part in parts], groups),
        "partition": pa.array(partitions if order is None else partitions[order], pa.int32()),
        "key": joined("keys"),
        "op": _pick([part.op.value for part in parts], groups),
        "position": pa.Array.from_buffers(
            pa.utf8(),
            count,
            [
                None,
                pa.py_buffer(np.arange(0, (count + 1) * _POSITION_LENGTH, _POSITION_LENGTH, dtype=np.int32)),
                pa.py_buffer(positions),
            ],
        ),
        "transaction": _pick([str(transaction.xid) for transaction in transactions], transaction_codes),
        "committed_at": pa.array(
            np.array([transaction.committed_at for transaction in transactions], np.int64)[transaction_codes],
            batch.SCHEMA.field("committed_at").type,
        ),
        "api_version": _pick([stamp.api_version for stamp in stamps], stamp_codes),
        "service_name": _pick([stamp.service_name for stamp in stamps], stamp_codes),
        "identifier": _pick([stamp.identifier for stamp in stamps], stamp_codes),
        "provenance": _provenance(
            [_constants(origin, part.binding, part.op) for part in parts],
            groups,
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


def _pick(values: Sequence[str | None], codes: Ints) -> pa.StringArray:
    if len(values) == 1:
        return pa.repeat(pa.scalar(values[0], pa.utf8()), len(codes))
    return pa.array(values, pa.utf8()).take(pa.array(codes))


def _stamps(parts: Sequence[Texts], meta: Meta, groups: Ints, spans: Ints) -> tuple[list[Stamp], Ints]:
    """The distinct stamps, defaults filled in, and for each row the number of its own."""
    numbers: dict[Stamp, int] = {}
    pairs, codes = np.unique(groups * meta.count + spans, return_inverse=True)
    found = []
    for pair in pairs.tolist():
        group, span = divmod(pair, meta.count)
        stamp = meta.span(span).stamp or parts[group].binding.entity.default_stamp
        found.append(numbers.setdefault(stamp, len(numbers)))
    return list(numbers), np.array(found, np.int64)[codes]


def _positions(transactions: Sequence[Transaction], codes: Ints, ordinals: Ints) -> npt.NDArray[np.uint8]:
    """The position texts, a row of bytes each."""
    heads = b"".join(str(Position(each.epoch, each.commit, 0))[:-8].encode() for each in transactions)
    table = np.frombuffer(heads, np.uint8).reshape(len(transactions), _POSITION_LENGTH - 8)
    texts = np.empty((len(codes), _POSITION_LENGTH), np.uint8)
    texts[:, :-8] = table[0] if len(transactions) == 1 else table[codes]
    texts[:, -8:] = _HEX[(ordinals[:, None] >> _ORDINAL_SHIFTS) & 15]
    return texts


def _constants(origin: Origin, binding: Binding, op: Op) -> _Constants:
    """The codec's own text, cut where the changing parts go."""
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
    at = (_UNIX + timedelta(microseconds=transaction.committed_at)).replace(tzinfo=None)
    return f'","transaction":"{transaction.xid}","committedAt":"{at.isoformat(timespec="microseconds")}Z"'.encode()


def _provenance(
    constants: Sequence[_Constants],
    groups: Ints,
    stamps: Sequence[Stamp],
    stamp_codes: Ints,
    positions: npt.NDArray[np.uint8],
    transactions: Sequence[Transaction],
    transaction_codes: Ints,
) -> pa.StringArray:
    pool = Pool(positions.tobytes())
    segments = [
        _segment(pool, [_stamp_text(stamp) for stamp in stamps], stamp_codes),
        _segment(pool, [each.source for each in constants], groups),
        (np.arange(len(groups), dtype=np.int32) * _POSITION_LENGTH, _POSITION_LENGTH),
        _segment(pool, [_transaction_text(each) for each in transactions], transaction_codes),
        _segment(pool, [each.tail for each in constants], groups),
    ]
    return splice(pool.buffer(), len(groups), segments)


def _segment(pool: Pool, texts: Sequence[bytes], codes: Ints) -> Segment:
    """For each row the text that its code numbers."""
    starts = [pool.add(text) for text in texts]
    if len(texts) == 1:
        return starts[0], len(texts[0])
    return np.array(starts, np.int32)[codes], np.array([len(text) for text in texts], np.int32)[codes]
