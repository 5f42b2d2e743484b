"""Finds runs of small transactions of the usual form in a block, and delivers each run at once.

Most transactions of a busy log look alike: a GTID, BEGIN, a few statements with their rows, and the end. Here the types
of a block's events are a string of bytes, in which a regular expression finds such transactions:

    GTID ── BEGIN ── ROWS_QUERY ── TABLE_MAP ── ROWS ── XID            MySQL:   33  2 ( 29? 19 30|31|32 )+ 16
    GTID ── ANNOTATE_ROWS ── TABLE_MAP ── ROWS ── XID                  MariaDB: 162   (160? 19 23|24|25 )+ 16

Headers, checksums and GTIDs of a block are read together, and the rows of all transactions of a run are converted
together. What remains for each event is a comparison of its first bytes with those of an earlier event.

The general path (`transactions`) defines the result. It reads each transaction that is not exactly of this form, that
changes what later events mean, or that may stop the changelog or publish anything other than rows of known tables.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat

import numpy as np

from changelog.connectors.capture.assembly.assembly import AssemblyRun
from changelog.connectors.capture.rows.render_rows import Span
from changelog.connectors.capture.rows.row_records import Transaction
from changelog.connectors.sources.mysql.decode.events.event_reader import EventReader
from changelog.connectors.sources.mysql.decode.events.event_types import EventType
from changelog.connectors.sources.mysql.decode.events.header import HEADER_BYTES
from changelog.connectors.sources.mysql.decode.log_state import LogState, Series
from changelog.connectors.sources.mysql.decode.rows.row_batches import Statements
from changelog.connectors.sources.mysql.decode.rows.row_texts import RowTexts
from changelog.connectors.sources.mysql.decode.rows.tables import Tables
from changelog.connectors.sources.mysql.decode.usual.gtid_columns import GtidColumns, gtid_columns
from changelog.connectors.sources.mysql.decode.usual.headers import Headers, Ints
from changelog.connectors.sources.mysql.decode.usual.statement_forms import RowsForm, StatementForms
from changelog.envelope.model import Stamp

RUN_MIN = 8
"""The fewest transactions that are delivered together. For fewer, the general path costs less."""

_EVENT_BYTES_MEAN_MAX = 2048
_BLOCK_BYTES_MAX = 8 << 20
"""Blocks of larger events have few events for each row, and are not searched."""

_XID_BYTES = 8
_QUERY, _TABLE_MAP = int(EventType.QUERY), int(EventType.TABLE_MAP)
_SHAPE = re.compile(rb"\x21\x02(?:\x1d?\x13[\x1e-\x20])+\x10|\xa2(?:\xa0?\x13[\x17-\x19])+\x10", re.DOTALL)


@dataclass(slots=True, kw_only=True)
class Run:
    """Consecutive transactions of the usual form, with one element for each in the sequences.

    `end` is the place in the block of the event after the run. `series` has the GTIDs, and `ends` the coordinates at
    which the transactions end; `end_log_pos` is that of the last event. `rows` are the numbers of published changes;
    `ordinals` are 1 if a stamp was inserted before them, and otherwise 0.
    """

    end: int
    end_log_pos: int
    series: Series
    committed_at: Sequence[int]
    ends: Sequence[int]
    stamps: Sequence[Stamp | None]
    ordinals: Sequence[int]
    rows: Sequence[int]
    groups: Sequence[Statements]


def deliver(run: Run, state: LogState, assembly_run: AssemblyRun, texts: RowTexts) -> None:
    """Does what `TransactionReader.read` would do with the events of a run."""
    head, numbers, commits = run.series
    names = [f"{head}{number}" for number in numbers]
    for commit, name in zip(commits, names, strict=True):
        state.delivered(commit, name)
    members = zip(commits, names, repeat(state.epoch), commits, run.committed_at, strict=False)
    contents = zip(map(Transaction._make, members), run.stamps, run.ordinals, run.rows, strict=True)
    spans = [
        Span(transaction=transaction, stamp=stamp, ordinal=ordinal, rows=rows)
        for transaction, stamp, ordinal, rows in contents
    ]
    texts.add_statements(run.groups, sum(run.rows))
    assembly_run.take_all(spans, run.ends)
    state.place.pass_to(run.end_log_pos)
    state.pass_all(run.series)


class UsualRuns:
    """The runs of one block. `next_due` returns the coordinate at which the next table read has to be published."""

    def __init__(
        self,
        block: Sequence[bytes],
        reader: EventReader,
        state: LogState,
        tables: Tables,
        next_due: Callable[[], int | None],
    ) -> None:
        self._block, self._reader, self._state, self._tables, self._next_due = block, reader, state, tables, next_due
        self._search_from = 0
        self._searched = False
        self._found: _Found | None = None

    def find(self, at: int) -> Run | None:
        """Returns the run that begins with the event at this place of the block; None if the event is to be read alone.

        All events before it must have been read.
        """
        found = self._search()
        if found is None or at < self._search_from or (first := found.numbers.get(at)) is None:
            return None
        end = self._end(found, first)
        base = self._state.place.base(int(found.begins[first]), int(found.ends[end - 1]))
        if base is None or end - first < RUN_MIN:
            return None
        run = None
        if self._state.can_pass(found.head(first), found.gtids.numbers[first:end]):
            collector = _Collector(self._block, found, StatementForms(self._reader, self._tables))
            end = collector.add_all(first, end)
            run = collector.run(first, base) if end - first >= RUN_MIN else None
        if run is None:
            self._search_from = found.spans[max(end - 1, first)][1]
        return run

    def _search(self) -> "_Found | None":
        """Searches the block, once it is known whether events have checksums."""
        if not self._searched and self._reader.has_format:
            self._searched = True
            if sum(map(len, self._block)) <= min(_BLOCK_BYTES_MAX, _EVENT_BYTES_MEAN_MAX * len(self._block)):
                self._found = _Found.of(self._block, self._reader.checksum_bytes)
        return self._found

    def _end(self, found: "_Found", first: int) -> int:
        """Returns the number after the last transaction that may be in a run with `first`."""
        end, next_due = found.run_end(first), self._next_due()
        base = None if next_due is None else self._state.place.base(int(found.begins[first]), int(found.ends[first]))
        if next_due is None or base is None:
            return end
        return min(end, first + 1 + int(np.searchsorted(found.ends[first:end], next_due - base)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """The transactions of a block that have the shape of usual ones, in order.

    `spans` has the places in the block of each one's first event and of the event after its last one. `numbers` maps
    the first place to the number of the transaction. `begins` and `ends` are the offsets (`end_log_pos`) where the
    GTID begins, and where the transaction ends. `last` has the last transaction of each run.
    """

    types: bytes
    spans: Sequence[tuple[int, int]]
    numbers: Mapping[int, int]
    begins: Ints
    ends: Ints
    gtids: GtidColumns
    last: Ints

    @classmethod
    def of(cls, block: Sequence[bytes], checksum_bytes: int) -> "_Found | None":
        headers = Headers.of(block, has_checksums=bool(checksum_bytes))
        spans = [match.span() for match in _SHAPE.finditer(headers.types)]
        if len(spans) < RUN_MIN:
            return None
        firsts, nexts = np.array(spans, np.int64).T
        kinds = np.frombuffer(headers.types, np.uint8)[firsts]
        gtids = gtid_columns(headers, firsts, checksum_bytes)
        begins, ends = headers.ends[firsts] - headers.sizes[firsts], headers.ends[nexts - 1]
        is_usual = gtids.is_usual & (kinds == kinds[0]) & (begins > 0) & (ends > 0)
        is_usual &= headers.sizes[nexts - 1] == HEADER_BYTES + _XID_BYTES + checksum_bytes
        follows = is_usual[1:] & is_usual[:-1] & (firsts[1:] == nexts[:-1])
        follows &= gtids.head_codes[1:] == gtids.head_codes[:-1]
        return cls(
            types=headers.types,
            spans=spans,
            numbers={spans[number][0]: number for number in np.flatnonzero(is_usual).tolist()},
            begins=begins,
            ends=ends,
            gtids=gtids,
            last=np.append(np.flatnonzero(~follows), len(spans) - 1),
        )

    def head(self, number: int) -> str:
        """Returns what the text of a transaction's GTID begins with."""
        return self.gtids.heads[int(self.gtids.head_codes[number])]

    def run_end(self, first: int) -> int:
        """Returns the number after the last transaction of the run in which `first` is."""
        return int(self.last[np.searchsorted(self.last, first)]) + 1


