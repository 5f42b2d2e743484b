"""Tests that the blocks of code in docs/start.md work, one after another, for a reader who has only a PostgreSQL
server.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from changelog.connectors.servers.postgres import PostgresServer
from tests.integration.site import Site
from tests.patience import PATIENCE_S
from tests.servers import fresh_database

PAGE = (Path(__file__).parents[2] / "docs" / "start.md").read_text("utf-8")
STEPS = dict(re.findall(r"^## \d\. (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE))


def blocks(step: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", STEPS[step], re.DOTALL | re.MULTILINE)


class Newcomer:
    """Runs the blocks of code on the page in an empty folder, with an empty database."""

    def __init__(self, dsn: str, folder: Path) -> None:
        self.dsn = dsn
        self.folder = folder
        self.site = Site(dsn, folder)
        self.site.log = folder / "data" / "changelog"
        self.environment = {**os.environ, "DATABASE_URL": dsn, "CHANGELOG__SERVICE__LISTEN": "127.0.0.1:0"}

    def shell(self, step: str) -> str:
        """Runs the step's commands with the `changelog` of this checkout. Returns their output."""
        lines = "".join(blocks(step, "sh")).splitlines()
        commands = [line for line in lines if not line.startswith("export DATABASE_URL=")]
        with_python = [re.sub(r"^changelog", f"{sys.executable} -m changelog", line) for line in commands]
        return self._run("sh", "-ec", "\n".join(with_python))

    def python(self, step: str) -> str:
        [block] = blocks(step, "python")
        return self._run(sys.executable, "-c", block)

    def sql(self, step: str) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for block in blocks(step, "sql"):
                connection.execute(block.encode())

    def wait_for(self, op: str) -> None:
        """Waits until the changelog has a change of this kind for order 42, the example on the page."""
        deadline = time.monotonic() + PATIENCE_S
        while (op, "42") not in self.site.ops("orders"):
            assert time.monotonic() < deadline, (self.folder / "service.log").read_text("utf-8")
            time.sleep(0.1)

    def _run(self, *command: str) -> str:
        process = subprocess.run(
            command, check=False, cwd=self.folder, env=self.environment, capture_output=True, text=True
        )
        assert process.returncode == 0, process.stdout + process.stderr
        return process.stdout


@pytest.fixture
def newcomer(server: PostgresServer, tmp_path: Path) -> Iterator[Newcomer]:
    with fresh_database(server) as dsn:
        yield Newcomer(dsn, tmp_path)


def test_a_newcomer_gets_the_results_on_the_page(newcomer: Newcomer) -> None:
    newcomer.sql("Create a table to play with")
    assert "can run" in newcomer.shell("Configure and check").splitlines()[-1]
    [command] = blocks("Run", "sh")
    assert command == "changelog run\n"
    with (newcomer.folder / "service.log").open("wb") as log:
        service = subprocess.Popen(
            [sys.executable, "-m", "changelog", "run"], cwd=newcomer.folder, env=newcomer.environment, stderr=log
        )
    try:
        newcomer.wait_for("read")
        newcomer.sql("Change something")
        newcomer.wait_for("update")
        output = newcomer.shell("Read the changelog")
        assert 'amount  "12.50" → "13.50"' in output
        assert "by order-api v2  req-8f1c" in output
        assert '"original":{"id":42,"status":"NEW","amount":"12.50"}' in output
        *_, last_line = newcomer.python("Read the changelog").splitlines()
        assert last_line.endswith('update order-api {"id":42,"status":"PAID","amount":"13.50"}')
    finally:
        service.send_signal(signal.SIGINT)
        assert service.wait(PATIENCE_S) == 0
    newcomer.shell("Clean up")
    with psycopg.connect(newcomer.dsn) as connection:
        assert connection.execute("SELECT count(*) FROM pg_publication").fetchone() == (0,)
