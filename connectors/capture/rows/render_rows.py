"""Adds to the rows of a block their positions, transactions and provenance, and sorts the rows in the log's order.

A block is a stretch of the database's log that is decoded at once. Its rows are numbered from 0; a row's number is its
place. The rows of a block arrive here as several `JsonRows`. Each has the keys and JSON objects of the rows of one
table with the same op (the kind of change). This module adds the columns that depend on a row's transaction, on its
stamp (who made the change), or on its ordinal. A *span* is a run of rows with the same transaction and stamp.

The ordinal of a row is the number of rows and messages before it in its transaction. Each row is published as a record.
The last part of the record's position, the *position ordinal*, is twice the row's ordinal. A row that moves to another
key or partition has two records; the position ordinal of the second one is 1 greater.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from changelog.connectors.capture.rows.binding import Binding
from changelog.connectors.capture.rows.json_columns import JsonRows
from changelog.connectors.capture.rows.row_records import Change, Origin, Transaction, provenance
from changelog.connectors.capture.rows.spans import Meta, SpanColumns
from changelog.envelope.codec import json_codec
from changelog.envelope.columnar import batch
from changelog.envelope.columnar.splice import Pool, Segment, splice
from changelog.envelope.model import Op, Record, Stamp
from changelog.envelope.position import Position

Ints = npt.NDArray[np.int64]

_UNIX = datetime(1970, 1, 1, tzinfo=UTC)
_HEX_PAIRS = np.frombuffer(b"".join(b"%02X" % number for number in range(256)), np.uint16)
_THREE_DIGITS = np.array([b"%03d" % number for number in range(1000)])
_POSITION_LENGTH = len(str(Position(0, 0, 0)))
_NO_STAMP = Stamp(api_version="", service_name="", identifier="")
_BEFORE_NAME, _BEFORE_TIME = b'","transaction":"', b'","committedAt":"'
_TIME_LENGTH = len(_BEFORE_TIME) + len("2026-01-01T00:00:00.000000Z") + 1
"""`_BEFORE_NAME` is the JSON before a transaction's name, and `_BEFORE_TIME` the JSON between the name and the time of
the commit. `_TIME_LENGTH` is the length of `_BEFORE_TIME`, the time, and the quote after the time.
"""
_NO_TRANSACTION = Transaction(xid=0, name="0", epoch=0, commit=0, committed_at=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Constants:
    """The parts of the provenance JSON that are the same for all rows of one binding and op.

    `source` is the text between the stamp and the position. `tail` is the text after the time of the commit.
    """

    source: bytes
    tail: bytes


def render(origin: Origin, parts: Sequence[JsonRows], meta: Meta) -> tuple[pa.RecordBatch, Ints] | None:
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
    spans, codes = meta.columns, meta.spans[places]
    stamps, stamp_codes = _stamps(parts, spans, part_codes, codes)
    positions = _positions(spans.epochs[codes], spans.commits[codes], 2 * meta.ordinals[places])

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
        "transaction": _take(spans.names, codes),
        "committed_at": pa.array(spans.committed_at[codes], batch.SCHEMA.field("committed_at").type),
        "api_version": _pick([stamp.api_version for stamp in stamps], stamp_codes),
        "service_name": _pick([stamp.service_name for stamp in stamps], stamp_codes),
        "identifier": _pick([stamp.identifier for stamp in stamps], stamp_codes),
        "provenance": _provenance(
            [_constants(origin, part.binding, part.op) for part in parts],
            part_codes,
            stamps,
            stamp_codes,
            positions,
            spans,
            codes,
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
    """Merges the result of `render` with records that were made one by one; `places` has the place of each record.

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
    return _take(pa.array(values, pa.utf8()), codes)


def _take(values: pa.StringArray, codes: Ints) -> pa.StringArray:
    """Returns for each row the value whose index in `values` is the row's code."""
    if len(values) == 1:
        return pa.repeat(values[0], len(codes))
    return values if np.array_equal(codes, np.arange(len(values))) else values.take(pa.array(codes))


def _stamps(parts: Sequence[JsonRows], spans: SpanColumns, part_codes: Ints, codes: Ints) -> tuple[list[Stamp], Ints]:
    """Returns the distinct stamps of the rows, and for each row the index of its stamp among these.

    A row without a stamp has the default stamp of its entity. `codes` has the number of each row's span.
    """
    objects = {id(stamp): stamp for stamp in spans.stamps or [None]}
    numbers, span_stamps = {key: number for number, key in enumerate(objects)}, list(objects.values())
    pairs = part_codes
    if spans.stamps is not None and len(span_stamps) > 1:
        pairs = pairs + len(parts) * np.array([numbers[id(stamp)] for stamp in spans.stamps], np.int64)[codes]
    used_pairs = np.flatnonzero(np.bincount(pairs))
    indexes: dict[Stamp, int] = {}
    pair_indexes = np.zeros(int(used_pairs[-1]) + 1, np.int64)
    for pair in used_pairs.tolist():
        number, part_code = divmod(pair, len(parts))
        stamp = span_stamps[number] or parts[part_code].binding.entity.default_stamp
        pair_indexes[pair] = indexes.setdefault(stamp, len(indexes))
    return list(indexes), pair_indexes[pairs]


def _positions(epochs: Ints, commits: Ints, position_ordinals: Ints) -> npt.NDArray[np.uint8]:
    """Returns the rows' positions as text, in a matrix of bytes of shape (rows, _POSITION_LENGTH)."""
    texts = np.full((len(epochs), _POSITION_LENGTH), ord("/"), np.uint8)
    texts[:, :8] = _hex(epochs, 8)
    texts[:, 9:25] = _hex(commits, 16)
    texts[:, 26:] = _hex(position_ordinals, 8)
    return texts


