"""Turns a block of raw row messages into changelog columns, without an object for each value. This is the hot path.

With numpy, a block is scanned column by column. The scan finds where each value begins and how long it is. The rows'
JSON is then joined from these slices of the raw bytes and a few constants. Unusual rows go through `row_records`
instead, one by one:
- rows that move to another key or partition
- rows with a value that the database's log lacks
- rows at which an entity's policy may stop the stream

The output must be the same as if `row_records` had encoded all rows.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from changelog.connectors.capture.assembly.assembled import EncodedRows
from changelog.connectors.capture.rows import row_records
from changelog.connectors.capture.rows.binding import Binding
from changelog.connectors.capture.rows.json_columns import CompiledBinding, JsonRows
from changelog.connectors.capture.rows.render_rows import merged, render
from changelog.connectors.capture.rows.row_change import Delete, Insert, Update
from changelog.connectors.capture.rows.row_records import Origin
from changelog.connectors.capture.rows.spans import Meta, Spans
from changelog.connectors.capture.rows.text_columns import TextColumns
from changelog.connectors.sources.postgres.decode import pgoutput
from changelog.connectors.sources.postgres.decode.messages import Decoded, Truncate
from changelog.envelope.columnar.splice import Bytes
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Op, Record

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

FEW_ROWS = 32
"""If a block has at most this many rows of a relation, they are encoded one by one, because this costs less."""

_INSERT, _UPDATE, _DELETE, _TRUNCATE = b"IUDT"
_NEW, _OLD = b"NO"
_SHORTEST = 6  # bytes: the kind, the relation and the kind of the tuple that follows
_TEXT, _NULL, _UNCHANGED = b"tnu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Consecutive row messages (insert, update, delete, truncate), and the spans that they belong to.

    A span is a run of rows between two control messages; its rows have the same transaction and the same stamp.
    `data` ends with `changelog.envelope.columnar.splice.INLINE` bytes of padding; message i is
    `data[starts[i]:ends[i]]`.
    """

    data: bytes
    starts: Ints
    ends: Ints
    spans: Spans


def encode(origin: Origin, bound: Mapping[int, CompiledBinding], block: Block) -> EncodedRows:
    """Encodes one block as changelog rows, ignoring relations that are not in `bound`.

    If an entity's policy is to stop at a row, the result holds the error, and later rows may be missing. Raises
    ChangelogError (MALFORMED) if the bytes are not valid pgoutput messages.
    """
    scan = _Scan(block)
    parts: list[JsonRows] = []
    plain = np.zeros(len(scan.kinds), bool)
    unstamped: Counter[str] = Counter()
    for relid in np.unique(scan.relids[scan.live]).tolist():
        if relid in bound:
            of_relation = scan.live & (scan.relids == relid)
            fast_parts, slow_places = _relation(scan, bound[relid], np.flatnonzero(of_relation))
            parts += fast_parts
            plain[slow_places] = True
            entity = bound[relid].binding.entity
            if entity.missing_stamp == "warn" and (missing := int(np.count_nonzero(of_relation & ~scan.meta.stamped))):
                unstamped[entity.name] += missing
    plain |= scan.live & (scan.kinds == _TRUNCATE)
    records, places, stop = _plain(origin, bound, scan, np.flatnonzero(plain))
    fast = render(origin, [part for part in parts if part.size], scan.meta)
    rows, at = merged(fast, records, places)
    return EncodedRows(
        rows=rows, commits=scan.meta.commits[at], xids=scan.meta.xids(at), unstamped=unstamped, stop=stop
    )


