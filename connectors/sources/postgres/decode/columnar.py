"""The hot path: a block of raw row messages in, columns of the changelog out, without an object a value.

A block is scanned column by column with numpy: each value is a slice of the raw bytes. The JSON
texts are then spliced from those slices and a few constants. Whatever is unusual in a row (a move,
an unavailable value, a policy that stops) sends that row through `row_records`, which is also the
definition of what this module must give.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from connectors.capture.rows import row_records
from connectors.capture.rows.binding import Binding
from connectors.capture.rows.json_columns import Columns, Template, Texts
from connectors.capture.rows.render_rows import Meta, Span, render
from connectors.capture.rows.row_change import Delete, Insert, Update
from connectors.capture.rows.row_records import Origin
from connectors.sources.postgres.decode import pgoutput
from connectors.sources.postgres.decode.messages import Decoded, Truncate
from envelope.columnar import batch
from envelope.columnar.splice import Bytes
from envelope.errors import ChangelogError, Kind
from envelope.model import Op, Record

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

FEW_ROWS = 32
"""Up to so many rows, one by one costs less than the fixed price of a block."""

_INSERT, _UPDATE, _DELETE, _TRUNCATE = b"IUDT"
_NEW, _OLD = b"NO"
_SHORTEST = 6  # bytes: what says kind, relation and which tuple follows
_TEXT, _NULL, _UNCHANGED = b"tnu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Row messages (insert, update, delete, truncate) one behind the other, and the spans they fall in.

    `data` ends with `envelope.columnar.splice.INLINE` bytes of padding; message i is `data[starts[i]:ends[i]]`.
    """

    data: bytes
    starts: Ints
    ends: Ints
    spans: Sequence[Span]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledBinding:
    """A binding with its compiled template."""

    binding: Binding
    template: Template


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedBlock:
    """The rows of a block in order, each with its commit and transaction id, and the stop that cut it short.

    `unstamped` counts, by entity, changes without a stamp where the policy is to warn.
    """

    rows: pa.RecordBatch
    commits: Ints
    xids: Ints
    unstamped: Counter[str]
    stop: ChangelogError | None = None


def encode(origin: Origin, bound: Mapping[int, CompiledBinding], block: Block) -> EncodedBlock:
    """The changelog's rows of one block. Relations that are not in `bound` are passed over.

    Where a policy stops, the stop is given with them: what follows it may be missing.
    Raises ChangelogError (MALFORMED) where the bytes are no pgoutput messages.
    """
    scan = _Scan(block)
    parts: list[Texts] = []
    plain = np.zeros(len(scan.kinds), bool)
    unstamped: Counter[str] = Counter()
    for relid in np.unique(scan.relids[scan.live]).tolist():
        if relid in bound:
            here = scan.live & (scan.relids == relid)
            found, left = _relation(scan, bound[relid], np.flatnonzero(here))
            parts += found
            plain[left] = True
            entity = bound[relid].binding.entity
            if entity.missing_stamp == "warn" and (missing := int(np.count_nonzero(here & ~scan.meta.stamped))):
                unstamped[entity.name] += missing
    plain |= scan.live & (scan.kinds == _TRUNCATE)
    records, places, stop = _plain(origin, bound, scan, np.flatnonzero(plain))
    fast = render(origin, [part for part in parts if part.size], scan.meta)
    found, at = _merged(fast, records, places)
    return EncodedBlock(
        rows=found, commits=scan.meta.commits[at], xids=scan.meta.xids(at), unstamped=unstamped, stop=stop
    )


class _Scan:
    """What can be said of every message of a block without knowing its relation."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.buffer: Bytes = np.frombuffer(block.data, np.uint8)
        self.words: npt.NDArray[np.uint32] = np.ndarray((len(block.data) - 3,), ">u4", buffer=block.data, strides=(1,))
        if (block.ends - block.starts < _SHORTEST).any():
            raise ChangelogError(Kind.MALFORMED, "the stream sent a row that ends before its columns begin")
        self.kinds = self.buffer[block.starts]
        self.relids = self.words[block.starts + 1].astype(np.int64)
        self.meta = Meta(block.spans)
        self.live: Mask = 2 * self.meta.ordinals > self.meta.published

    def message(self, place: int) -> Decoded:
        begin, end = int(self.block.starts[place]), int(self.block.ends[place])
        return pgoutput.decode(self.block.data, begin=begin, end=end)

    def tuples(self, starts: Ints, ends: Ints, width: int) -> tuple[Columns, Ints, Mask, Mask]:
        """One tuple a row (protocol page *TupleData*): its columns, where it ends, and which rows hold

        values that were not sent, and which are not as they should be.
        """
        buffer, words = self.buffer, self.words
        bad = (words[np.minimum(starts, ends)] >> 16) != width
        at, limit = np.minimum(starts + 2, ends), ends
        columns = Columns.empty(width, len(starts))
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


def _relation(scan: _Scan, bound: CompiledBinding, places: Ints) -> tuple[list[Texts], Ints]:
    """The fast part of one relation's rows, by kind of message, and the places of the others."""
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
    seen = np.zeros(len(places), bool)
    for op, chosen in shapes:
        seen |= chosen
        index = np.flatnonzero(chosen & ~slow)
        if len(index):
            old = bool(tags[index[0]] == _OLD)
            part, left = _shape(scan, bound, places[index], op, old=old)
            parts.append(part)
            rest[index[left]] = True
    return parts, places[rest | ~seen]


