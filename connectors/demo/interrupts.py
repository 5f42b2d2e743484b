"""Signals during the demo: whatever comes, what was started is stopped before the process ends."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Turns every signal that ends a program into a KeyboardInterrupt, as a context manager of the main thread."""

    def __init__(self) -> None:
        self._kept: dict[signal.Signals, Any] = {}
        self._held = False
        self._came = False

    def __enter__(self) -> Self:
        self._kept = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._kept.items():
            signal.signal(number, handler)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Lets what is begun here come to its end; a signal that came meanwhile takes effect after it."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
            if self._came:
                self._came = False
                raise KeyboardInterrupt

    def _on_signal(self, _: int, __: FrameType | None) -> None:
        if self._held:
            self._came = True
        else:
            raise KeyboardInterrupt
