"""Runs a part of a campaign in a thread. If the thread fails, the main thread can raise its error."""

import threading
from abc import ABC, abstractmethod


class Background(threading.Thread, ABC):
    """A thread that works until `stopping` is set."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.stopping = threading.Event()
        self._failure: BaseException | None = None

    def run(self) -> None:
        try:
            self.work()
        except BaseException as error:  # noqa: BLE001 - `check` raises it
            self._failure = error

    @abstractmethod
    def work(self) -> None:
        """Does the work of the thread. Returns soon after `stopping` is set."""

    def check(self) -> None:
        """Raises the error that ended the thread, if there was one."""
        if self._failure is not None:
            raise self._failure
