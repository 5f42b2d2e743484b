"""Notifies the service manager that the service is ready, alive or stopping (sd_notify(3))."""

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Manager:
    """A service manager that listens at `address`.

    The manager may end a service that sends no message for `watchdog_s` seconds. If `watchdog_s` is None, the manager
    sets no such limit.
    """

    address: str
    watchdog_s: float | None = None

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "Manager | None":
        """Returns the manager that the environment variables of this process name, None if they name none."""
        if not (address := environment.get("NOTIFY_SOCKET")):
            return None
        is_watched = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        limit_us = int(environment.get("WATCHDOG_USEC", 0)) if is_watched else 0
        return cls(address=address, watchdog_s=limit_us / 1_000_000 or None)

    @contextlib.contextmanager
    def watching(self, live: Callable[[], bool]) -> Iterator[None]:
        """Tells the manager that the service is ready, and at the end that it stops.

        In between, a manager that watches the service is told again and again that the service is alive, but not while
        `live` returns False.
        """
        self._notify("READY=1")
        ended = threading.Event()
        beats = threading.Thread(target=self._beat, args=(live, ended), daemon=True, name="watchdog")
        if self.watchdog_s is not None:
            beats.start()
        try:
            yield
        finally:
            ended.set()
            self._notify("STOPPING=1")

    def _beat(self, live: Callable[[], bool], ended: threading.Event) -> None:
        assert self.watchdog_s is not None
        while not ended.wait(self.watchdog_s / 3):
            if live():
                self._notify("WATCHDOG=1")

    def _notify(self, state: str) -> None:
        """Sends a notification. If the manager does not listen, nothing happens."""
        address = "\0" + self.address[1:] if self.address.startswith("@") else self.address
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending:
            sending.setblocking(False)
            sending.sendto(state.encode(), address)
