"""The demo tells its story, and whatever ends it leaves nothing running."""

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
from changelog.spark_jobs.demo.story import lacking
from tests.patience import PROGRAM_S
from tests.servers import java_needed, kafka_lib

HOME = Path(__file__).parents[2]

SPARK_TELLS = (
    "spark_jobs/archive.py --compact all",
    'replace /status "CHECKED_IN"',
    "folded, they are the",
    "spark_jobs/rebuild_view.py --entity order --as-of",
    "548.00 575.40 548.00 set right",
    "still wrong",
    "changed amount",
    "changelog republish order --report drift/",
    "orders, no drift",
)
"""What stands in the chapters on Spark, all that is blank in one blank."""


@pytest.fixture
def temporary() -> Iterator[Path]:
    """What the demo takes for the folder of temporary files; the server's user can enter it."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def demo(temporary: Path, *words: str) -> subprocess.Popen[str]:
    return told(temporary, "-W", "error", "-m", "changelog", "demo", *words)


def told(temporary: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, *words]
    environment = {**os.environ, "TMPDIR": str(temporary), "PYTHONUNBUFFERED": "1", "COLUMNS": "80"}
    return subprocess.Popen(
        command, cwd=HOME, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def refuse_leftovers(temporary: Path, told: str) -> None:
    """No process that works in the folder, no server on its port."""
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            assert str(temporary).encode() not in process.read_bytes()
        except OSError:
            continue  # it ended while we looked
    port = re.search(r"on port (\d+)", told)
    if port is not None:
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", int(port[1]))) != 0


@pytest.mark.usefixtures("starts_servers")
def test_the_demo_tells_its_story(temporary: Path) -> None:
    """With what Spark makes of it, where Spark can be; and where not, how to see that."""
    folder = temporary / "told"
    with told(temporary, "-m", "changelog.spark_jobs.demo", "--seconds", "1", "--path", str(folder)) as process:
        said, _ = process.communicate(timeout=PROGRAM_S)
    assert process.returncode == 0, said
    for part in ("created  by web-booking v3", "changed  by unknown", "room 312", "equals the tables", str(folder)):
        assert part in said
    if lacking():
        assert "The story goes on with Spark (archive, deltas, views, drift), but not here: " in said
    else:
        squeezed = re.sub(r"\s+", " ", said)
        for part in SPARK_TELLS:
            assert part in squeezed
        assert list((folder / "views" / "order" / "current").glob("*.parquet"))
    assert list((folder / "data" / "changelog" / "log").glob("*.parquet"))
    assert list(temporary.iterdir()) == [folder]
    refuse_leftovers(temporary, said)


def test_without_java_it_says_how_to_see_the_rest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    why = lacking()
    assert why is not None
    assert why.startswith(f"no java in {tmp_path}; install Java 17 or newer")


def test_a_folder_that_is_there_is_not_touched(temporary: Path) -> None:
    with demo(temporary, "--path", str(temporary)) as process:
        told, _ = process.communicate(timeout=PROGRAM_S)
    assert process.returncode == 2
    assert told == f"changelog: {temporary} already exists; name a new folder\n"


@pytest.mark.usefixtures("starts_servers")
@pytest.mark.parametrize(
    ("after", "number"),
    [
        ("changelog demo", signal.SIGINT),  # while PostgreSQL starts
        ("six services", signal.SIGHUP),
        ("all tables are read", signal.SIGTERM),
    ],
)
def test_whatever_ends_it_nothing_is_left(temporary: Path, after: str, number: signal.Signals) -> None:
    with demo(temporary, "--seconds", "1") as process:
        assert process.stdout is not None
        told = ""
        while after not in told:
            line = process.stdout.readline()
            assert line, told
            told += line
        time.sleep(0.2)
        process.send_signal(number)
        told += process.communicate(timeout=PROGRAM_S)[0]
    if process.returncode != 0:  # the last signal may come when all is done
        assert process.returncode == 130, told
        assert told.endswith("stopped: no process and no file is left\n")
        assert not list(temporary.iterdir())
    refuse_leftovers(temporary, told)


@pytest.mark.usefixtures("starts_servers")
def test_over_kafka_it_shows_what_a_consumer_sees(temporary: Path) -> None:
    kafka_lib()
    folder = temporary / "told"
    with demo(temporary, "--kafka", "--seconds", "3", "--path", str(folder)) as process:
        told, _ = process.communicate(timeout=PROGRAM_S)
    assert process.returncode == 0, told
    for said in ("Kafka is up", "equals the tables", "equals the table:", "a tombstone", "changed  by unknown"):
        assert said in told
    assert list(temporary.iterdir()) == [folder]
    refuse_leftovers(temporary, told)


def test_over_a_kafka_that_runs_the_topics_stay(temporary: Path, broker: Broker) -> None:
    words = ("--kafka", "--bootstrap-servers", broker.bootstrap_servers, "--seconds", "1")
    with demo(temporary, *words, "--path", str(temporary / "told")) as process:
        told, _ = process.communicate(timeout=PROGRAM_S)
    assert process.returncode == 0, told
    history = re.search(r"changelog (history order \d+ --config \S+)", told)
    assert history is not None, told
    command = [sys.executable, "-m", "changelog", *history[1].split()]
    looked = subprocess.run(command, cwd=HOME, capture_output=True, text=True, timeout=PROGRAM_S, check=True)
    assert "by front-desk v5" in looked.stdout


def test_servers_are_for_kafka(temporary: Path) -> None:
    with demo(temporary, "--bootstrap-servers", "127.0.0.1:1") as process:
        told, _ = process.communicate(timeout=PROGRAM_S)
    assert (process.returncode, told) == (2, "changelog: --bootstrap-servers needs --kafka; give both\n")


def test_without_jars_it_says_how_to_come_by_a_kafka(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java_needed()
    monkeypatch.setenv(LIB_VARIABLE, str(temporary))
    with demo(temporary, "--kafka") as process:
        told, _ = process.communicate(timeout=PROGRAM_S)
    assert process.returncode == 3
    assert "`make kafka`" in told
    assert told.endswith("or name a running Kafka with --bootstrap-servers\n")
