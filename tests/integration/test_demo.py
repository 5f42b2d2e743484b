"""Tests that the demo prints its whole story, and that it leaves no process running, even if it is interrupted."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from changelog.connectors.servers.kafka import LIB_VARIABLE, Broker
from changelog.connectors.sinks.files.log import FileLog
from changelog.spark_jobs.demo.story import lacking
from tests.integration.blame_check import check_blame
from tests.patience import PROGRAM_S
from tests.servers import HASTY_SPARK, fetched, java_needed, kafka_lib

HOME = Path(__file__).parents[2]

SPARK_TEXTS = (
    "spark_jobs/archive.py --compact all",
    'replace /status "CHECKED_IN"',
    "folded, they give the",
    "spark_jobs/rebuild_view.py --entity order --as-of",
    "548.00 575.40 548.00 set right",
    "still wrong",
    "changed amount",
    "changelog republish order --report drift/",
    "orders, no drift",
)
"""Texts that the demo prints in its chapters on Spark. In the output, any whitespace may stand for a blank of these
texts.
"""

CONSUMER_TEXTS = ("equals the tables", "equals the table:", "a tombstone", "changed  by unknown")
"""Texts that the demo prints in its chapter on what a consumer of Kafka reads."""

DATABASES = pytest.mark.parametrize(
    "database", [pytest.param([], id="postgres"), pytest.param(["--mysql"], id="mysql")]
)
"""Runs a test once with each database. `database` holds the options with which the demo uses this database."""


@pytest.fixture
def temporary() -> Iterator[Path]:
    """The folder in which the demo creates its temporary files. Every user may enter it, because the database server
    runs as another user.
    """
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def server_programs(database: list[str]) -> None:
    """Skips or fails the test if the programs of its database server have not been downloaded."""
    if database:
        fetched("mariadb")


def demo(temporary: Path, *words: str) -> subprocess.Popen[str]:
    return start(temporary, "-W", "error", "-m", "changelog", "demo", *words)


def start(temporary: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, *words]
    settings = {"PYTHONUNBUFFERED": "1", "COLUMNS": "80", "PYSPARK_SUBMIT_ARGS": f"{HASTY_SPARK} pyspark-shell"}
    environment = {**os.environ, "TMPDIR": str(temporary), **settings}
    return subprocess.Popen(
        command, cwd=HOME, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def refuse_leftovers(temporary: Path, output: str) -> None:
    """Fails if the command line of a running process names the folder `temporary`, or if a server still listens on the
    demo's port.
    """
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            assert str(temporary).encode() not in process.read_bytes()
        except OSError:
            continue  # the process has just ended
    port = re.search(r"on port (\d+)", output)
    if port is not None:
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", int(port[1]))) != 0


@DATABASES
@pytest.mark.usefixtures("starts_servers", "server_programs")
def test_the_demo_shows_the_history_of_an_order(temporary: Path, database: list[str]) -> None:
    """Where Spark is installed, the story includes the Spark jobs. Elsewhere, the demo says how to install Spark."""
    folder = temporary / "demo"
    words = [*database, "--seconds", "1", "--path", str(folder)]
    with start(temporary, "-m", "changelog.spark_jobs.demo", *words) as process:
        output, _ = process.communicate(timeout=PROGRAM_S)
    assert process.returncode == 0, output
    for text in ("created  by web-booking v3", "changed  by unknown", "room 312", "equals the tables", str(folder)):
        assert text in output
    assert "was set by 3 services: web-booking, mobile-app, front-desk; 1 of 8" in re.sub(r"\s+", " ", output)
    assert check_blame(FileLog(folder / "data" / "changelog")) > 0
    assert re.search(
        r"who did it: http://127\.0\.0\.1:\d+/\nThe console is closed again: this is not a terminal", output
    )
    if lacking():
        assert "The story goes on with Spark (archive, deltas, views, drift), but not here: " in output
    else:
        one_line = re.sub(r"\s+", " ", output)
        for text in SPARK_TEXTS:
            assert text in one_line
        assert list((folder / "views" / "order" / "current").glob("*.parquet"))
    assert list((folder / "data" / "changelog" / "log").glob("*.parquet"))
    assert list(temporary.iterdir()) == [folder]
    refuse_leftovers(temporary, output)


def test_without_java_the_demo_says_how_to_see_the_rest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    reason = lacking()
    assert reason is not None
    assert reason.startswith(f"there is no java in {tmp_path}; install Java 17 or newer")


def test_the_demo_refuses_a_folder_that_exists(temporary: Path) -> None:
    with demo(temporary, "--path", str(temporary)) as process:
        output, _ = process.communicate(timeout=PROGRAM_S)
    assert process.returncode == 2
    assert output == f"changelog: {temporary} already exists; name a new folder\n"


@DATABASES
@pytest.mark.usefixtures("starts_servers", "server_programs")
@pytest.mark.parametrize(
    ("after", "number"),
    [
        ("changelog demo", signal.SIGINT),  # while the database starts
        ("six sample applications", signal.SIGHUP),
        ("all tables are read", signal.SIGTERM),
    ],
)
def test_a_signal_ends_the_demo_and_leaves_nothing_behind(
    temporary: Path, database: list[str], after: str, number: signal.Signals
) -> None:
    with demo(temporary, *database, "--seconds", "1") as process:
        assert process.stdout is not None
        output = ""
        while after not in output:
            line = process.stdout.readline()
            assert line, output
            output += line
        time.sleep(0.2)
        process.send_signal(number)
        output += process.communicate(timeout=PROGRAM_S)[0]
    if process.returncode != 0:  # otherwise, the demo had ended by itself before the signal came
        assert process.returncode == 130, output
        assert output.endswith("stopped: no process and no file is left\n")
        assert not list(temporary.iterdir())
    refuse_leftovers(temporary, output)


@pytest.mark.usefixtures("starts_servers")
def test_the_demo_with_kafka_shows_what_a_consumer_reads(temporary: Path) -> None:
    kafka_lib()
    fetched("mariadb")
    folder = temporary / "demo"
    with demo(temporary, "--mysql", "--kafka", "--seconds", "3", "--path", str(folder)) as process:
        output, _ = process.communicate(timeout=PROGRAM_S)
    assert process.returncode == 0, output
    for text in ("Kafka is up", *CONSUMER_TEXTS):
        assert text in output
    assert list(temporary.iterdir()) == [folder]
    refuse_leftovers(temporary, output)


def test_the_demo_keeps_its_topics_on_a_broker_that_it_did_not_start(temporary: Path, broker: Broker) -> None:
    words = ("--kafka", "--bootstrap-servers", broker.bootstrap_servers, "--seconds", "3")
    with demo(temporary, *words, "--path", str(temporary / "demo")) as process:
        output, _ = process.communicate(timeout=PROGRAM_S)
    assert process.returncode == 0, output
    for text in CONSUMER_TEXTS:
        assert text in output
    history = re.search(r"changelog (history order \d+ --config \S+)", output)
    assert history is not None, output
    command = [sys.executable, "-m", "changelog", *history[1].split()]
    result = subprocess.run(command, cwd=HOME, capture_output=True, text=True, timeout=PROGRAM_S, check=True)
    assert "by front-desk v5" in result.stdout


def test_bootstrap_servers_need_the_option_kafka(temporary: Path) -> None:
    with demo(temporary, "--bootstrap-servers", "127.0.0.1:1") as process:
        output, _ = process.communicate(timeout=PROGRAM_S)
    assert (process.returncode, output) == (2, "changelog: --bootstrap-servers needs --kafka; give both\n")


def test_without_mariadb_the_demo_says_how_to_get_it(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHANGELOG_MARIADB_HOME", str(temporary))
    with demo(temporary, "--mysql") as process:
        output, _ = process.communicate(timeout=PROGRAM_S)
    assert process.returncode == 3
    error = f"changelog: there is no bin/mariadbd in {temporary}; `make .cache/mariadb/.done` in a checkout fetches it"
    assert error in output


def test_without_jars_the_demo_says_how_to_get_kafka(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java_needed()
    monkeypatch.setenv(LIB_VARIABLE, str(temporary))
    with demo(temporary, "--kafka") as process:
        output, _ = process.communicate(timeout=PROGRAM_S)
    assert process.returncode == 3
    assert "`make kafka`" in output
    assert output.endswith("or name a running Kafka with --bootstrap-servers\n")
