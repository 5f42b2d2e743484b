"""Tests the command line: exit codes, errors in one line, and the commands that need no database."""

import json
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest

from changelog.connectors import cli, extras
from changelog.connectors.commands import history, tail
from changelog.connectors.commands import run as service
from changelog.connectors.extras import installation
from changelog.connectors.sinks.files.log import read_checkpoint
from changelog.connectors.sinks.files.sink import FileSink
from changelog.envelope.checkpoint import Stop
from changelog.envelope.columnar import batch
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Op, Record
from changelog.envelope.position import Position
from tests.patience import PATIENCE_S
from tests.unit.records import checkpoint, record

CONFIG = """
name = "booking"
source = { kind = "postgres", dsn = "dbname=app" }
sink = { path = "log" }
tables = { include = ["*"] }
"""

NO_CLIENT = f"changelog: [sink] kind is kafka, and confluent_kafka is not installed; {installation('kafka')}\n"
INTERNAL = "changelog: internal error (ValueError); repeat with --verbose and report the traceback"

STORY = [
    record(Op.CREATE, '{"id":42,"status":"NEW"}', commit=1),
    record(Op.CREATE, '{"id":7}', commit=2, key="7", entity="guest"),
    record(Op.UPDATE, '{"id":42,"status":"PAID"}', '{"id":42,"status":"NEW"}', commit=3, service="payments"),
    record(Op.DELETE, None, '{"id":42,"status":"PAID"}', commit=4),
]


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "changelog.toml"
    path.write_text(CONFIG)
    return path


@pytest.fixture
def log(config_file: Path) -> Path:
    path = config_file.parent / "log"
    sink = FileSink(path)
    sink.recover()
    for change in STORY:
        store(sink, change)
    sink.close()
    return path


def store(sink: FileSink, change: Record) -> None:
    position = change.envelope.provenance.source.position
    sink.add([batch.from_records([change])])
    sink.commit(checkpoint(position.commit))


def run(config_file: Path, command: str, *words: str) -> int:
    return cli.main([command, "--config", str(config_file), *words])


def test_without_a_command_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    out = capsys.readouterr().out
    for name in cli.COMMANDS:
        assert name in out.split()


