"""Whether the server's log is still the one that the changelog was made of: the log itself is the evidence.

A server that was restored to an earlier point goes on with other transactions, on the same timeline and past any
position: its log end and its timeline prove nothing. But its slot was restored with it, so it sends again what that
slot had not confirmed. The checkpoint therefore names the last transaction that it covers. Where the slot has not
confirmed that one, the stream begins there, and it must come first: the same commit, id and time. Nothing is confirmed
before it has come, or the server would not send it to the next start either.
"""

from collections.abc import Callable, Mapping
from typing import Any, Self

from connectors.capture.rows.row_records import Transaction
from connectors.sources.postgres.values.lsn import lsn_text, parse_lsn, through_lsn
from envelope.checkpoint import Checkpoint
from envelope.errors import OVER_GAP, ChangelogError, Kind
from envelope.position import Position

MEMBER = "history"
"""The member of a checkpoint's `source` that names the last transaction."""


def last_transaction(transaction: Transaction, publication: str) -> dict[str, Any]:
    """How a checkpoint names the last transaction that it covers, as seen through this publication."""
    return {
        "commit": lsn_text(transaction.commit),
        "xid": transaction.xid & 0xFFFFFFFF,  # as the log has it
        "committed_at": transaction.committed_at,
        "publication": publication,
    }


class History:
    """What the stream of one opening must begin with, and how far may be confirmed.

    `start_lsn` is where it is to begin, `commit` where the last transaction of the changelog was committed (-1 where
    none is `known`), `durable` how far the changelog is stored. Where the slot has `confirmed` that transaction, or was
    read through another publication, which may leave it out, nothing can be asked.
    """

    def __init__(self, known: Mapping[str, Any] | None, through_lsn: int, publication: str, confirmed: int) -> None:
        self.durable = self.start_lsn = through_lsn
        self.commit = -1 if known is None else parse_lsn(known["commit"])
        self._publication = publication
        self._awaited: Mapping[str, Any] | None = None
        if known is not None and confirmed <= self.commit and known["publication"] == publication:
            self._awaited, self.start_lsn = known, min(through_lsn, self.commit)

    @classmethod
    def of(cls, stored: Checkpoint | None, publication: str, confirmed_flush: int) -> Self:
        """That of the changelog that ends at `stored`, read from a slot; None is a new one, or one without a link."""
        if stored is None:
            return cls(None, confirmed_flush, publication, confirmed_flush)
        return cls(stored.source.get(MEMBER), through_lsn(stored), publication, confirmed_flush)

    def covered(self, stored: Checkpoint, epoch: Callable[[int], int]) -> Position | None:
        """Up to where the stream holds nothing new: the last published row, or the last transaction if it had none."""
        if self.commit < 0 or stored.partial:
            return stored.position
        last = Position(epoch(self.commit), self.commit, 0)
        return last if stored.position is None else max(stored.position, last)

    @property
    def confirmable(self) -> int:
        """How far may be confirmed."""
        return self.durable if self._awaited is None else self.start_lsn

    def heard(self, first: Transaction | None) -> bool:
        """The stream went on with this transaction; whether that was the awaited one.

        Raises ChangelogError (DIVERGED) when it is another.
        """
        if self._awaited is None or first is None:
            return False
        if self._awaited != last_transaction(first, self._publication):
            raise self._diverged(self._awaited)
        self._awaited = None
        return True

    def reached(self, wal_end: int) -> None:
        """All before `wal_end` has come. Raises ChangelogError (DIVERGED) when the awaited transaction has not."""
        if self._awaited is not None and wal_end > self.commit:
            raise self._diverged(self._awaited)

    def _diverged(self, awaited: Mapping[str, Any]) -> ChangelogError:
        return ChangelogError(
            Kind.DIVERGED,
            f"the server's log lacks the transaction that the changelog ends with ({awaited['xid']}, committed at "
            f"{awaited['commit']}): the database was restored to an earlier point, or is another copy of it",
            hint=f"connect to the server that has it; if there is none, {OVER_GAP}",
        )
