"""Defines a lock that works like a gate: many threads can be inside at once, until a thread closes it to run alone."""

import contextlib
import threading
from collections.abc import Iterator


class Gate:
    """Lets many threads in at once. A thread that closes the gate waits until all threads have left. Until it opens the
    gate again, no other thread can enter.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._closed = False

    @contextlib.contextmanager
    def passing(self) -> Iterator[None]:
        """Waits until the gate is open, and runs the block inside. No thread can run alone until the block ends."""
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
        """Closes the gate, waits until all threads have left, runs the block, and opens the gate."""
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

    All transactions run inside `transactions`. DDL and the steps of XA transactions run inside `fragile`, and the
    server is killed only while `fragile` is closed. If an old version of the server were killed during such a
    statement, its tables and its log could disagree afterwards. A thread that needs both gates takes `transactions`
    first.

    A thread holds the lock `deciding` while it commits or rolls back prepared XA transactions. Without this lock, two
    sessions could end the same transaction, and MySQL could log both a commit and a rollback of it.
    """

    def __init__(self) -> None:
        self.transactions = Gate()
        self.fragile = Gate()
        self.deciding = threading.Lock()
