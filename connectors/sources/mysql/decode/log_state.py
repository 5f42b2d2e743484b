"""Tracks the place of the stream in the binary log, the transactions that it delivered, and the open transaction."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from changelog.connectors.sources.mysql.decode.events import events as log
from changelog.connectors.sources.mysql.decode.log_place import LogPlace
from changelog.connectors.sources.mysql.decode.prepared import HeldTransaction, PreparedTransactions
from changelog.connectors.sources.mysql.values.positions.gtid_set import GtidSet
from changelog.connectors.sources.mysql.values.positions.gtids import Gtids
from changelog.envelope.errors import OVER_GAP, ChangelogError, Kind
from changelog.envelope.model import Stamp
from changelog.envelope.position import Position

Ints = npt.NDArray[np.int64]


@dataclass(slots=True, kw_only=True)
class LogTransaction:
    """A transaction whose GTID was read.

    `commit` is its coordinate (its place in the log, as one number) on this server. `is_repeated` says that it was
    already delivered before the source was opened. `stamp` is the stamp that the tag of its GTID stands for; None
    without a tag. `takes_effect` is false if the transaction only begins a two-phase ALTER of MariaDB, or rolls one
    back.
    """

    gtid: str
    commit: int
    committed_at: int
    is_repeated: bool
    stamp: Stamp | None = None
    takes_effect: bool = True


class Series(NamedTuple):
    """Transactions that were read together. The text of each GTID is `head`, followed by one of `numbers`.

    `commits` has their coordinates, which increase.
    """

    head: str
    numbers: Ints
    commits: Ints


class LogState:
    """Tracks where the stream is, and which transactions it has delivered.

    `received` has the transactions that were delivered before the source was opened; they are dropped if the server
    sends them again. `resume` has the transactions that the server was asked not to send again. Before the rows of
    a transaction are assembled, `on_delivery` is called with its coordinate, its GTID, and whether it is an XA
    transaction that was committed in ONE PHASE. It need not be called while `records` returns false. `half` and
    `dropped` are described at the attributes of these names.
    """

    def __init__(
        self,
        *,
        epoch: int,
        received: Gtids,
        resume: Gtids,
        database: str,
        on_delivery: Callable[[int, str, bool], None] = lambda *_: None,
        records: Callable[[], bool] = lambda: True,
        half: tuple[str, int, int] | None = None,
        dropped: Iterable[str] = (),
        lower_case_table_names: int = 0,
    ) -> None:
        self.lower_case_table_names = lower_case_table_names
        self.epoch, self.database = epoch, database
        self.half = half
        """The last transaction that was published in part: its GTID, and the epoch and the commit in the positions of
        the published rows.

        The transaction's other rows get the same epoch and commit, even if another server sends them.
        """
        self._awaits_half = half is not None
        """True while the rest of `half` has not been read. The server must send it before all other rows, because these
        have later positions.
        """
        self.leaves_epoch = False
        """Whether the block must end, because the transaction that has just ended has the epoch of another server.

        The commits of two servers cannot be compared, so a block has rows of one epoch only.
        """
        self.on_delivery, self.records = on_delivery, records
        self.place = LogPlace()
        self.prepared = PreparedTransactions()
        self.transaction: LogTransaction | None = None
        self.is_open = False
        """Whether the BEGIN of the transaction was read, so that its rows can follow.

        If a statement follows a GTID without a BEGIN, this statement is the whole transaction.
        """
        self.holding: tuple[log.XaId, HeldTransaction] | None = None
        """The XA transaction that is being prepared."""
        self.maps: dict[int, log.TableMap] = {}
        self.unlogged: list[tuple[str, str]] = []
        """The entities with changed rows that are not in the log, each with the reason. The source empties the list. It
        reads the tables of these entities if their `on_unlogged` says so.
        """
        self.dropped = frozenset(dropped)
        """The entities whose tables were dropped or renamed, and not created again, by the end of the last block."""
        self.passed = 0
        """A coordinate between two transactions. The stream has read everything before it. The assembler sets it."""
        self._received = received
        self._resume: Gtids | None = resume
        """None once a new transaction was read. Until then, the server may be sending prepared transactions again."""
        self._gtids, self._sent = received.builder(), resume.builder()
        self._ended: list[LogTransaction | Series] = []
        self._ended_before = 0
        self._completed: list[tuple[int, log.XaId, HeldTransaction]] = []
        self._unlogged: list[tuple[int, str, str]] = []
        self._drops: list[tuple[int, str, bool]] = []

    @property
    def gtids(self) -> Gtids:
        """The transactions that were delivered before the source was opened, and those that were delivered completely
        by the end of the last block.
        """
        return self._gtids.build()

    @property
    def resume(self) -> Gtids:
        """The transactions that the server need not send after a restart: `gtids` without prepared XA transactions.

        A position of MariaDB cannot leave out single transactions, so MariaDB sends again everything from the first
        prepared transaction on.
        """
        if self._resume is not None:
            return self._resume
        prepared_transactions = self.prepared.transactions
        if not prepared_transactions:
            return self.gtids
        gtids, before = self.gtids, prepared_transactions[0].before
        if isinstance(gtids, GtidSet):
            prepared = GtidSet(intervals={}).builder()
            for transaction in prepared_transactions:
                prepared.add(transaction.gtid)
            return gtids.minus(prepared.build())
        assert before is not None
        return before

    @property
    def here(self) -> int:
        """The coordinate of the transaction that is being read. If there is none, a coordinate after the last one."""
        if self.transaction is not None:
            return self.transaction.commit
        try:
            return self.place.end
        except ChangelogError:  # no file is known yet, or the offset is too large for a coordinate
            return self._ended_before

    def is_seen(self, gtid: str) -> bool:
        """Returns whether a transaction was delivered before the source was opened."""
        return self._received.contains(gtid)

    def undecided_before(self, xa_id: log.XaId) -> int:
        """Returns a coordinate before which the stream has neither COMMIT nor ROLLBACK of a prepared transaction.

        Returns 0 if the stream does not have the transaction as prepared. Other threads call this, too. So the method
        reads the coordinate before it looks for the transaction, which may end meanwhile.
        """
        passed = self.passed
        return passed if xa_id in self.prepared else 0

    def begin(self, transaction: LogTransaction) -> None:
        """Records that the GTID of a transaction was read."""
        self.transaction = transaction
        if not transaction.is_repeated:
            self._resume = None

    def end(self, transaction: LogTransaction) -> None:
        """Records that a transaction has ended."""
        self._ended.append(transaction)
        self._ended_before = transaction.commit + 1
        if self.half is not None and transaction.gtid == self.half[0]:
            self.leaves_epoch, self._awaits_half = self.half[1] != self.epoch, False
        self.transaction, self.holding, self.is_open = None, None, False
        self.maps.clear()

    def can_pass(self, head: str, numbers: Ints) -> bool:
        """Returns whether `pass_all` can record the next transactions, which have these GTIDs, all at once.

        This is so if no transaction is open, the rest of `half` is not awaited, and all these transactions are new.
        """
        if self.transaction is not None or self._awaits_half:
            return False
        return not self._received.contains_any(head, numbers)

    def pass_all(self, series: Series) -> None:
        """Records transactions for which `can_pass` returned true, from their beginning to their end."""
        self._resume = None
        self._ended.append(series)
        self._ended_before = int(series.commits[-1]) + 1

    def check_order(self) -> None:
        """Raises ChangelogError (DIVERGED) if the open transaction comes before the rest of `half`.

        A replica that was promoted may have committed two transactions in another order than its primary did.
        """
        if (
            self._awaits_half
            and self.half is not None
            and self.transaction is not None
            and self.transaction.gtid != self.half[0]
        ):
            raise ChangelogError(
                Kind.DIVERGED,
                f"the server committed {self.transaction.gtid} before {self.half[0]}, which is already published in "
                "part",
                hint=f"connect to the server from which that part was read; or {OVER_GAP}",
            )

    def hold(self, xa_id: log.XaId, transaction: LogTransaction) -> None:
        """Begins to collect the rows of an XA transaction. `transaction` is the log's transaction that prepares it."""
        before = None if isinstance(self._received, GtidSet) else self._all_sent()
        self.holding = xa_id, HeldTransaction(gtid=transaction.gtid, commit=transaction.commit, before=before)

    def _all_sent(self) -> Gtids:
        """Returns the transactions that the server has sent, up to this place."""
        builder = self._sent.build().builder()
        for entry in self._ended:
            if isinstance(entry, Series):
                builder.add_all(entry.head, entry.numbers)
            else:
                builder.add(entry.gtid)
        return builder.build()

    def complete(self, xa_id: log.XaId, commit: int) -> HeldTransaction | None:
        """Returns the rows of the prepared transaction `xa_id`; None if the transaction is unknown.

        `commit` is the coordinate of the transaction that commits it or rolls it back.
        """
        transaction = self.prepared.take(xa_id)
        if transaction is not None:
            self._completed.append((commit, xa_id, transaction))
        return transaction

    def miss(self, entity: str, reason: str) -> None:
        """Records that the present transaction changed rows of an entity without logging them."""
        assert self.transaction is not None
        self._unlogged.append((self.transaction.commit, entity, reason))

    def exists(self, entity: str, *, exists: bool) -> None:
        """Records whether an entity's table exists after the present transaction."""
        assert self.transaction is not None
        self._drops.append((self.transaction.commit, entity, not exists))

    def is_dropped(self, entity: str) -> bool:
        """Returns whether an entity's table was dropped or renamed, and not created again, up to this place."""
        for _, name, dropped in reversed(self._drops):
            if name == entity:
                return dropped
        return entity in self.dropped

    def end_block(self, stopped: Position | None) -> None:
        """Ends a block: the events that were read since the last call. `stopped` is the position at which the changelog
        stopped in this block; None without a stop.

        After a stop, the transaction at that position and all later ones are forgotten, because they will be delivered
        once more.
        """
        stop = None if stopped is None else self._coordinate(stopped)
        for entry in self._ended:
            if isinstance(entry, Series):
                count = len(entry.commits) if stop is None else int(np.searchsorted(entry.commits, stop))
                self._sent.add_all(entry.head, entry.numbers[:count])
                self._gtids.add_all(entry.head, entry.numbers[:count])
            elif stop is None or entry.commit < stop:
                self._sent.add(entry.gtid)
                if not entry.is_repeated:
                    self._gtids.add(entry.gtid)
        for commit, xa_id, transaction in self._completed:
            if stop is not None and commit >= stop:
                self.prepared.hold(xa_id, transaction)
        if stop is not None:
            self.prepared.forget_from(stop)
        self.unlogged += [
            (entity, reason) for commit, entity, reason in self._unlogged if stop is None or commit < stop
        ]
        for commit, entity, dropped in self._drops:
            if stop is None or commit < stop:
                self.dropped = self.dropped | {entity} if dropped else self.dropped - {entity}
        self._drops.clear()
        self._ended.clear()
        self._completed.clear()
        self._unlogged.clear()
        self.leaves_epoch = False

    def _coordinate(self, position: Position) -> int:
        """Returns the coordinate, on this server, of the transaction at a position.

        This is the position's commit, unless that is a coordinate of another server.
        """
        if self.half is not None and self.half[1:] == (position.epoch, position.commit):
            for transaction in (*self._ended, self.transaction):
                if isinstance(transaction, LogTransaction) and transaction.gtid == self.half[0]:
                    return transaction.commit
        return position.commit