def _hex(numbers: Ints, digits: int) -> npt.NDArray[np.uint8]:
    """Returns `digits` (8 or 16) hexadecimal digits of each number, as a matrix of shape (numbers, digits)."""
    octets = numbers.astype(f">u{digits // 2}").view(np.uint8).reshape(-1, digits // 2)
    texts: npt.NDArray[np.uint8] = _HEX_PAIRS[octets].view(np.uint8)
    return texts


def _constants(origin: Origin, binding: Binding, op: Op) -> _Constants:
    """Encodes a provenance with an empty stamp and transaction, and cuts out the parts that differ from row to row."""
    change = Change(transaction=_NO_TRANSACTION, ordinal=0, stamp=_NO_STAMP)
    position = change.position()
    text = json_codec.provenance_json(provenance(origin, binding, op, change, position))
    head, tail = text.split(str(position).encode(), 1)
    return _Constants(
        source=head[len(_stamp_text(_NO_STAMP)) :],
        tail=tail[len(_BEFORE_NAME) + len(_NO_TRANSACTION.name) + _TIME_LENGTH :],
    )


def _stamp_text(stamp: Stamp) -> bytes:
    encode = msgspec.json.encode
    return b'{"apiVersion":%b,"serviceName":%b,"identifier":%b,%b' % (
        encode(stamp.api_version),
        encode(stamp.service_name),
        encode(stamp.identifier),
        b"" if stamp.context is None else b'"context":%b,' % stamp.context.encode(),
    )


@lru_cache(maxsize=1024)
def _second_text(second: int) -> bytes:
    """Returns a time, in seconds since 1970, as `json_codec` writes it. Cached: many transactions share a second."""
    return (_UNIX + timedelta(seconds=second)).replace(tzinfo=None).isoformat(timespec="seconds").encode()


def _times(committed_at: Ints) -> npt.NDArray[np.uint8]:
    """Returns the JSON between each transaction's name and the tail: a matrix of shape (transactions, _TIME_LENGTH)."""
    seconds, microseconds = np.divmod(committed_at, 1_000_000)
    distinct, codes = np.unique(seconds, return_inverse=True)
    second_texts = np.array([_BEFORE_TIME + _second_text(second) + b'.000000Z"' for second in distinct.tolist()])
    texts: npt.NDArray[np.uint8] = second_texts[codes].view(np.uint8).reshape(-1, _TIME_LENGTH)
    texts[:, -8:-2] = _THREE_DIGITS[np.stack(np.divmod(microseconds, 1000), axis=1)].view(np.uint8)
    return texts


def _json_texts(texts: pa.StringArray) -> tuple[Ints, bytes]:
    """Encodes the texts as JSON strings, without quotes, and joins them. Returns offsets and the joined JSON. The
    offsets are the start of each text in the joined JSON, and the end of the last one.
    """
    _, offsets, data = texts.buffers()
    bounds = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1].astype(np.int64)
    octets = np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]] if data is not None else np.empty(0, np.uint8)
    if ((octets < ord(" ")) | (octets == ord('"')) | (octets == ord("\\"))).any():
        encoded = [msgspec.json.encode(text)[1:-1] for text in texts.to_pylist()]
        return np.cumsum([0, *map(len, encoded)]), b"".join(encoded)
    return bounds - bounds[0], octets.tobytes()


def _provenance(
    constants: Sequence[_Constants],
    part_codes: Ints,
    stamps: Sequence[Stamp],
    stamp_codes: Ints,
    positions: npt.NDArray[np.uint8],
    spans: SpanColumns,
    codes: Ints,
) -> pa.StringArray:
    """Returns the provenance JSON of each row, as `json_codec` writes it. `codes` has the number of each row's span."""
    count, length = len(codes), _POSITION_LENGTH + len(_BEFORE_NAME)
    before_names = np.empty((count, length), np.uint8)
    before_names[:, :_POSITION_LENGTH] = positions
    before_names[:, _POSITION_LENGTH:] = np.frombuffer(_BEFORE_NAME, np.uint8)
    pool = Pool(before_names.tobytes())
    bounds, names = _json_texts(spans.names)
    name_start, time_start = pool.add(names), pool.add(_times(spans.committed_at).tobytes())
    segments = [
        _segment(pool, [_stamp_text(stamp) for stamp in stamps], stamp_codes),
        _segment(pool, [constant.source for constant in constants], part_codes),
        (np.arange(count, dtype=np.int32) * length, length),
        ((name_start + bounds[:-1])[codes].astype(np.int32), np.diff(bounds)[codes].astype(np.int32)),
        ((time_start + codes * _TIME_LENGTH).astype(np.int32), _TIME_LENGTH),
        _segment(pool, [constant.tail for constant in constants], part_codes),
    ]
    return splice(pool.buffer(), count, segments)


def _segment(pool: Pool, texts: Sequence[bytes], codes: Ints) -> Segment:
    """Adds the texts to the pool, and returns where each row's text is in the pool.

    `codes` has the index in `texts` of each row's text.
    """
    start = pool.add(b"".join(texts))
    if len(texts) == 1:
        return start, len(texts[0])
    lengths = np.fromiter(map(len, texts), np.int32, len(texts))
    starts = start + np.cumsum(lengths, dtype=np.int32) - lengths
    return starts[codes], lengths[codes]
