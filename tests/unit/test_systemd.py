"""What a service manager hears, over a datagram socket as systemd has it."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from changelog.connectors.service.systemd import Manager


@pytest.fixture
def heard(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(10)
        yield listening


def manager(listening: socket.socket, **environment: str) -> Manager:
    found = Manager.of({"NOTIFY_SOCKET": str(listening.getsockname()), **environment})
    assert found is not None
    return found


def test_a_process_that_no_manager_started_has_none() -> None:
    assert Manager.of({}) is None


def test_a_service_that_lives_says_so_until_it_stops(heard: socket.socket) -> None:
    with manager(heard, WATCHDOG_USEC="30000").watching(lambda: True):
        assert [heard.recv(100) for _ in range(3)] == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"]
    while (last := heard.recv(100)) == b"WATCHDOG=1":
        pass
    assert last == b"STOPPING=1"


def test_a_service_that_is_stuck_says_nothing_more(heard: socket.socket) -> None:
    answers = iter([True, False, False, True])
    with manager(heard, WATCHDOG_USEC="30000").watching(lambda: next(answers, False)):
        assert [heard.recv(100) for _ in range(3)] == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"]
        assert next(answers, None) is None, "it beat while it was stuck"
        heard.settimeout(0.2)
        with pytest.raises(TimeoutError):
            heard.recv(100)


@pytest.mark.parametrize("environment", [{}, {"WATCHDOG_USEC": "30000", "WATCHDOG_PID": str(os.getppid())}])
def test_without_a_watchdog_of_its_own_it_only_says_that_it_runs(
    heard: socket.socket, environment: dict[str, str]
) -> None:
    with manager(heard, **environment).watching(lambda: True):
        assert heard.recv(100) == b"READY=1"
        heard.settimeout(0.1)
        with pytest.raises(TimeoutError):
            heard.recv(100)
    assert heard.recv(100) == b"STOPPING=1"


def test_an_abstract_address_and_a_manager_that_is_gone() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(f"\0changelog-{os.getpid()}")
        with Manager(address=f"@changelog-{os.getpid()}").watching(lambda: True):
            assert listening.recv(100) == b"READY=1"
    with Manager(address=f"@changelog-{os.getpid()}").watching(lambda: True):
        pass
