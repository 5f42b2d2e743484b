"""Commits prepared XA transactions or rolls them back, and keeps a record of all XA transactions."""

import random
import threading
import time
from collections import Counter

import pymysql
from pymysql.cursors import Cursor

ABSENT = (1397, 1399, 1401, 1402)
"""Codes of errors: another session still has the transaction, or the transaction no longer exists."""


class XaRecord:
    """What happened to the XA transactions of a run. Several threads may use this object.

    `counts` says how many transactions were `begun`, `prepared`, `committed` and `rolled_back`. Its entry
    `over_restart` counts those that were prepared before a restart, and committed or rolled back after this restart. A
    restart is a new start of the service or the server, or the moment at which the replica takes the server's place.

    The attribute `rolled_back` has the numbers (column `txn`) of the prepared transactions that were rolled back.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.rolled_back: set[int] = set()
        self._lock = threading.Lock()
        self._restarts = 0
        self._prepared: dict[str, tuple[int, int]] = {}

    def restart(self) -> None:
        """Notes a restart."""
        with self._lock:
            self._restarts += 1

    def begin(self) -> None:
        """Notes that a transaction has begun."""
        with self._lock:
            self.counts["begun"] += 1

    def prepare(self, name: str, txn: int) -> None:
        """Notes that a transaction is prepared."""
        with self._lock:
            self.counts["prepared"] += 1
            self._prepared[name] = txn, self._restarts

    def commit_unprepared(self) -> None:
        """Notes that a transaction was committed in one phase."""
        with self._lock:
            self.counts["committed"] += 1

    def decide(self, name: str, outcome: str) -> None:
        """Notes that a prepared transaction was committed or rolled back. `outcome` is COMMIT or ROLLBACK."""
        with self._lock:
            txn, restarts = self._prepared.pop(name)
            self.counts["committed" if outcome == "COMMIT" else "rolled_back"] += 1
            self.counts["over_restart"] += restarts < self._restarts
            if outcome == "ROLLBACK":
                self.rolled_back.add(txn)


def decide(cursor: Cursor, rng: random.Random, record: XaRecord, *, share: float) -> bool:
    """Commits or rolls back this share of the prepared XA transactions. Returns whether the server had no prepared XA
    transactions.
    """
    cursor.execute("XA RECOVER")
    names = [row[3].decode() if isinstance(row[3], bytes) else row[3] for row in cursor.fetchall()]
    for name in names:
        if rng.random() < share:
            outcome = rng.choice(("COMMIT", "COMMIT", "ROLLBACK"))
            try:
                cursor.execute(f"XA {outcome} '{name}'")
            except pymysql.Error as error:
                if error.args[0] not in ABSENT:
                    raise
            else:
                record.decide(name, outcome)
    return not names


def decide_all(cursor: Cursor, record: XaRecord) -> None:
    """Commits or rolls back all prepared XA transactions. If one still belongs to another session, waits until that
    session ends.
    """
    rng = random.Random(0)
    while not decide(cursor, rng, record, share=1.0):
        time.sleep(0.05)
