"""A gate that many threads pass at a time, and that one thread closes to have the place behind it for itself."""

import contextlib
import threading
from collections.abc import Iterator


class Gate:
    """Counts the threads that have passed. Closing it keeps new ones out, and waits until those inside have left."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._closed = False

    @contextlib.contextmanager
    def passing(self) -> Iterator[None]:
        """Waits until the gate is open, and keeps it from being closed inside the block."""
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
        """Closes the gate, and opens it after the block."""
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

    All transactions pass `transactions`. What no server survives unharmed if it is killed in the middle passes
    `fragile`: old versions do not keep DDL, and the steps of XA transactions, and the log consistent. A thread that
    needs both takes `transactions` first. Inside, `deciding` is held by the only thread that ends prepared XA
    transactions: if two sessions end the same one, MySQL can log both a commit and a rollback.
    """

    def __init__(self) -> None:
        self.transactions = Gate()
        self.fragile = Gate()
        self.deciding = threading.Lock()
