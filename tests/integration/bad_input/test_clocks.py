"""Clocks that are wrong: the service's own jumps by days, the database's is ahead of ours."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.site import Site
from tests.patience import PATIENCE_S
from tests.servers import clock_of, missing


def _environment(clock: Path) -> dict[str, str]:
    faked = clock_of(clock)
    if faked is None:
        missing("libfaketime is missing: apt-get install libfaketime")
    return {**os.environ, **faked}


def _command(site: Site, *words: str) -> list[str]:
    return [sys.executable, "-m", "changelog", words[0], "--config", str(site.config), *words[1:]]


@contextmanager
def _service(site: Site, clock: Path) -> Iterator[subprocess.Popen[bytes]]:
    with (site.folder / "said").open("ab") as said:
        process = subprocess.Popen(
            _command(site, "run"), stderr=said, stdin=subprocess.DEVNULL, env=_environment(clock)
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def _until(holds: Callable[[], bool], site: Site) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, (site.folder / "said").read_text()
        time.sleep(0.05)


@pytest.mark.parametrize("jump", ["+5d", "-5d"])
def test_a_service_whose_own_clock_jumps_by_days_goes_on_and_stops_when_told(begun: Site, jump: str) -> None:
    clock = begun.folder / "clock"
    clock.write_text("+0")
    with _service(begun, clock) as process:
        begun.sql("INSERT INTO guest VALUES (2, 'Bob')")
        _until(lambda: "2" in begun.state("guest"), begun)
        clock.write_text(jump)
        for key in range(3, 6):
            begun.sql(f"INSERT INTO guest VALUES ({key}, 'Cid')")
            _until(lambda key=key: str(key) in begun.state("guest"), begun)  # type: ignore[misc]
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    assert '"connection lost"' not in (begun.folder / "said").read_text()


@pytest.mark.parametrize(
    ("shift", "message"),
    [
        ("+0", "the database's clock agrees with this machine's"),
        ("-3h", "the database's clock is 3 h ahead of this machine's"),
        ("+3h", "the database's clock is 3 h behind this machine's"),
    ],
)
def test_check_compares_the_clocks(site: Site, shift: str, message: str) -> None:
    clock = site.folder / "clock"
    clock.write_text(shift)
    said = subprocess.run(_command(site, "check", "--json"), env=_environment(clock), capture_output=True, check=False)
    (finding,) = [finding for finding in json.loads(said.stdout) if finding["name"] == "clocks"]
    assert finding["message"] == message
