"""Finds runs in a block, and delivers each run at once. A run is a sequence of small transactions of the usual form.

Most transactions of a busy log look alike: a GTID, BEGIN, a few statements with their rows, and the end. `shapes` finds
them by the types of their events. The headers, checksums and GTIDs of a block are read together. The first bytes of all
events are compared with the first bytes of earlier events (`statement_forms`). The rows of all transactions of a run
are converted together. So hardly any code runs once for each event.

The general path (`transactions`) defines the result. It reads each transaction for which one of these is true:
- It is not exactly of this form.
- It changes what later events mean.
- It may stop the changelog.
- It may publish something other than rows of known tables.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from changelog.connectors.capture.assembly.assembly import AssemblyRun
from changelog.connectors.capture.rows.spans import SpanColumns
from changelog.connectors.sources.mysql.decode.events.event_block import EventBlock
from changelog.connectors.sources.mysql.decode.events.event_reader import EventReader
from changelog.connectors.sources.mysql.decode.events.event_types import EventType
from changelog.connectors.sources.mysql.decode.events.header import HEADER_BYTES
from changelog.connectors.sources.mysql.decode.log_state import LogState, Series
from changelog.connectors.sources.mysql.decode.rows.row_batches import RowEvents
from changelog.connectors.sources.mysql.decode.rows.row_texts import RowTexts
from changelog.connectors.sources.mysql.decode.rows.tables import Tables
from changelog.connectors.sources.mysql.decode.usual import shapes
from changelog.connectors.sources.mysql.decode.usual.gtid_columns import GtidColumns, gtid_columns
from changelog.connectors.sources.mysql.decode.usual.headers import Headers, Ints, Mask
from changelog.connectors.sources.mysql.decode.usual.statement_forms import BlockForms, RowsForm, RunForms
from changelog.envelope.model import Stamp

RUN_MIN = 8
"""The fewest transactions that are delivered together. For fewer, the general path costs less."""

_EVENT_BYTES_MEAN_MAX = 2048
_BLOCK_BYTES_MAX = 8 << 20
"""A block is not searched if its events have more than `_EVENT_BYTES_MEAN_MAX` bytes on average, or if it has more than
`_BLOCK_BYTES_MAX` bytes. The events of such a block have many rows each, so little would be saved.
"""

_XID_BYTES = 8
_NOTHING = pa.scalar("")


@dataclass(slots=True, kw_only=True)
class TransactionRun:
    """Consecutive transactions of the usual form. Each array has one element for each transaction.

    `end` is the place of the event after the run. `series` has the GTIDs, and `ends` the coordinates at which the
    transactions end. `end_log_pos` is the offset in the log file at which the last of them ends. `rows` has the number
    of published changes of each transaction. `ordinals` has the ordinal of each transaction's first change: 1 if a
    stamp was inserted before this change, otherwise 0. `stamps` is None if no transaction has a stamp.
    """

    end: int
    end_log_pos: int
    series: Series
    committed_at: Ints
    ends: Ints
    stamps: Sequence[Stamp | None] | None
    ordinals: Ints
    rows: Ints
    groups: Sequence[RowEvents]


def deliver(run: TransactionRun, state: LogState, assembly_run: AssemblyRun, texts: RowTexts) -> None:
    """Does what `TransactionReader.read` would do with the events of a run."""
    series, count = run.series, len(run.rows)
    names = pc.binary_join_element_wise(pa.scalar(series.head), pa.array(series.numbers).cast(pa.utf8()), _NOTHING)
    if state.records():
        for commit, name in zip(series.commits.tolist(), names.to_pylist(), strict=True):
            state.on_delivery(commit, name, False)
    spans = SpanColumns(
        xids=series.commits,
        names=names,
        epochs=np.full(count, state.epoch),
        commits=series.commits,
        committed_at=run.committed_at,
        ordinals=run.ordinals,
        rows=run.rows,
        published=np.full(count, -1),
        stamps=run.stamps,
    )
    texts.add_statements(run.groups, int(run.rows.sum()))
    assembly_run.take_all(spans, run.ends)
    state.place.pass_to(run.end_log_pos)
    state.pass_all(series)


class UsualRuns:
    """Finds the runs of one block. `next_due` returns the coordinate at which the next table read must be published."""

    def __init__(
        self,
        block: EventBlock,
        reader: EventReader,
        state: LogState,
        tables: Tables,
        next_due: Callable[[], int | None],
    ) -> None:
        self._block, self._reader, self._state, self._tables, self._next_due = block, reader, state, tables, next_due
        self._search_from = 0
        self._searched_with: object = None
        self._candidates: _Candidates | None = None

    def find(self, at: int) -> TransactionRun | None:
        """Returns the run that begins with the event at this place of the block; None if the event must be read alone.

        All events before this event must have been read.
        """
        candidates = self._search()
        if candidates is None or at < self._search_from or (first := candidates.number(at)) is None:
            return None
        end = self._end(candidates, first)
        base = self._state.place.base(int(candidates.begins[first]), int(candidates.ends[end - 1]))
        if base is None or end - first < RUN_MIN:
            return None
        run = None
        if self._state.can_pass(candidates.head(first), candidates.gtids.numbers[first:end]):
            collector = _Collector(candidates, RunForms(candidates.forms, self._tables), first)
            end = first + collector.add_all(end)
            run = collector.run(base) if end - first >= RUN_MIN else None
        if run is None:
            self._search_from = int(candidates.nexts[max(end - 1, first)])
        return run

    def _search(self) -> "_Candidates | None":
        """Searches the block once the format of its events is known, and again after each new format description."""
        if self._reader.format is not self._searched_with:
            self._searched_with, self._candidates = self._reader.format, None
            if self._block.nbytes <= min(_BLOCK_BYTES_MAX, _EVENT_BYTES_MEAN_MAX * len(self._block)):
                self._candidates = _Candidates.of(self._block, self._reader)
        return self._candidates

    def _end(self, candidates: "_Candidates", first: int) -> int:
        """Returns where a run that begins with `first` must end: the number of the first transaction after the run."""
        end, next_due = candidates.run_end(first), self._next_due()
        base = (
            None
            if next_due is None
            else self._state.place.base(int(candidates.begins[first]), int(candidates.ends[first]))
        )
        if next_due is None or base is None:
            return end
        return min(end, first + 1 + int(np.searchsorted(candidates.ends[first:end], next_due - base)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidates:
    """The transactions of a block that have the shape of usual ones, in order.

    For each transaction, `firsts` has the place of its first event in the block, and `nexts` the place of the event
    after its last event. `begins` and `ends` are the offsets (`end_log_pos`) where the GTID begins, and where the
    transaction ends. `last` has the last transaction of each run. `maps` are the places of all table maps in the
    transactions. `statement_begins` has, for each transaction, the number of its first table map, and then one more
    element: the count of all table maps.
    """

    headers: Headers
    checksum_bytes: int
    firsts: Ints
    nexts: Ints
    is_usual: Mask
    begins: Ints
    ends: Ints
    gtids: GtidColumns
    last: Ints
    maps: Ints
    statement_begins: Ints
    forms: BlockForms

    @classmethod
    def of(cls, block: EventBlock, reader: EventReader) -> "_Candidates | None":
        checksum_bytes = reader.checksum_bytes
        headers = Headers.of(block, has_checksums=bool(checksum_bytes))
        firsts, nexts = shapes.transactions(headers.types)
        if len(firsts) < RUN_MIN:
            return None
        gtids = gtid_columns(headers, firsts, checksum_bytes)
        begins, ends = headers.ends[firsts] - headers.sizes[firsts], headers.ends[nexts - 1]
        is_usual = gtids.is_usual & (begins > 0) & (ends > 0)
        is_usual &= headers.sizes[nexts - 1] == HEADER_BYTES + _XID_BYTES + checksum_bytes
        follows = is_usual[1:] & is_usual[:-1] & (firsts[1:] == nexts[:-1])
        follows &= gtids.head_codes[1:] == gtids.head_codes[:-1]
        maps, statement_begins = shapes.statements(headers.types, firsts, nexts)
        queries = firsts[headers.types[firsts] == EventType.GTID] + 1
        return cls(
            headers=headers,
            checksum_bytes=checksum_bytes,
            firsts=firsts,
            nexts=nexts,
            is_usual=is_usual,
            begins=begins,
            ends=ends,
            gtids=gtids,
            last=np.append(np.flatnonzero(~follows), len(firsts) - 1),
            maps=maps,
            statement_begins=np.append(statement_begins, len(maps)),
            forms=BlockForms(block, headers, reader, queries, maps),
        )

    def number(self, at: int) -> int | None:
        """Returns the number of the usual transaction that begins at this place of the block; None if there is none."""
        number = int(np.searchsorted(self.firsts, at))
        is_first = number < len(self.firsts) and self.firsts[number] == at and self.is_usual[number]
        return number if is_first else None

    def head(self, number: int) -> str:
        """Returns the beginning of the text of a transaction's GTID: all but its number."""
        return self.gtids.heads[int(self.gtids.head_codes[number])]

    def run_end(self, first: int) -> int:
        """Returns where the run of `first` ends: the number of the first transaction after the run."""
        return int(self.last[np.searchsorted(self.last, first)]) + 1


