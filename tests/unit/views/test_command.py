"""Tests `changelog views serve`: its options, what it refuses, and how it ends."""

import json
import re
import signal
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from changelog.connectors import cli
from changelog.connectors.views import streams
from changelog.envelope.model import Op
from tests.patience import PROGRAM_S
from tests.unit.records import record
from tests.unit.views.running import CONFIG, Api, commit, running, settings
from tests.unit.views.test_api import keys

KAFKA = CONFIG.replace('sink = {{ path = "log" }}', 'sink = {{ kind = "kafka", bootstrap_servers = "127.0.0.1:9" }}')


def refused(capsys: pytest.CaptureFixture[str], folder: Path, *words: str) -> tuple[int, str]:
    """Runs the command, and expects an error of one line. Returns the exit code and the error."""
    code = cli.main(["views", "serve", "--config", str(folder / "changelog.toml"), *words])
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    return code, error.strip()


@pytest.mark.parametrize(
    ("rest", "problem"),
    [
        (
            '[views.x]\nentity = "order"\nserve = {}\nnested.lines = { entity = "line", on = { order_id = "id" } }',
            "views.x.serve: a view with nested arrays cannot be served; serve a view of each entity, without `nested`",
        ),
        ('[views.ready]\nentity = "order"\nserve = {}', "views.ready.serve: /ready has another meaning"),
        (
            '[views.x]\nentity = "order"\nserve = { keep_service = ["a", "b"], drop_service = ["b"] }',
            "views.x.serve: a service is both kept and dropped; leave one out",
        ),
        ('[views.x]\nentity = "order"\nserve = { max_lag_seconds = 0 }', "views.x.serve.max_lag_seconds: should be"),
        (
            '[views.x]\nentity = "order"\nserve = {}\nwhere = "status LIKE \'P%\'"',
            "changelog: views.x: the condition has LIKE after the column status; a served view takes COLUMN = VALUE",
        ),
        (
            '[views.x]\nentity = "order"\nserve = {}\nwhere = "id = \'1\'"',
            "changelog: views.x: the condition compares the column id, which has the type long, with a text; a served",
        ),
        (
            '[views.x]\nentity = "order"\nserve = {}\ncolumns = ["id", "total"]',
            "changelog: views.x: the entity order has no column total; it has: id, status, amount, note",
        ),
        (
            '[views.x]\nentity = "guest"\nserve = {}',
            "log has no entity guest; it has: order, seat",
        ),
    ],
)
def test_a_view_that_cannot_be_served_is_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], rest: str, problem: str
) -> None:
    (tmp_path / "log").symlink_to(folder / "log")
    (tmp_path / "changelog.toml").write_text(CONFIG.format(rest=rest, serve=""), "utf-8")
    code, error = refused(capsys, tmp_path)
    assert code == 2
    assert problem in error