def _policed(scan: _Scan, binding: Binding, places: Ints, kinds: Bytes) -> Mask:
    slow = np.zeros(len(places), bool)
    if binding.entity.immutable:
        slow |= kinds != _INSERT
    if binding.entity.missing_stamp == "stop":
        slow |= ~scan.meta.stamped[places]
    return slow


def _crossing(scan: _Scan, places: Ints) -> Mask:
    """Rows that stand in a delete and insert, adjacent in one span, of this relation."""
    slow = np.zeros(len(places), bool)
    pairs = np.flatnonzero(
        (scan.kinds[places[:-1]] == _DELETE)
        & (scan.kinds[places[1:]] == _INSERT)
        & (places[1:] == places[:-1] + 1)
        & (scan.meta.spans[places[1:]] == scan.meta.spans[places[:-1]])
    )
    slow[pairs] = slow[pairs + 1] = True
    return slow


def _shape(scan: _Scan, bound: CompiledBinding, places: Ints, op: Op, *, old: bool) -> tuple[Texts, Ints]:
    """Rows of one kind of message: those that go fast, and the numbers (among `places`) of the others."""
    binding, template = bound.binding, bound.template
    starts, ends = scan.block.starts[places] + 6, scan.block.ends[places]
    before: Columns | None = None
    bad = np.zeros(len(places), bool)
    if old:
        before, starts, unchanged, bad = scan.tuples(starts, ends, binding.width)
        bad |= unchanged.any(axis=0)
        for logged in binding.leaves:  # see rows.is_whole
            others = [place for place in range(binding.width) if place not in logged]
            bad |= before.null[others].all(axis=0) & before.null.any(axis=0)
    after: Columns | None = None
    if op is not Op.DELETE:
        if old:
            bad |= scan.buffer[np.minimum(starts, ends)] != _NEW
            starts = np.minimum(starts + 1, ends)
        after, starts, unchanged, wrong = scan.tuples(starts, ends, binding.width)
        bad |= wrong
        if before is None:
            bad |= unchanged.any(axis=0)
        else:
            after.fill(before, unchanged)
    bad |= starts != ends
    texts = template.texts(op, scan.block.data, scan.buffer, before, after, ~bad)
    return texts.at(places), texts.left


def _plain(
    origin: Origin, bound: Mapping[int, CompiledBinding], scan: _Scan, places: Ints
) -> tuple[list[Record], list[int], ChangelogError | None]:
    """The rows that go one by one, each record with its place, up to the first stop."""
    records: list[Record] = []
    at: list[int] = []
    pending: tuple[int, Delete] | None = None
    for place in places.tolist():
        row = scan.message(place)
        try:
            if isinstance(row, Truncate):
                found = [
                    record
                    for relid in row.relids
                    if relid in bound
                    for record in row_records.truncates(origin, bound[relid].binding, scan.meta.change(place))
                ]
            else:
                assert isinstance(row, Insert | Update | Delete)
                binding = bound[row.relid].binding
                joins = _joins(scan, binding, place, row)
                if joins is not None:
                    pending = (place, joins)
                    continue
                found = _row(origin, binding, scan, place, row, pending)
                pending = None
        except ChangelogError as error:
            if error.kind is Kind.MALFORMED:
                raise
            if error.position is None:
                error.position = scan.meta.change(place).position()
            return records, at, error
        records += found
        at += [place] * len(found)
    return records, at, None


def _joins(scan: _Scan, binding: Binding, place: int, row: Insert | Update | Delete) -> Delete | None:
    """The delete, when the next message is the insert of the same row in another partition."""
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


def _merged(
    fast: tuple[pa.RecordBatch, Ints] | None, records: list[Record], at: list[int]
) -> tuple[pa.RecordBatch, Ints]:
    if fast is None:
        return batch.from_records(records), np.array(at, np.int64)
    if not records:
        return fast
    places = np.concatenate([fast[1], np.array(at, np.int64)])
    order = np.argsort(places, kind="stable")
    both = pa.Table.from_batches([fast[0], batch.from_records(records)])
    return both.take(order).combine_chunks().to_batches()[0], places[order]
