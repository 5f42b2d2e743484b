"""Turns decoded rows into rows of the changelog, with transactions, positions and stamps, and announces new columns.

This module is pure. A decoder reads a block (a stretch of the database's log) and reports what the block contains to an
`AssemblyRun`, in the log's order:

    begin ── take(2 rows) ── message(stamp) ── take(3 rows) ── describe(table) ── take(1 row) ── commit
                 │                │                 │                                 │
    ordinals:   0, 1              2              3, 4, 5                              6

`take` only counts rows. Consecutive rows with the same transaction and stamp (who makes the change) form one `Span`.
Spans are encoded together (`flush`), as late as possible: at the end of the block, or just before something changes how
rows are decoded. So a block of small transactions costs little more than one large transaction.

**Ordinals.** The rows and messages of a transaction are numbered from 0; the number is the ordinal. The last part of a
row's position is the *position ordinal*: twice the ordinal, plus 1 for the second record of a row that moved. Ordinals
depend on the transaction alone, and not on the bounds of blocks. So a row that is read again after a crash has the same
position as before.

**After a restart.** The log is read again from a place before the end of the changelog. Transactions up to and
including the last published one are dropped. But if only a part of the last transaction was published, its rows after
the last published position ordinal are delivered.

Rows that were read from a table are published at a signal (a message to the service). After a restart, the table is
read once more, and the second read may find other rows than the first. So no rows of table reads are published inside a
transaction that was partly published before the restart.

**Stops.** If a policy (a setting of an entity) refuses a row, the changelog stops. Everything before the row's
*transaction* is published, and nothing of the transaction itself. So an operator can decide on the row before readers
see a part of that transaction. If the bytes of a block are invalid (MALFORMED), nothing of it is published.

**Versions.** When an entity's columns differ from those that the changelog knows, a row that announces the new version
is put before the first row with the new columns, in a batch of its own (`announcing`).
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import msgspec
import numpy as np
import pyarrow as pa

from changelog.connectors.capture.announcing import Announcer
from changelog.connectors.capture.assembly.assembled import (
    Assembled,
    ColumnChanges,
    Encode,
    EncodedRows,
    Ints,
    Listener,
)
from changelog.connectors.capture.assembly.ended_transactions import EndedTransactions
from changelog.connectors.capture.assembly.open_transaction import OpenTransaction, check_ordinal
from changelog.connectors.capture.rows.row_records import Change, Transaction
from changelog.connectors.capture.rows.spans import Span, SpanColumns, parted
from changelog.envelope.columnar import batch
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Stamp
from changelog.envelope.position import Position, commit_text
from changelog.envelope.signal import FENCE_PREFIX, is_nonce
from changelog.envelope.signal import PREFIX as SIGNAL_PREFIX
from changelog.envelope.stamp import PREFIX as STAMP_PREFIX
from changelog.envelope.stamp import SESSION_PREFIX, parse
from changelog.envelope.versions import TableColumns, Versions

_EVERYTHING = 1 << 62
"""Greater than every position ordinal."""


class Assembly:
    """The state that lasts from block to block: the open transaction, the last published position, and the stop.

    `published` is the position of the last row that the changelog holds, None if it holds none. `partial` says that
    only a part of this row's transaction was published. `versions` knows which columns the changelog has; without it,
    no version is announced.
    """

    def __init__(
        self,
        *,
        entities: Mapping[tuple[str, str], Entity],
        published: Position | None,
        partial: bool,
        listener: Listener | None,
        versions: Versions | None = None,
    ) -> None:
        self.entities, self.listener = entities, listener
        self.announcer = Announcer(versions)
        self.open: OpenTransaction | None = None
        self.stop: ChangelogError | None = None
        """The error that stops the changelog after the rows that were returned; None without a stop."""
        self._published, self._partial = published, partial

    def published(self, transaction: Transaction) -> int:
        """Returns how much of the transaction was published: its last published position ordinal; -1 if nothing was.

        If the whole transaction was published, the result is greater than every position ordinal.
        """
        last = self._published
        if last is None or (transaction.epoch, transaction.commit) > (last.epoch, last.commit):
            return -1
        is_last = (transaction.epoch, transaction.commit) == (last.epoch, last.commit)
        return last.ordinal if is_last and self._partial else _EVERYTHING

    def all_published(self, spans: SpanColumns) -> Ints:
        """Returns what `published` returns for the transaction of each span."""
        last = self._published
        if last is None:
            return np.full(len(spans), -1)
        is_same = (spans.epochs == last.epoch) & (spans.commits == last.commit)
        is_later = (spans.epochs > last.epoch) | ((spans.epochs == last.epoch) & (spans.commits > last.commit))
        return np.where(is_later, -1, np.where(is_same & self._partial, last.ordinal, _EVERYTHING))


class AssemblyRun:
    """Assembles one block of the log. Call the methods in the log's order; then `result` returns the result.

    Each transaction of the block must have a greater commit than the transaction before it.

    `place_of` takes the number of a row in the block and returns the place of the row's record in the log. Only some
    logs need it: those that may deliver a row before a message although the message comes first in the log.

    `encode` and `place_of` must not refer to the run, directly or indirectly. Such a cycle would keep the block, of
    many MiB, in memory until Python's garbage collector finds the cycle, many blocks later.
    """

    def __init__(self, assembly: Assembly, encode: Encode, *, place_of: Callable[[int], int] | None = None) -> None:
        self._assembly, self._encode, self._place_of = assembly, encode, place_of
        self._spans: list[Span | SpanColumns] = []
        self._rows_taken = self._encoded = 0
        self._batches: list[tuple[pa.RecordBatch, Ints]] = []
        self._ended = EndedTransactions()
        self._assembled = Assembled()

    @property
    def is_open(self) -> bool:
        """Whether a transaction is open."""
        return self._assembly.open is not None

    @property
    def rows_taken(self) -> int:
        """The number of rows of the block that were taken."""
        return self._rows_taken

    @property
    def pending(self) -> int:
        """The number of rows that were taken and are not encoded yet."""
        return self._rows_taken - self._encoded

    def begin(self, transaction: Transaction) -> None:
        """Begins a transaction. Raises ChangelogError (MALFORMED) if another is open."""
        assembly = self._assembly
        if assembly.open is not None:
            raise ChangelogError(Kind.MALFORMED, "the stream began a transaction inside another")
        assembly.open = OpenTransaction(transaction, published=assembly.published(transaction))
        self._assembled.first = self._assembled.first or transaction

    def commit(self, end: int) -> None:
        """Ends the open transaction. `end` is a place in the log: every later transaction commits there or after it."""
        self._ended.add(self._opened().transaction, end)
        self._assembly.open = None

    def take(self, rows: int) -> None:
        """Takes the next `rows` rows of the block. They belong to the open transaction.

        If the log describes a table between two rows, the rows can still be in one span. Raises ChangelogError: LIMIT
        if the transaction is too large, MALFORMED if no transaction is open.
        """
        if not rows:
            return
        open_transaction = self._opened()
        ordinal = open_transaction.ordinal
        self._rows_taken, open_transaction.ordinal = self._rows_taken + rows, ordinal + rows
        last, stamp = self._spans[-1] if self._spans else None, open_transaction.next_stamp
        if (
            isinstance(last, Span)
            and last.transaction is open_transaction.transaction
            and last.ordinal + last.rows == ordinal
            and (last.stamp is stamp or last.stamp == stamp)
        ):
            last.rows += rows
        else:
            self._spans.append(
                Span(
                    transaction=open_transaction.transaction,
                    stamp=stamp,
                    ordinal=ordinal,
                    rows=rows,
                    published=open_transaction.published,
                )
            )
        check_ordinal(open_transaction.ordinal)  # checked last, so that `fail` encodes the rows that were taken

    def take_all(self, spans: SpanColumns, ends: Ints) -> None:
        """Takes whole transactions, in the order of the log: the same as `begin`, `sign`, `take` and `commit` for each.

        Each transaction has one span, maybe without rows. The member `published` of the spans is ignored. `ends` are
        the places at which the transactions end. If the ordinal of a span is not 0, messages with stamps come before
        its rows. Raises ChangelogError (MALFORMED) if a transaction is open.
        """
        assembly = self._assembly
        if assembly.open is not None:
            raise ChangelogError(Kind.MALFORMED, "the stream began a transaction inside another")
        self._assembled.first = self._assembled.first or spans.transaction(0)
        with_rows = replace(spans, published=assembly.all_published(spans)).with_rows()
        if len(with_rows):
            self._spans.append(with_rows)
        self._rows_taken += int(spans.rows.sum())
        self._ended.add_all(spans, ends)
        check_ordinal(int((spans.ordinals + spans.rows).max()))

    def sign(self, stamp: Stamp | None) -> None:
        """Sets the stamp of the next rows of the open transaction. A stamp message in the transaction overrides it.

        Decoders call this for logs in which stamps have no place of their own, and so no ordinal. With None, the next
        rows have no stamp.
        """
        self._opened().fallback = stamp

    def message(
        self,
        prefix: str,
        content: bytes,
        *,
        place: int = 0,
        number: int | None = None,
        settle: Callable[[], None] = lambda: None,
    ) -> Change | None:
        """Handles a message in the open transaction; `prefix` says whether it is a stamp, a fence, or a signal.

        A stamp applies to the rows after it. It also applies to the rows that were taken last, if their place is
        `place`: these rows come after the message, but the log delivered them before it. The sender of a fence waits
        until the checkpoint is stored. The signature of a signal must cover `number`, or the transaction's id if
        `number` is None. `settle` is called before the rows of a table read are published. A decoder whose log does not
        report every change of tables can then describe the tables as they are at this place.

        Returns None for a stamp, a fence, a signal, and a message that was delivered before a restart. For any other
        message, returns its transaction and ordinal.
        """
        open_transaction = self._opened()
        ordinal = open_transaction.ordinal
        open_transaction.ordinal += 1
        if prefix in (STAMP_PREFIX, SESSION_PREFIX):
            self._stamp(content, open_transaction, place, of_session=prefix == SESSION_PREFIX)
        elif prefix == FENCE_PREFIX:
            self._assembled.fenced = True
        elif 2 * ordinal > open_transaction.published:
            change = Change(transaction=open_transaction.transaction, ordinal=ordinal, stamp=None)
            if prefix != SIGNAL_PREFIX:
                return change
            self._signal(content, change, settle, number)
        return None

    def between(self, nonce: bytes, change: Change, end: int, *, settle: Callable[[], None] = lambda: None) -> Change:
        """Publishes the rows of one table read. `nonce` is the text that names this table read, and `change` the place
        of the rows, between two transactions of the log.

        Decoders call this for logs into which the service writes no messages. The transaction of `change` is not in the
        log: its commit lies between the commits of two transactions of the log, and the later one begins at `end` or
        after it. Returns the place for the rows of a further table read that is published between the same two
        transactions. Raises ChangelogError: LIMIT if there are too many rows at this place, MALFORMED if a transaction
        is open.
        """
        self.begin(change.transaction)
        open_transaction = self._opened()
        open_transaction.ordinal, open_transaction.published = change.ordinal, -1
        batches = len(self._batches)
        self._signal(nonce, change, settle)
        ordinal = change.ordinal + 1
        if len(self._batches) > batches:
            rows, _ = self._batches[-1]
            ordinal = Position.parse(rows.column("position")[-1].as_py()).ordinal // 2 + 1
        check_ordinal(ordinal)
        self.commit(end)
        return replace(change, ordinal=ordinal)

    def statement(self, content: bytes, change: Change) -> None:
        """Records a statement that changes tables. `content` is its text, and `change` its place in the log."""
        self._assembled.statements.append((content, change.transaction.commit))

    def describe(self, entity: Entity, table: TableColumns) -> None:
        """Records that the log describes an entity's table, and that the table's next rows have these columns."""
        self._assembled.described = self._opened().transaction.commit
        self.set_columns(entity, table)  # even if these are not new: a table read may have set others

    def set_columns(self, entity: Entity, table: TableColumns) -> None:
        """Records that the next rows of an entity have these columns."""
        self._assembly.announcer.set_columns(entity, table)

    def alter(self, table: tuple[str, str], changes: ColumnChanges) -> None:
        """Records that the columns of a table changed here. Discards rows that were read from it but not published."""
        self._assembled.altered.append(changes)
        self.discard(table)

    def discard(self, table: tuple[str, str]) -> None:
        """Discards rows that were read from the table but not published: a statement may have changed the table."""
        if self._assembly.listener is not None:
            self._assembly.listener.discard(table)

    def here(self) -> Position:
        """Returns the position of the next row of the open transaction."""
        open_transaction = self._opened()
        return Change(transaction=open_transaction.transaction, ordinal=open_transaction.ordinal, stamp=None).position()

    def flush(self, *, but_last: int = 0) -> None:
        """Encodes the rows that were taken and are not encoded yet, except the last `but_last`. Reports the encoded
        rows to the listener.

        Call this before anything that changes how later rows are decoded. If a policy stops at one of the rows, the
        rows before that row's transaction are recorded, and ChangelogError (STOP) is raised; then call `fail`.
        """
        end = self._rows_taken - but_last
        if end <= self._encoded:
            return
        spans, last = parted(self._spans, but_last)
        self._spans = [*last]
        encoded = self._encode(self._encoded, end, spans)
        self._encoded = end
        self._assembled.unstamped += encoded.unstamped
        if encoded.stop is not None:
            self._publish_before(encoded, encoded.stop)
            raise encoded.stop
        if encoded.rows.num_rows:
            self._publish(encoded.rows, encoded.commits)
            if self._assembly.listener is not None:
                self._assembly.listener.touched(encoded.rows, encoded.xids)

    def fail(self, error: ChangelogError) -> Position:
        """Stops the changelog at the position of `error`, or here if the error has no position. Returns that position.

        Keeps everything before the transaction at that position, and discards the rest of the block. The rows that are
        not encoded yet come before the error in the log, so they are encoded first. If a policy stops at one of these
        rows, the changelog stops there. Raises ChangelogError (MALFORMED) if one of them is invalid.
        """
        position = error.position = error.position or self.here()
        try:
            self.flush()
        except ChangelogError as earlier:
            if earlier.kind is Kind.MALFORMED:
                raise
            at = earlier.position = earlier.position or self.here()
            if at < position:
                error, position = earlier, at
        commit = position.commit
        batches = []
        for rows, commits in self._batches:
            count = int(np.searchsorted(commits, commit))
            if count:
                batches.append((rows.slice(0, count), commits[:count]))
        self._batches = batches
        self._ended.keep_before(commit)
        assembled = self._assembled
        assembled.signals = [signal for signal in assembled.signals if signal[1].transaction.commit < commit]
        assembled.announced = [
            announced
            for announced in assembled.announced
            if announced.record.envelope.provenance.source.position.commit < commit
        ]
        self._assembly.stop = error
        self._assembly.open = None
        return position

    def result(self) -> Assembled:
        """Returns the result of the block. Call this once, at its end."""
        assembled = self._assembled
        assembled.rows = [rows for rows, _ in self._batches]
        if (last := self._ended.last()) is not None:
            assembled.last, end = last
            assembled.through = commit_text(end)
        open_transaction = self._assembly.open
        if (
            open_transaction is not None
            and self._batches
            and int(self._batches[-1][1][-1]) == open_transaction.transaction.commit
        ):
            assembled.last, assembled.partial = open_transaction.transaction, True
        return assembled

    def _opened(self) -> OpenTransaction:
        if self._assembly.open is None:
            raise ChangelogError(Kind.MALFORMED, "the stream sent a change outside a transaction")
        return self._assembly.open

    def _stamp(self, content: bytes, open_transaction: OpenTransaction, place: int, *, of_session: bool) -> None:
        """Applies a stamp to the next rows, and to the last rows that were taken if their record is at `place`.

        An invalid stamp is counted; then the previous stamp continues to apply. The stamp of a session applies only if
        the application has not written a stamp earlier in the transaction.
        """
        parsed = parse(content)
        if parsed.problem is not None:
            self._assembled.invalid_stamps.append((parsed.problem, open_transaction.transaction.xid))
        if parsed.stamp is None or (of_session and open_transaction.stamp is not None):
            return
        if of_session:
            open_transaction.fallback = parsed.stamp
        else:
            open_transaction.stamp = parsed.stamp
        span, late = self._spans[-1] if self._spans else None, 0
        if self._place_of is None or not isinstance(span, Span) or span.transaction is not open_transaction.transaction:
            return
        while late < span.rows and self._place_of(self._rows_taken - 1 - late) == place:
            late += 1
        if late:
            before, [late_span] = parted([span], late)
            self._spans[-1:] = [*before, msgspec.structs.replace(late_span, stamp=parsed.stamp)]

    def _signal(self, content: bytes, change: Change, settle: Callable[[], None], number: int | None = None) -> None:
        """Publishes the rows of a table read if the content names one. Otherwise records a signal to the service."""
        listener = self._assembly.listener
        if not is_nonce(content):
            signed = change.transaction.xid if number is None else number
            self._assembled.signals.append((content, change, signed))
        elif listener is not None and self._opened().published < 0:
            self.flush()
            settle()
            rows = listener.signal(content, change)
            if rows is not None and rows.num_rows:
                self._publish_read(rows, change.transaction.commit, listener)

    def _publish_read(self, rows: pa.RecordBatch, commit: int, listener: Listener) -> None:
        """Publishes the rows of a table read. They have the columns that the table had when it was read."""
        shapes, relation = batch.shapes(rows), batch.relation(rows)
        for entity in self._assembly.entities.values():
            if entity.name in shapes:
                self.set_columns(entity, TableColumns(columns=shapes[entity.name], relation=relation))
        try:
            self._publish(rows, np.full(rows.num_rows, commit))
        except ChangelogError:
            listener.withdraw()
            raise

    def _publish_before(self, encoded: EncodedRows, stop: ChangelogError) -> None:
        """Publishes only the rows before the transaction of the stop, because later rows may be missing."""
        at = stop.position or self.here()
        count = int(np.searchsorted(encoded.commits, at.commit))
        if count:
            self._publish(encoded.rows.slice(0, count), encoded.commits[:count])

    def _publish(self, rows: pa.RecordBatch, commits: Ints) -> None:
        """Adds the rows to the result. If an entity needs a new version, adds the version before its first row."""
        begin = 0
        for first in self._assembly.announcer.firsts(rows):
            if first.row > begin:
                self._batches.append((rows.slice(begin, first.row - begin), commits[begin : first.row]))
                begin = first.row
            announced = self._assembly.announcer.announce(first, rows.column("provenance")[first.row].as_py())
            self._assembled.announced.append(announced)
            self._batches.append((batch.from_records([announced.record]), commits[first.row : first.row + 1]))
        self._batches.append((rows.slice(begin), commits[begin:]))