@pytest.mark.parametrize(
    "words", [["fly"], ["tail", "--what"], ["accept", "x"], ["init", "--grants", "--stamps"], ["tail", "-n", "many"]]
)
def test_bad_usage_gives_one_line_and_exit_code_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(words)
    assert caught.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "suggestion"),
    [
        (["stauts"], "status"),
        (["tail", "--no-folow"], "--no-follow"),
        (["schemas", "generat"], "generate"),
        (["fly"], None),
        (["tail", "--fly"], None),
    ],
)
def test_a_similar_word_is_suggested(
    words: list[str], suggestion: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main(words)
    err = capsys.readouterr().err
    assert ("did you mean" in err) == (suggestion is not None)
    assert suggestion is None or f"; did you mean {suggestion}?" in err


@pytest.mark.parametrize("package", ["changelog-publisher", "not-installed"])
def test_the_version_is_printed(
    package: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(extras, "PACKAGE", package)
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"changelog {version('changelog-publisher')}\n"


def test_a_bad_configuration_gives_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["tail", "-c", str(tmp_path / "none.toml")]) == 2
    err = capsys.readouterr().err
    assert err.startswith("changelog: ")
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ChangelogError(Kind.GAP, "it is gone", hint="weep"), 3, "changelog: it is gone; weep"),
        (ChangelogError(Kind.USAGE, "no"), 2, "changelog: no"),
        (KeyboardInterrupt(), 130, None),
        (ValueError("a row value"), 3, INTERNAL),
    ],
)
def test_errors_become_a_line_and_an_exit_code(
    error: BaseException,
    code: int,
    line: str | None,
    config_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(arguments: object) -> int:
        raise error

    monkeypatch.setattr(history, "execute", fail)
    assert run(config_file, "history", "order", "1") == code
    assert capsys.readouterr().err == (f"{line}\n" if line else "")
    assert run(config_file, "history", "order", "1", "--verbose") == code
    assert ("Traceback" in capsys.readouterr().err) == (line is not None)


def test_a_service_that_fails_logs_its_error(
    config_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(arguments: object) -> int:
        raise ChangelogError(Kind.GAP, "it is gone", hint="weep")

    monkeypatch.setattr(service, "execute", fail)
    assert run(config_file, "run") == 3
    event = json.loads(capsys.readouterr().err)
    assert (event["level"], event["event"], event["error"]) == ("error", "service failed", "it is gone; weep")
    assert run(config_file, "run", "--verbose") == 3
    assert "Traceback" in json.loads(capsys.readouterr().err)["exception"]


def test_history_prints_text_for_people(config_file: Path, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(config_file, "history", "order", "42") == 0
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "order 42  3 changes by order-api, payments in 3 s; it is gone now",
        "",
        "2026-11-21 03:10:03.886Z  + created  by order-api v2  req-1",
        '                          id 42   status "NEW"',
        "  │ 2 s later",
        "2026-11-21 03:10:05.886Z  ~ changed  by payments v2  req-3",
        '                          status  "NEW" → "PAID"',
        "  │ 1 s later",
        "2026-11-21 03:10:06.886Z  - deleted  by order-api v2  req-4",
        '                          id 42   status "PAID"',
    ]


def test_history_prints_json(config_file: Path, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(config_file, "history", "order", "42", "--json") == 0
    messages = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [message["value"]["provenance"]["source"]["op"] for message in messages] == ["create", "update", "delete"]
    assert messages[1]["value"]["original"] == {"id": 42, "status": "NEW"}
    assert {message["key"] for message in messages} == {"42"}


def test_history_needs_a_known_key_and_entity(config_file: Path, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(config_file, "history", "order", "43", "--json") == 2
    assert capsys.readouterr().err == f"changelog: the changelog in {log} has no change of order 43\n"
    assert run(config_file, "history", "ordr", "43") == 2
    assert "has no entity ordr; it has: guest, order" in capsys.readouterr().err


def test_history_refuses_a_part_of_a_key(config_file: Path, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sink = FileSink(log)
    sink.recover()
    sink.commit(
        replace(checkpoint(5), position=checkpoint(4).position, settings={"line": {"key": ["order_id", "line_no"]}})
    )
    sink.close()
    assert run(config_file, "history", "line", "7") == 2
    assert capsys.readouterr().err == (
        "changelog: the key of the entity line has 2 columns, not 1; "
        "give the values of order_id, line_no, in this order\n"
    )


def test_tail_refuses_an_unknown_entity(config_file: Path, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(config_file, "tail", "ordr") == 2
    assert "has no entity ordr; it has: guest, order" in capsys.readouterr().err
    sink = FileSink(log)
    sink.recover()
    sink.commit(replace(checkpoint(5), position=checkpoint(4).position, settings={"event": {}}))
    sink.close()
    assert run(config_file, "tail", "event", "--no-follow") == 0  # this entity is known, but has no rows yet
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("sink", "command", "code", "err"),
    [
        ('path = "log"', "tail --no-follow", 0, ""),
        (
            'kind = "kafka", bootstrap_servers = "broker:9092"',
            "tail",
            2,
            NO_CLIENT,
        ),
        (
            'kind = "kafka", bootstrap_servers = "broker:9092", codec = "avro", registry = "http://registry:8081"',
            "schemas register",
            2,
            NO_CLIENT,
        ),
    ],
)
def test_without_the_extra_for_kafka_only_commands_that_need_it_fail(
    config_file: Path, log: Path, sink: str, command: str, code: int, err: str
) -> None:
    config_file.write_text(CONFIG.replace('path = "log"', sink))
    script = (
        "import sys; sys.modules['confluent_kafka'] = None; from changelog.connectors import cli; sys.exit(cli.main())"
    )
    words = [sys.executable, "-c", script, *command.split(), "--config", str(config_file)]
    process = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (process.returncode, process.stderr) == (code, err)


def test_a_command_does_not_import_pandas_although_arrow_would() -> None:
    script = """
import sys
import pyarrow
from changelog.connectors import cli
try:
    {}
except SystemExit:
    pyarrow.array([1])
print("imported:", "pandas.core.frame" in sys.modules)
"""
    for call, expected in (("cli.entry_point()", False), ("sys.exit()", True)):
        words = [sys.executable, "-c", script.format(call), "run", "--help"]
        process = subprocess.run(words, capture_output=True, text=True, check=True)
        assert process.stdout.endswith(f"imported: {expected}\n")


def test_the_error_for_a_missing_required_package_names_no_extra(config_file: Path) -> None:
    script = "import sys; sys.modules['prometheus_client'] = None; from changelog.connectors import cli"
    words = [sys.executable, "-c", f"{script}; sys.exit(cli.main())", "run", "--config", str(config_file)]
    process = subprocess.run(words, capture_output=True, text=True, check=False)
    needs = "changelog: `changelog run` needs prometheus_client, which is not installed"
    assert (process.returncode, process.stderr) == (2, f"{needs}; {installation()}\n")
    assert "[" not in process.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], [1, 2, 3, 4]),
        (["-n", "2"], [3, 4]),
        (["-n", "3"], [2, 3, 4]),
        (["-n", "0"], []),
        (["order", "-n", "2"], [3, 4]),
        (["guest"], [2]),
        (["--key", "42", "-n", "3"], [1, 3, 4]),
    ],
)
def test_tail_begins_with_the_last_changes(
    words: list[str], expected: list[int], config_file: Path, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(config_file, "tail", "--no-follow", "--json", *words) == 0
    sources = [json.loads(line)["value"]["provenance"]["source"] for line in capsys.readouterr().out.splitlines()]
    assert [int(source["transaction"]) - 700 for source in sources] == expected


AT = "2026-11-21T03:10:05Z"  # the second of the four changes is before this time, the third one after it


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--since", AT], [3, 4]),
        (["--since", AT, "-n", "1"], [4]),
        (["--until", AT, "-n", "1"], [2]),
        (["--since", "00000001/0000000000000002/00000000", "--until", "00000001/0000000000000003/00000002"], [2, 3]),
        (["--since", "0s"], []),
        (["--service", "payments"], [3]),
        (["--service", "payments", "--service", "order-api", "-n", "2"], [3, 4]),
        (["--column", "status"], [1, 3, 4]),
        (["--column", "id", "--service", "payments"], []),
    ],
)
def test_tail_shows_the_selected_changes(
    words: list[str], expected: list[int], config_file: Path, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    test_tail_begins_with_the_last_changes(words, expected, config_file, log, capsys)


@pytest.mark.parametrize("age", ["99999999999d", "800000d"])
def test_an_age_that_begins_before_the_year_1_is_refused(
    age: str, config_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        run(config_file, "tail", "--since", age)
    assert caught.value.code == 2
    assert f"argument --since: '{age}' is before the year 1" in capsys.readouterr().err


def test_history_shows_the_selected_changes(config_file: Path, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(config_file, "history", "order", "42", "--json", "--service", "payments") == 0
    [line] = capsys.readouterr().out.splitlines()
    assert json.loads(line)["value"]["provenance"]["serviceName"] == "payments"
    assert run(config_file, "history", "order", "42", "--service", "payments") == 0
    title = capsys.readouterr().out.splitlines()[0].rstrip()
    assert title == "order 42  1 change by payments; it is gone now", "the delete by another service is not shown"
    assert run(config_file, "history", "order", "42", "--until", "2020-01-01T00:00:00Z") == 0
    assert "order 42  0 changes" in capsys.readouterr().out


def test_tail_continues_with_new_changes(
    config_file: Path, log: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sink = FileSink(log)
    sink.recover()
    changes = iter([record(Op.CREATE, '{"id":5}', commit=5, key="5")])

    def wait(seconds: float) -> None:
        change = next(changes, None)
        if change is None:
            sink.close()
            raise KeyboardInterrupt
        store(sink, change)

    monkeypatch.setattr(tail, "wait_for_reader", wait)
    assert run(config_file, "tail", "-n", "1") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[26:38] for line in lines if "order" in line] == ["- order 42  ", "+ order 5  c"]


def test_tail_ends_when_its_reader_has_gone_even_without_new_changes(config_file: Path, log: Path) -> None:
    command = [sys.executable, "-m", "changelog", "tail", "--config", str(config_file), "--json", "-n", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.wait(PATIENCE_S) == cli.OUTPUT_GONE


def test_tail_needs_a_log(config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(config_file, "tail") == 3
    assert "there is no file log in" in capsys.readouterr().err


def test_accept_stores_the_decision(config_file: Path, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stopped = "00000001/0000000000000005/00000002"
    stop = Stop(position=Position.parse(stopped), message="a row", hint="do this", choices=("skip",))
    sink = FileSink(log)
    before = sink.recover()
    assert before is not None
    sink.commit(replace(before, stop=stop))
    sink.close()
    assert run(config_file, "accept", stopped, "--as", "default") == 2
    assert "--as default does not resolve this stop (a row)" in capsys.readouterr().err
    assert run(config_file, "accept", stopped, "--as", "skip") == 0
    stored = read_checkpoint(log)
    assert stored is not None
    assert stored.decisions.to_json() == {stopped: "skip"}
    assert stored.position == checkpoint(4).position
    assert stopped in capsys.readouterr().out


def test_accept_refuses_an_earlier_position_and_an_empty_changelog(
    config_file: Path, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(config_file, "accept", "00000001/0000000000000004/00000002", "--as", "skip") == 2
    assert "past this position already" in capsys.readouterr().err
    for file in (log / "log").iterdir():
        file.unlink()
    assert run(config_file, "accept", "00000001/0000000000000004/00000002", "--as", "skip") == 2
    assert "the changelog is empty" in capsys.readouterr().err


def test_accept_refuses_while_the_service_runs(
    config_file: Path, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sink = FileSink(log)
    sink.recover()
    assert run(config_file, "accept", "00000001/0000000000000005/00000002", "--as", "default") == 3
    sink.close()
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_accept_refuses_a_torn_log_which_the_service_must_repair(
    config_file: Path, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    newest = max((log / "log").iterdir())
    newest.write_bytes(newest.read_bytes()[:100])
    assert run(config_file, "accept", "00000001/0000000000000005/00000002", "--as", "skip") == 3
    assert "start the service first" in capsys.readouterr().err
