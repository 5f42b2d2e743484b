"""Checks that the server's log is still the log that the changelog was made from. The log itself is the evidence.

A server that was restored to an earlier point continues with other transactions on the same timeline. Sooner or later,
its log grows past the end of the changelog. So neither the end of its log nor its timeline proves anything. But the
slot was restored together with the server, so its confirmed position is an earlier one too. The server sends every
transaction after this position, so the stream shows which transactions the log now has before the end of the changelog.
Therefore the checkpoint names the last transaction that the changelog has. If the slot has not confirmed that
transaction, the stream starts with it: the stream's first transaction must have the same commit position, id and time.
Until this transaction has arrived, the source does not move the slot's confirmed position past it. Otherwise, the
server would not send the transaction at the next start, and there would be nothing to check.
"""

from collections.abc import Callable, Mapping
from typing import Any, Self

from changelog.connectors.capture.rows.row_records import Transaction
from changelog.connectors.sources.postgres.values.lsn import lsn_text, parse_lsn, through_lsn
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.errors import OVER_GAP, ChangelogError, Kind
from changelog.envelope.position import Position

MEMBER = "history"
"""The member of a checkpoint's `source` that names the last transaction."""


def last_transaction(transaction: Transaction, publication: str) -> dict[str, Any]:
    """Returns the checkpoint's entry for `transaction`, the last one that the checkpoint covers.

    `publication` is the publication through which the server sent it.
    """
    return {
        "commit": lsn_text(transaction.commit),
        "xid": transaction.xid & 0xFFFFFFFF,  # the form in the log
        "committed_at": transaction.committed_at,
        "publication": publication,
    }


class History:
    """Checks which transaction the stream of an opened source begins with, and limits what the source may confirm.

    `start_lsn` is where the stream starts. `commit` is where the changelog's last transaction committed (-1 if that
    transaction is unknown). `durable` is how far the changelog is stored. Nothing can be checked if the slot has
    already confirmed the last transaction. Nothing can be checked either if that transaction came through another
    publication, because the present publication may leave the transaction out.
    """

    def __init__(self, last: Mapping[str, Any] | None, through_lsn: int, publication: str, confirmed: int) -> None:
        self.durable = self.start_lsn = through_lsn
        self.commit = -1 if last is None else parse_lsn(last["commit"])
        self._publication = publication
        self._awaited: Mapping[str, Any] | None = None
        if last is not None and confirmed <= self.commit and last["publication"] == publication:
            self._awaited, self.start_lsn = last, min(through_lsn, self.commit)

    @classmethod
    def of(cls, checkpoint: Checkpoint | None, publication: str, confirmed_flush: int) -> Self:
        """Returns the history for the changelog that ends at `checkpoint`.

        `checkpoint` is None if the changelog is new, or if the changelog comes from another cluster.
        """
        if checkpoint is None:
            return cls(None, confirmed_flush, publication, confirmed_flush)
        return cls(checkpoint.source.get(MEMBER), through_lsn(checkpoint), publication, confirmed_flush)

    def covered(self, checkpoint: Checkpoint, epoch: Callable[[int], int]) -> Position | None:
        """Returns the position up to which the changelog already has everything that the stream sends.

        It is the position of the last published row or of the last transaction, whichever is later.
        """
        if self.commit < 0 or checkpoint.partial:
            return checkpoint.position
        last = Position(epoch(self.commit), self.commit, 0)
        return last if checkpoint.position is None else max(checkpoint.position, last)

    @property
    def confirmable(self) -> int:
        """The log position up to which the source may confirm the log; the server may then remove the log before it."""
        return self.durable if self._awaited is None else self.start_lsn

    def heard(self, first: Transaction | None) -> bool:
        """Checks the first transaction of the stream; returns whether it is the changelog's last transaction.

        Raises ChangelogError (DIVERGED) if it is another transaction. Returns False if there is nothing to check: if no
        transaction has arrived yet, or if the first one need not be the changelog's last one.
        """
        if self._awaited is None or first is None:
            return False
        if self._awaited != last_transaction(first, self._publication):
            raise self._diverged(self._awaited)
        self._awaited = None
        return True

    def reached(self, wal_end: int) -> None:
        """Checks a stream that has delivered everything before `wal_end`.

        Raises ChangelogError (DIVERGED) if the stream should have delivered the changelog's last transaction, but did
        not.
        """
        if self._awaited is not None and wal_end > self.commit:
            raise self._diverged(self._awaited)

    def _diverged(self, awaited: Mapping[str, Any]) -> ChangelogError:
        return ChangelogError(
            Kind.DIVERGED,
            f"the server's log lacks the last transaction of the changelog ({awaited['xid']}, committed at "
            f"{awaited['commit']}): the database was restored to an earlier point, or is another copy of the same "
            "database",
            hint=f"connect to the server that has this transaction; if no server does, {OVER_GAP}",
        )
