"""Defines a gate, which many threads can pass at the same time, until one thread closes it to run alone."""

import contextlib
import threading
from collections.abc import Iterator


class Gate:
    """Counts the threads inside. A thread that closes the gate waits until the threads inside have left. No other
    thread enters while the gate is closed or being closed.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._closed = False

    @contextlib.contextmanager
    def passing(self) -> Iterator[None]:
        """Waits until the gate is open. Nobody can close it while the block runs."""
        with self._changed:
            self._changed.wait_for(lambda: not self._closed)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def closed(self) -> Iterator[None]:
        """Closes the gate, runs the block alone, and opens the gate."""
        with self._changed:
            self._changed.wait_for(lambda: not self._closed)
            self._closed = True
            self._changed.wait_for(lambda: not self._inside)
        try:
            yield
        finally:
            with self._changed:
                self._closed = False
                self._changed.notify_all()


class Gates:
    """The two gates of a campaign.

    All transactions pass `transactions`. DDL and the steps of XA transactions pass `fragile`. This gate is closed while
    the server is killed. Otherwise, the tables and the log of old server versions could disagree after a kill in such a
    statement. A thread that needs both gates takes `transactions` first.

    A thread holds the lock `deciding` while it commits or rolls back prepared XA transactions. If two sessions ended
    the same transaction, MySQL could log both a commit and a rollback.
    """

    def __init__(self) -> None:
        self.transactions = Gate()
        self.fragile = Gate()
        self.deciding = threading.Lock()
