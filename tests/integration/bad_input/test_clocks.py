"""Tests the service on a machine whose clock jumps by days, or differs from the database's clock."""

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
    clock_environment = clock_of(clock)
    if clock_environment is None:
        missing("libfaketime is missing: apt-get install libfaketime")
    return {**os.environ, **clock_environment}


def _command(site: Site, *words: str) -> list[str]:
    return [sys.executable, "-m", "changelog", words[0], "--config", str(site.config), *words[1:]]


@contextmanager
def _service(site: Site, clock: Path) -> Iterator[subprocess.Popen[bytes]]:
    with (site.folder / "service.log").open("ab") as log:
        process = subprocess.Popen(_command(site, "run"), stderr=log, stdin=subprocess.DEVNULL, env=_environment(clock))
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def _until(condition: Callable[[], bool], site: Site) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, (site.folder / "service.log").read_text()
        time.sleep(0.05)


@pytest.mark.parametrize("jump", ["+5d", "-5d"])
def test_a_service_whose_clock_jumps_by_days_continues_and_stops_at_a_signal(stopped_site: Site, jump: str) -> None:
    clock = stopped_site.folder / "clock"
    clock.write_text("+0")
    with _service(stopped_site, clock) as process:
        stopped_site.sql("INSERT INTO guest VALUES (2, 'Bob')")
        _until(lambda: "2" in stopped_site.state("guest"), stopped_site)
        clock.write_text(jump)
        for key in range(3, 6):
            stopped_site.sql(f"INSERT INTO guest VALUES ({key}, 'Cid')")
            _until(lambda key=key: str(key) in stopped_site.state("guest"), stopped_site)  # type: ignore[misc]
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    assert '"connection lost"' not in (stopped_site.folder / "service.log").read_text()


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
    result = subprocess.run(
        _command(site, "check", "--json"), env=_environment(clock), capture_output=True, check=False
    )
    (finding,) = [finding for finding in json.loads(result.stdout) if finding["name"] == "clocks"]
    assert finding["message"] == message
