"""Waits for the first answer of a server that has just been launched."""

import time
import urllib.error
import urllib.request
from collections.abc import Callable

from changelog.connectors.servers.unprivileged import ServerProcess


def await_answer(
    server: ServerProcess, answers: Callable[[], bool], errors: Callable[[], str], timeout_s: float
) -> None:
    """Calls `answers` until it returns True.

    If the server ends before that, or the time is up, kills the server and raises RuntimeError. The error's text
    contains what `errors` returns.
    """
    deadline = time.monotonic() + timeout_s
    while server.running and time.monotonic() < deadline:
        if answers():
            return
        time.sleep(0.1)
    server.kill()
    raise RuntimeError(f"{type(server).__name__} did not start: {errors()}")


def answers_http(url: str) -> bool:
    """Returns whether a GET request to this address succeeds."""
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False
