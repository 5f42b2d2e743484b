"""Holds the rows of prepared XA transactions until they are committed or rolled back.

A prepared transaction survives its session, and even a restart of the server. The log has its rows at the place where
it was prepared. But they become visible only when it is committed, so they are published at the place of the commit,
and the service holds them in memory until then. After a restart, the service asks the server to send the prepared
transactions again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from changelog.connectors.sources.mysql.decode.events.events import RowsEvent, TableMap, XaId
from changelog.connectors.sources.mysql.values.positions.gtids import Gtids
from changelog.envelope.errors import OVER_GAP, ChangelogError, Kind
from changelog.envelope.model import Stamp

HELD_BYTES_MAX = 256 << 20
"""The rows of all prepared transactions may together take up at most this many bytes of memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signed:
    """The stamp of the next rows, from the comment of their statement; None if these rows have no stamp."""

    stamp: Stamp | None


HeldEvent = TableMap | RowsEvent | Signed


@dataclass(slots=True, kw_only=True)
class HeldTransaction:
    """The rows of one prepared transaction.

    `gtid` is the GTID of its PREPARE, and `commit` the coordinate of this GTID. `before` has the transactions that the
    server had sent before this one. `before` is None for MySQL, where a set of GTIDs can leave out this transaction and
    still have later ones.
    """

    gtid: str
    commit: int
    before: Gtids | None
    events: list[HeldEvent] = field(default_factory=list)
    nbytes: int = 0
    stamp: Stamp | None = None

    def add(self, event: TableMap | RowsEvent) -> None:
        """Adds an event. Counts its size in memory, which may exceed its size in the log: MariaDB can compress rows."""
        self.events.append(event)
        self.nbytes += max(event.header.size, len(event.body))

    def sign(self, stamp: Stamp | None) -> None:
        """Sets the stamp of the next rows."""
        if stamp != self.stamp:
            self.stamp = stamp
            self.events.append(Signed(stamp=stamp))


class PreparedTransactions:
    """The prepared transactions whose commit or rollback has not been delivered."""

    def __init__(self, bytes_max: int = HELD_BYTES_MAX) -> None:
        self._transactions: dict[XaId, HeldTransaction] = {}
        self._bytes_max = bytes_max
        self._nbytes = 0

    def __bool__(self) -> bool:
        return bool(self._transactions)

    def __contains__(self, xa_id: XaId) -> bool:
        return xa_id in self._transactions

    @property
    def transactions(self) -> Sequence[HeldTransaction]:
        """The prepared transactions, in the order in which they were prepared."""
        return sorted(self._transactions.values(), key=lambda transaction: transaction.commit)

    def hold(self, xa_id: XaId, transaction: HeldTransaction) -> None:
        """Adds a transaction whose rows are complete. If it is sent again, the new rows replace the old ones."""
        self.take(xa_id)
        self._transactions[xa_id] = transaction
        self._nbytes += transaction.nbytes

    def check(self, xa_id: XaId, transaction: HeldTransaction) -> None:
        """Raises ChangelogError (LIMIT) if the rows of all transactions, including `transaction`, take too much memory.

        `transaction` has the rows of `xa_id` that have arrived so far. If the server has sent this transaction before,
        the rows from that time do not count.
        """
        earlier = self._transactions.get(xa_id)
        if self._nbytes - (0 if earlier is None else earlier.nbytes) + transaction.nbytes > self._bytes_max:
            raise ChangelogError(
                Kind.LIMIT,
                f"the rows of prepared XA transactions take more than {self._bytes_max >> 20} MiB",
                hint=f"prepare smaller transactions, or fewer at a time; to get past the present ones, {OVER_GAP}",
            )

    def forget_from(self, commit: int) -> None:
        """Forgets the transactions that were prepared at or after this coordinate: they will be delivered again."""
        for xa_id in [xa_id for xa_id, transaction in self._transactions.items() if transaction.commit >= commit]:
            self.take(xa_id)

    def take(self, xa_id: XaId) -> HeldTransaction | None:
        """Removes and returns a transaction, because it has ended; None if it is not known."""
        transaction = self._transactions.pop(xa_id, None)
        if transaction is not None:
            self._nbytes -= transaction.nbytes
        return transaction
