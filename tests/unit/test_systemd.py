"""Tests the messages that the service sends to a service manager. The tests listen at a socket like that of systemd."""

import os
import queue
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from changelog.connectors.service.systemd import Manager
from tests.patience import PATIENCE_S


class Listener:
    """Listens at `address`. Expects datagrams of at most 100 bytes.

    Takes each datagram from the socket at once, as systemd does. A socket keeps only ten datagrams; later ones would be
    lost.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address.replace("@", "\0"))
        self._taken: queue.Queue[bytes] = queue.Queue()
        self._thread = threading.Thread(target=self._run, name="listener")
        self._thread.start()

    def _run(self) -> None:
        while datagram := self._socket.recv(100):
            self._taken.put(datagram)

    def next(self, patience_s: float = PATIENCE_S) -> bytes:
        """Returns the next datagram. Raises queue.Empty if none comes within `patience_s`."""
        return self._taken.get(timeout=patience_s)

    def close(self) -> None:
        """Ends the thread with an empty datagram, and closes the socket."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ending:
            ending.sendto(b"", self._socket.getsockname())
        self._thread.join()
        self._socket.close()


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[Listener]:
    with closing(Listener(str(tmp_path / "notify"))) as listener:
        yield listener


def manager(listener: Listener, **environment: str) -> Manager:
    manager_ = Manager.of({"NOTIFY_SOCKET": listener.address, **environment})
    assert manager_ is not None
    return manager_


def test_a_process_that_no_manager_started_has_no_manager() -> None:
    assert Manager.of({}) is None


def test_a_service_reports_that_it_is_alive_until_it_stops(systemd: Listener) -> None:
    with manager(systemd, WATCHDOG_USEC="30000").watching(lambda: True):
        assert [systemd.next() for _ in range(3)] == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"]
    while (last := systemd.next()) == b"WATCHDOG=1":
        pass
    assert last == b"STOPPING=1"


def test_a_stuck_service_reports_nothing_more(systemd: Listener) -> None:
    answers = iter([True, False, False, True])
    with manager(systemd, WATCHDOG_USEC="30000").watching(lambda: next(answers, False)):
        assert [systemd.next() for _ in range(3)] == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"]
        assert next(answers, None) is None, "the service reported that it is alive, although it was stuck"
        with pytest.raises(queue.Empty):
            systemd.next(0.2)


@pytest.mark.parametrize("environment", [{}, {"WATCHDOG_USEC": "30000", "WATCHDOG_PID": str(os.getppid())}])
def test_a_service_without_a_watchdog_only_reports_its_start_and_stop(
    systemd: Listener, environment: dict[str, str]
) -> None:
    with manager(systemd, **environment).watching(lambda: True):
        assert systemd.next() == b"READY=1"
        with pytest.raises(queue.Empty):
            systemd.next(0.1)
    assert systemd.next() == b"STOPPING=1"


def test_an_abstract_address_works_and_a_missing_manager_is_ignored() -> None:
    address = f"@changelog-{os.getpid()}"
    with closing(Listener(address)) as listening, Manager(address=address).watching(lambda: True):
        assert listening.next() == b"READY=1"
    with Manager(address=address).watching(lambda: True):
        pass
