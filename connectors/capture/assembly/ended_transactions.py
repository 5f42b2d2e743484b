"""Remembers which transactions have ended in a block (a stretch of the log that is decoded at once), and where."""

from dataclasses import dataclass, field

import numpy as np

from changelog.connectors.capture.assembly.assembled import Ints
from changelog.connectors.capture.rows.row_records import Transaction
from changelog.connectors.capture.rows.spans import SpanColumns


@dataclass(slots=True)
class EndedTransactions:
    """The transactions that have ended, in the order of the log, which is also the order of their commits."""

    _parts: list[tuple[Transaction, int] | tuple[SpanColumns, Ints]] = field(default_factory=list)

    def add(self, transaction: Transaction, end: int) -> None:
        """Adds a transaction. `end` is the place in the log at which it ends."""
        self._parts.append((transaction, end))

    def add_all(self, spans: SpanColumns, ends: Ints) -> None:
        """Adds the transactions of these spans (runs of rows). Each span has all rows of its transaction."""
        self._parts.append((spans, ends))

    def last(self, before: int | None = None) -> tuple[Transaction, int] | None:
        """Returns the last transaction, and where it ends; with `before`, the last one whose commit is below `before`.

        Returns None if there is no such transaction.
        """
        for transactions, ends in reversed(self._parts):
            if isinstance(transactions, Transaction):
                if before is None or transactions.commit < before:
                    return transactions, int(ends)
                continue
            commits = transactions.commits
            number = len(commits) if before is None else int(np.searchsorted(commits, before))
            if number:
                return transactions.transaction(number - 1), int(np.asarray(ends)[number - 1])
        return None

    def keep_before(self, commit: int) -> None:
        """Forgets all transactions except the last one whose commit is below `commit`. Afterwards, only call `last`."""
        last = self.last(commit)
        self._parts = [] if last is None else [last]