class _Collector:
    """Collects the statements of transactions, one after another."""

    def __init__(self, block: Sequence[bytes], found: _Found, forms: StatementForms) -> None:
        self._block, self._found, self._forms = block, found, forms
        self._stamps: list[Stamp | None] = []
        self._ordinals: list[int] = []
        self._first_statements: list[int] = []
        self._count = 0

    def add_all(self, first: int, end: int) -> int:
        """Adds transactions up to the first one that is unusual. Returns the number after the last one added."""
        for number in range(first, end):
            if not self._add(*self._found.spans[number]):
                return number
        return end

    def _add(self, at: int, end: int) -> bool:
        block, types, forms = self._block, self._found.types, self._forms
        at += 1
        if types[at] == _QUERY:
            if not forms.is_begin(block[at]):
                return False
            at += 1
        events: list[tuple[RowsForm, bytes]] = []
        message: Stamp | None = None
        stamp: Stamp | None = None
        while at < end - 1:
            own = None
            if types[at] != _TABLE_MAP:
                own, at = forms.stamp(block[at]), at + 1
            form, packet, at = forms.rows(block[at], block[at + 1]), block[at + 1], at + 2
            if form is None:
                return False
            if form.is_stamp:
                message = None if events else forms.message(packet)
                if message is None:
                    return False
            elif events and own != stamp and message is None:
                return False
            events.append((form, packet))
            stamp = own
        self._stamps.append(message or stamp)
        self._ordinals.append(0 if message is None else 1)
        self._first_statements.append(self._count)
        for form, packet in events:
            if form.statements is not None:
                form.statements.bodies.append(packet[form.offset : len(packet) - forms.checksum_bytes])
                form.statements.numbers.append(self._count)
            self._count += 1
        return True

    def run(self, first: int, base: int) -> Run | None:
        """Returns the run of the transactions that were added. Returns None if rows have to be read one by one."""
        found, groups, end = self._found, self._forms.groups, first + len(self._stamps)
        counts = np.zeros(self._count, np.int64)
        for statements in groups:
            if not statements.scan():
                return None
            counts[statements.numbers] = statements.counts
        first_rows = np.cumsum(counts) - counts
        for statements in groups:
            statements.first_rows = first_rows[statements.numbers].tolist()
        return Run(
            end=found.spans[end - 1][1],
            end_log_pos=int(found.ends[end - 1]),
            series=Series(
                head=found.head(first),
                numbers=found.gtids.numbers[first:end],
                commits=(base + found.begins[first:end]).tolist(),
            ),
            committed_at=found.gtids.committed_at[first:end],
            ends=(base + found.ends[first:end]).tolist(),
            stamps=self._stamps,
            ordinals=self._ordinals,
            rows=np.add.reduceat(counts, self._first_statements).tolist(),
            groups=groups,
        )