class _Scan:
    """Reads what the messages of a block have in common, whatever their relation."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.buffer: Bytes = np.frombuffer(block.data, np.uint8)
        self.words: npt.NDArray[np.uint32] = np.ndarray((len(block.data) - 3,), ">u4", buffer=block.data, strides=(1,))
        if (block.ends - block.starts < _SHORTEST).any():
            raise ChangelogError(Kind.MALFORMED, "the stream sent a row message that ends before its columns")
        self.kinds = self.buffer[block.starts]
        self.relids = self.words[block.starts + 1].astype(np.int64)
        self.meta = Meta(block.spans)
        self.live: Mask = 2 * self.meta.ordinals > self.meta.published  # the rows that are not published yet

    def message(self, place: int) -> Decoded:
        begin, end = int(self.block.starts[place]), int(self.block.ends[place])
        return pgoutput.decode(self.block.data, begin=begin, end=end)

    def tuples(self, starts: Ints, ends: Ints, width: int) -> tuple[TextColumns, Ints, Mask, Mask]:
        """Reads one tuple of `width` values per row (protocol page *TupleData*).

        `starts` holds the offset at which each tuple begins, and `ends` the offset at which its message ends. Returns
        the columns, the offset at which each tuple ends, a mask of values that were not sent (column by row), and a
        mask of malformed rows.
        """
        buffer, words = self.buffer, self.words
        bad = (words[np.minimum(starts, ends)] >> 16) != width
        at, limit = np.minimum(starts + 2, ends), ends
        columns = TextColumns.empty(width, len(starts))
        unchanged = np.zeros((width, len(starts)), bool)
        for place in range(width):
            kinds = buffer[at]
            texts = kinds == _TEXT
            if texts.all():
                lengths = words[at + 1].astype(np.int64)
                begin = at + 5
            else:
                lengths = np.where(texts, words[at + 1], 0).astype(np.int64)
                begin = at + np.where(texts, 5, 1)
                columns.null[place] = kinds == _NULL
                unchanged[place] = kinds == _UNCHANGED
                bad |= ~(texts | columns.null[place] | unchanged[place])
            at = begin + lengths
            over = at > limit
            if over.any():
                bad |= over
                at, lengths = np.minimum(at, limit), np.where(over, 0, lengths)
                begin = np.minimum(begin, limit)
            columns.starts[place] = begin
            columns.lengths[place] = lengths
        return columns, at, unchanged, bad


def _relation(scan: _Scan, bound: CompiledBinding, places: Ints) -> tuple[list[JsonRows], Ints]:
    """Encodes the rows of one relation, separately for each kind of message.

    `places` are the numbers of its messages in the block. Returns the encoded rows, and the places of the rows that
    `_plain` has to encode.
    """
    if len(places) <= FEW_ROWS:
        return [], places
    binding = bound.binding
    kinds = scan.kinds[places]
    tags = scan.buffer[scan.block.starts[places] + 5]
    slow = _policed(scan, binding, places, kinds)
    if binding.lost is not None:
        slow[:] = True
    if binding.unlogged:
        slow |= (kinds == _UPDATE) & (tags == _NEW)
    if binding.crossing:
        slow |= _crossing(scan, places)
    parts = []
    shapes = (
        (Op.CREATE, (kinds == _INSERT) & (tags == _NEW)),
        (Op.UPDATE, (kinds == _UPDATE) & (tags == _NEW)),
        (Op.UPDATE, (kinds == _UPDATE) & (tags == _OLD)),
        (Op.DELETE, (kinds == _DELETE) & (tags == _OLD)),
    )
    rest = slow.copy()
    handled = np.zeros(len(places), bool)
    for op, mask_of_shape in shapes:
        handled |= mask_of_shape
        index = np.flatnonzero(mask_of_shape & ~slow)
        if len(index):
            old = bool(tags[index[0]] == _OLD)
            part, slow_indexes = _shape(scan, bound, places[index], op, old=old)
            parts.append(part)
            rest[index[slow_indexes]] = True
    return parts, places[rest | ~handled]


def _policed(scan: _Scan, binding: Binding, places: Ints, kinds: Bytes) -> Mask:
    slow = np.zeros(len(places), bool)
    if binding.entity.immutable:
        slow |= kinds != _INSERT
    if binding.entity.missing_stamp == "stop":
        slow |= ~scan.meta.stamped[places]
    return slow


def _crossing(scan: _Scan, places: Ints) -> Mask:
    """Returns a mask of the rows that may be half of a move between partitions.

    Such a move is a delete and an insert in the same relation, next to each other and in the same span.
    """
    slow = np.zeros(len(places), bool)
    pairs = np.flatnonzero(
        (scan.kinds[places[:-1]] == _DELETE)
        & (scan.kinds[places[1:]] == _INSERT)
        & (places[1:] == places[:-1] + 1)
        & (scan.meta.spans[places[1:]] == scan.meta.spans[places[:-1]])
    )
    slow[pairs] = slow[pairs + 1] = True
    return slow


def _shape(scan: _Scan, bound: CompiledBinding, places: Ints, op: Op, *, old: bool) -> tuple[JsonRows, Ints]:
    """Encodes rows whose messages have the same kind; `old` says that the messages begin with the complete old row.

    Returns the encoded rows, and the indexes into `places` of the rows that `_plain` has to encode.
    """
    binding, template = bound.binding, bound.template
    starts, ends = scan.block.starts[places] + 6, scan.block.ends[places]
    before: TextColumns | None = None
    bad = np.zeros(len(places), bool)
    if old:
        before, starts, unchanged, bad = scan.tuples(starts, ends, binding.width)
        bad |= unchanged.any(axis=0)
        for logged in binding.leaves:  # see row_records.is_whole
            unlogged = [place for place in range(binding.width) if place not in logged]
            bad |= before.null[unlogged].all(axis=0) & before.null.any(axis=0)
    after: TextColumns | None = None
    if op is not Op.DELETE:
        if old:
            bad |= scan.buffer[np.minimum(starts, ends)] != _NEW
            starts = np.minimum(starts + 1, ends)
        after, starts, unchanged, bad_after = scan.tuples(starts, ends, binding.width)
        bad |= bad_after
        if before is None:
            bad |= unchanged.any(axis=0)
        else:
            after.fill(before, unchanged)
    bad |= starts != ends
    texts = template.texts(op, scan.block.data, scan.buffer, before, after, ~bad)
    return texts.at(places), texts.other_places


def _plain(
    origin: Origin, bound: Mapping[int, CompiledBinding], scan: _Scan, places: Ints
) -> tuple[list[Record], list[int], ChangelogError | None]:
    """Encodes the rows at these places one by one, up to the first row at which an entity's policy is to stop.

    Returns the records, the place of each record's message, and the error for that row (None if there is no such row).
    """
    records: list[Record] = []
    at: list[int] = []
    pending: tuple[int, Delete] | None = None
    for place in places.tolist():
        row = scan.message(place)
        try:
            if isinstance(row, Truncate):
                rows_of_message = [
                    record
                    for relid in row.relids
                    if relid in bound
                    for record in row_records.truncates(origin, bound[relid].binding, scan.meta.change(place))
                ]
            else:
                assert isinstance(row, Insert | Update | Delete)
                binding = bound[row.relid].binding
                delete = _joins(scan, binding, place, row)
                if delete is not None:
                    pending = (place, delete)
                    continue
                rows_of_message = _row(origin, binding, scan, place, row, pending)
                pending = None
        except ChangelogError as error:
            if error.kind is Kind.MALFORMED:
                raise
            if error.position is None:
                error.position = scan.meta.change(place).position()
            return records, at, error
        records += rows_of_message
        at += [place] * len(rows_of_message)
    return records, at, None


def _joins(scan: _Scan, binding: Binding, place: int, row: Insert | Update | Delete) -> Delete | None:
    """Returns `row` if it is a delete and the next message inserts the same row into another partition; else None."""
    if not binding.crossing or binding.lost is not None or not isinstance(row, Delete) or place + 1 >= len(scan.kinds):
        return None
    follows = scan.kinds[place + 1] == _INSERT and scan.relids[place + 1] == row.relid
    if not follows or scan.meta.spans[place + 1] != scan.meta.spans[place]:
        return None
    after = scan.message(place + 1)
    return row if isinstance(after, Insert) and row_records.same_key(binding, row, after) else None


def _row(
    origin: Origin,
    binding: Binding,
    scan: _Scan,
    place: int,
    row: Insert | Update | Delete,
    pending: tuple[int, Delete] | None,
) -> list[Record]:
    change = scan.meta.change(place)
    if pending is not None and isinstance(row, Insert):
        return row_records.joined(origin, binding, pending[1], row, change)
    return row_records.records(origin, binding, row, change)
