"""Handles signals during the demo, so that an interrupted demo still stops everything that it started."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """A context manager for the main thread. Inside it, SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt."""

    def __init__(self) -> None:
        self._previous: dict[signal.Signals, Any] = {}
        self._deferring = False
        self._pending = False

    def __enter__(self) -> Self:
        self._previous = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @contextmanager
    def delayed(self) -> Iterator[None]:
        """Delays signals: a signal in the body of the `with` raises KeyboardInterrupt at the end of the body."""
        self._deferring = True
        try:
            yield
        finally:
            self._deferring = False
            if self._pending:
                self._pending = False
                raise KeyboardInterrupt

    def _on_signal(self, _: int, __: FrameType | None) -> None:
        if self._deferring:
            self._pending = True
        else:
            raise KeyboardInterrupt