class _Collector:
    """Collects the statements of the transaction with the number `first`, and of the transactions after it."""

    def __init__(self, candidates: _Candidates, forms: RunForms, first: int) -> None:
        self._candidates, self._forms, self._first = candidates, forms, first
        self._count = 0
        self._by_head: dict[int, RowsForm | None] = {}
        self._signed: dict[int, tuple[Stamp | None, int]] = {}

    def add_all(self, end: int) -> int:
        """Adds transactions up to the first one that is unusual, or up to `end`. Returns how many were added."""
        candidates, first, block_forms = self._candidates, self._first, self._candidates.forms
        begin, last = candidates.statement_begins[first], candidates.statement_begins[end]
        heads = block_forms.heads[begin:last]
        used = np.flatnonzero(np.bincount(heads + 1, minlength=block_forms.head_count + 1)[1:])
        self._by_head = {head: self._forms.form(head) for head in used.tolist()}
        is_known = np.zeros(block_forms.head_count + 1, bool)
        is_known[[head for head, form in self._by_head.items() if form is not None]] = True
        is_usual = np.logical_and.reduceat(is_known[heads], candidates.statement_begins[first:end] - begin)
        if len(block_forms.is_begin):
            is_usual &= block_forms.is_begin[first:end]
        self._count = end - first if is_usual.all() else int(np.argmin(is_usual))
        self._count = self._add_stamps()
        return self._count

    def _add_stamps(self) -> int:
        """Reads the stamps. Returns how many transactions come before the first one with unusual stamps."""
        candidates, forms, begins = self._candidates, self._candidates.forms, self._candidates.statement_begins
        first, end = self._first, self._first + self._count
        stamps = [head for head, form in self._by_head.items() if form is not None and form.is_stamp]
        inside = slice(begins[first], begins[end])
        signed = begins[first] + np.flatnonzero(np.isin(forms.heads[inside], stamps)) if stamps else np.arange(0)
        commented = forms.commented[slice(*np.searchsorted(forms.commented, [begins[first], begins[end]]))]
        own = {number: forms.stamp(int(candidates.maps[number]) - 1) for number in commented.tolist()}
        signed = np.append(signed, np.array([number for number, stamp in own.items() if stamp is not None], np.int64))
        for number in np.unique(np.searchsorted(begins, signed, side="right") - 1).tolist():
            result = self._stamp(range(begins[number], begins[number + 1]), own)
            if result is None:
                return int(number) - first
            self._signed[number - first] = result
        return end - first

    def _stamp(self, statements: range, own: Mapping[int, Stamp | None]) -> tuple[Stamp | None, int] | None:
        """Returns the stamp of a transaction and the ordinal of its first change; None if its stamps are unusual."""
        candidates, forms = self._candidates, self._candidates.forms
        message = stamp = None
        for number in statements:
            head = int(forms.heads[number])
            form = self._by_head[head]
            assert form is not None
            if form.is_stamp:
                message = (
                    self._forms.message(head, int(candidates.maps[number]) + 1) if number == statements[0] else None
                )
                if message is None:
                    return None
            elif number > statements[0] and own.get(number) != stamp and message is None:
                return None
            stamp = own.get(number)
        return message or stamp, 0 if message is None else 1

    def run(self, base: int) -> TransactionRun | None:
        """Returns the run of the transactions that were added. Returns None if rows have to be read one by one."""
        candidates, first = self._candidates, self._first
        end = first + self._count
        begins = candidates.statement_begins[first : end + 1]
        counts = np.zeros(int(begins[-1] - begins[0]), np.int64)
        groups = self._groups(int(begins[0]), int(begins[-1]))
        for statements in groups:
            if not statements.scan():
                return None
            counts[statements.numbers] = statements.counts
        first_rows = np.cumsum(counts) - counts
        for statements in groups:
            statements.first_rows = first_rows[statements.numbers]
        ordinals = np.zeros(self._count, np.int64)
        ordinals[[number for number, (_, ordinal) in self._signed.items() if ordinal]] = 1
        stamps: list[Stamp | None] | None = [None] * self._count if self._signed else None
        for number, (stamp, _) in self._signed.items():
            assert stamps is not None
            stamps[number] = stamp
        return TransactionRun(
            end=int(candidates.nexts[end - 1]),
            end_log_pos=int(candidates.ends[end - 1]),
            series=Series(
                head=candidates.head(first),
                numbers=candidates.gtids.numbers[first:end],
                commits=base + candidates.begins[first:end],
            ),
            committed_at=candidates.gtids.committed_at[first:end],
            ends=base + candidates.ends[first:end],
            stamps=stamps,
            ordinals=ordinals,
            rows=np.add.reduceat(counts, begins[:-1] - begins[0]),
            groups=groups,
        )

    def _groups(self, begin: int, end: int) -> Sequence[RowEvents]:
        """Returns the statements with the numbers from `begin` up to `end`, grouped by table and op."""
        headers, heads = self._candidates.headers, self._candidates.forms.heads[begin:end]
        groups = self._forms.groups
        group_of, offsets = np.full((2, self._candidates.forms.head_count), -1, np.int64)
        for head, form in self._by_head.items():
            if form is not None and form.statements is not None:
                group_of[head], offsets[head] = groups.index(form.statements), form.offset
        rows = self._candidates.maps[begin:end] + 1
        for number, statements in enumerate(groups):
            numbers = np.flatnonzero(group_of[heads] == number)
            events, starts = rows[numbers], offsets[heads[numbers]]
            statements.numbers = numbers
            statements.octets = headers.octets
            statements.begins = headers.begins[events] + starts
            statements.sizes = headers.sizes[events] - starts - self._candidates.checksum_bytes
        return [statements for statements in groups if len(statements.numbers)]