def test_a_server_that_other_machines_can_reach_needs_a_token(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings(folder)
    code, error = refused(capsys, folder, "--host", "0.0.0.0")
    assert code == 2
    assert "other machines can reach 0.0.0.0, and the API of views would show them every row" in error
    assert "[serve] token" in error
    code, error = refused(capsys, folder, "--token-file", "no such file")
    assert (code, error) == (2, "changelog: no such file cannot be read (No such file or directory)")


def test_a_port_that_is_taken_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings(folder)
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        code, error = refused(capsys, folder, "--port", str(other.getsockname()[1]))
    assert code == 3
    assert "(Address already in use); choose another port: --port, or [serve] port" in error


@pytest.fixture
def over_topics(tmp_path: Path) -> Path:
    """A folder with a configuration and an empty jar. The configuration names a broker that does not run."""
    streams = f', streams = {{ jars = "{tmp_path}" }}'
    (tmp_path / "changelog.toml").write_text(KAFKA.format(rest="", serve=streams), "utf-8")
    (tmp_path / "kafka-streams-4.1.1.jar").write_text("", "utf-8")
    return tmp_path


def test_what_is_missing_to_serve_topics_is_named(
    over_topics: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (over_topics / "kafka-streams-4.1.1.jar").unlink()
    code, error = refused(capsys, over_topics)
    assert code == 3
    assert error.startswith(f"changelog: the jars of Kafka Streams are not in {over_topics}; `changelog views install")
    (over_topics / "kafka-streams-4.1.1.jar").write_text("", "utf-8")
    monkeypatch.setenv("JAVA_HOME", str(over_topics))
    code, error = refused(capsys, over_topics)
    assert (code, error.partition(";")[0]) == (3, f"changelog: there is no java in {over_topics}")
    monkeypatch.setitem(sys.modules, "jpype", None)
    monkeypatch.delattr(streams, "opening")
    for module in ("opening", "java", "tables"):
        monkeypatch.delitem(sys.modules, f"{streams.__name__}.{module}")
    code, error = refused(capsys, over_topics)
    assert (code, error.partition(";")[0]) == (
        2,
        "changelog: serving views of topics needs jpype, which is not installed",
    )
    assert "[views]" in error


@pytest.mark.parametrize(
    ("sink", "streams", "problem"),
    [
        (KAFKA, 'store = "lru:0"', "serve.streams.store: should be"),
        (KAFKA, "heap_mib = 1", "serve.streams.heap_mib: should be"),
        (KAFKA, 'advertised = "here"', "serve.streams.advertised: should be HOST:PORT, such as"),
        (KAFKA, 'advertised = "here:65536"', "serve.streams.advertised: should be HOST:PORT, such as"),
        (KAFKA, 'instance_token = "0123456789 abcdef"', "serve.streams.instance_token: should be made of ASCII"),
        (KAFKA, 'advertised = "here:1"', "serve.streams.instance_token: is missing: instances show it to each other"),
        (KAFKA, 'instance_token = "0123456789abcdef"', "serve.streams.advertised: is missing: add the address at"),
        (KAFKA, "standbys = 1", "serve.streams.advertised: is missing: add the address at which other instances reach"),
        (KAFKA, "session_seconds = 1", "serve.streams.session_seconds: should be"),
        (CONFIG, "heap_mib = 512", "serve.streams: applies only to topics, and the sink is files; leave this section"),
        (
            KAFKA.replace('127.0.0.1:9"', '127.0.0.1:9", envelope = "flat"'),
            "heap_mib = 512",
            'changelog: `changelog views serve` reads only envelope = "changelog", but [sink] envelope is "flat"',
        ),
    ],
)
def test_settings_of_kafka_streams_that_do_not_fit_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], sink: str, streams: str, problem: str
) -> None:
    (tmp_path / "changelog.toml").write_text(sink.format(rest="", serve=f", streams = {{ {streams} }}"), "utf-8")
    code, error = refused(capsys, tmp_path)
    assert code == 2
    assert problem in error


def test_the_files_for_tls_between_instances_are_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    streams = 'streams = { advertised = "here:1", instance_token = "0123456789abcdef" }'
    serve = f', tls_certificate = "none.pem", tls_key = "none.pem", {streams}'
    (tmp_path / "changelog.toml").write_text(KAFKA.format(rest="", serve=serve), "utf-8")
    code, error = refused(capsys, tmp_path)
    assert code == 2
    assert "the files for TLS cannot be used (No such file or directory)" in error


def test_the_token_of_instances_is_not_that_of_readers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    token = "0123456789abcdef"
    serve = f', token = "{token}", streams = {{ advertised = "here:1", instance_token = "{token}" }}'
    (tmp_path / "changelog.toml").write_text(KAFKA.format(rest="", serve=serve), "utf-8")
    code, error = refused(capsys, tmp_path)
    assert (code, token in error) == (2, False)
    assert "serve.streams.instance_token: is the token of readers" in error


def test_an_archive_of_topics_is_served(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "changelog.toml").write_text(KAFKA.format(rest="", serve=""), "utf-8")
    code, error = refused(capsys, tmp_path, "--archive", str(tmp_path))
    assert (code, error.partition(";")[0]) == (3, f"changelog: there is no changelog in {tmp_path}")
    with running(settings(tmp_path), archive=folder / "log") as api:
        assert keys(api.get("/order")) == ["41", "42", "43"]


def test_an_entity_whose_name_has_another_meaning_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commit(tmp_path / "log", [record(Op.CREATE, "{}", entity="health")])
    settings(tmp_path)
    code, error = refused(capsys, tmp_path)
    assert code == 2
    assert "the entity health cannot be served under its own name" in error
    with running(settings(tmp_path, '[views.pulse]\nentity = "health"\nserve = {}')) as api:
        assert keys(api.get("/pulse")) == ["42"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, -signal.SIGTERM)])
def test_the_command_serves_until_it_is_told_to_stop(folder: Path, number: int, code: int) -> None:
    settings(folder)
    words = ["views", "serve", "--config", str(folder / "changelog.toml"), "--port", "0", "--verbose"]
    command = [sys.executable, "-W", "error", "-m", "changelog", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = re.search(r"views are served at (http://127.0.0.1:\d+/)", process.stdout.readline())
            assert address is not None
            assert Api(address[1]).get("/order/41").status == 200
            process.send_signal(number)
            output, log = process.communicate(timeout=PROGRAM_S)
        except BaseException:
            process.kill()
            raise
    assert (process.returncode, output) == (code, "")
    (event,) = [json.loads(line) for line in log.splitlines()]
    assert (event["page"], event["status"]) == ("row", 200)
    assert not any(value == "41" or "/41" in str(value) for value in event.values())
