"""Reads facts that are slow to read, in the background, so that a page waits for them only a moment."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import structlog

from changelog.envelope.errors import ChangelogError

T = TypeVar("T")

REST = 20.0
"""After a read that took s seconds, the value stays fresh for at least `REST` * s seconds."""

_log = structlog.get_logger("console")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer(Generic[T]):
    """The last value that was read, or why it could not be read. Both are None until the first read has ended."""

    value: T | None = None
    problem: str | None = None


class Fact(Generic[T]):
    """A value that `read` returns. If the last read is older than `fresh_s` seconds, `get` reads again in a thread.

    A value that takes long to read is read less often, so that reading never takes much of the processor.
    """

    def __init__(self, read: Callable[[], T], *, fresh_s: float) -> None:
        self._read, self._least_fresh_s, self._fresh_s = read, fresh_s, fresh_s
        self._lock = threading.Lock()
        self._ready = threading.Event()
        self._reading = False
        self._read_at_s: float | None = None
        self._answer: Answer[T] = Answer()

    def get(self, patience_s: float) -> Answer[T]:
        """Returns the result of the last read. While the value is being read, first waits for the end of this read, for
        `patience_s` seconds at most.
        """
        with self._lock:
            is_fresh = self._read_at_s is not None and time.monotonic() - self._read_at_s < self._fresh_s
            if not is_fresh and not self._reading:
                self._reading = True
                self._ready.clear()
                threading.Thread(target=self._run, daemon=True).start()
        self._ready.wait(patience_s)
        return self._answer

    def _run(self) -> None:
        answer: Answer[T]
        began_s = time.monotonic()
        try:
            answer = Answer(value=self._read())
        except ChangelogError as error:
            answer = Answer(problem=str(error))
        except Exception as error:  # noqa: BLE001 - the page must get an answer; the text may have row values
            _log.error("internal error", error=type(error).__name__, page="facts")
            answer = Answer(problem=f"internal error ({type(error).__name__})")
        with self._lock:
            self._answer, self._read_at_s, self._reading = answer, time.monotonic(), False
            self._fresh_s = max(self._least_fresh_s, REST * (self._read_at_s - began_s))
            self._ready.set()
