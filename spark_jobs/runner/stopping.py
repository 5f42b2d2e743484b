"""Lets a continuous job finish its batch when SIGTERM arrives."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def stopping_signal() -> Iterator[threading.Event]:
    """Yields an event that is set when SIGTERM arrives."""
    stopped = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGTERM, before)
