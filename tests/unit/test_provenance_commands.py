"""Tests what `changelog blame`, `changelog who`, and `changelog history` with `--at` or `--patch` print."""

import json
from pathlib import Path
from typing import Any

import pytest

from changelog.connectors import cli
from changelog.envelope.entity import TRUNCATE_KEY
from changelog.envelope.model import Op, Place
from tests.unit.history.stored import store
from tests.unit.records import record

CONFIG = """
name = "booking"
source = { kind = "postgres", dsn = "dbname=app" }
sink = { path = "log" }
tables = { include = ["*"] }
"""

HERE, THERE = Place(key="42", partition=0), Place(key="41", partition=0)

LIFE = [
    record(Op.CREATE, '{"id":41,"doc":{"a":1,\n"b":[]}}', commit=2, key="41", service="web"),
    record(Op.UPDATE, '{"id":41,"doc":{"a":2,"b":[]}}', '{"id":41,"doc":{"a":1,"b":[]}}', commit=3, key="41"),
    record(Op.DELETE, None, '{"id":41}', commit=4, ordinal=0, key="41", moved_to=HERE),
    record(Op.CREATE, '{"id":42}', commit=4, ordinal=1, moved_from=THERE, unavailable=("doc",)),
    record(Op.READ, '{"id":42,"doc":{"a":2,"b":[]},"n":null}', commit=5),
    record(Op.CREATE, '{"id":1}', commit=6, key='["EU","1"]', entity="guest"),
    record(Op.TRUNCATE, None, None, commit=7, key=TRUNCATE_KEY, service="cleanup"),
]


@pytest.fixture
def config_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COLUMNS", "120")
    path = tmp_path / "changelog.toml"
    path.write_text(CONFIG)
    return path


@pytest.fixture
def log(tmp_path: Path) -> Path:
    store(tmp_path / "log", LIFE, archived=1)
    return tmp_path / "log"


def answer(config_file: Path, capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """Runs a command that prints one line of JSON. Returns the value of this JSON."""
    assert cli.main([*words, "--json", "--config", str(config_file)]) == 0
    [line] = capsys.readouterr().out.splitlines()
    return json.loads(line)


def text(config_file: Path, capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert cli.main([*words, "--config", str(config_file)]) == 0
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def at(commit: int) -> str:
    return f"00000001/{commit:016X}/00000009"


@pytest.mark.usefixtures("log")
def test_blame_prints_json(config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = answer(config_file, capsys, "blame", "order", "42", "--at", at(5))
    assert (result["entity"], result["key"], result["services"]) == ("order", "42", ["order-api", "web"])
    assert result["current"] == {"id": 42, "doc": {"a": 2, "b": []}, "n": None}
    assert (result["last"]["op"], "serviceName" in result["last"]) == ("read", False)
    by_path = {attribute.pop("path"): attribute for attribute in result["attributes"]}
    assert list(by_path) == ["/id", "/doc/a", "/doc/b", "/n"]
    assert by_path["/doc/a"] == {
        "value": 2,
        "before": 1,
        "writer": {
            "serviceName": "order-api",
            "apiVersion": "v2",
            "identifier": "req-3",
            "op": "update",
            "position": "00000001/0000000000000003/00000002",
            "transaction": "703",
            "committedAt": "2026-11-21T03:10:05.886044Z",
        },
    }
    assert (by_path["/id"]["before"], by_path["/doc/b"]["writer"]["serviceName"]) == (41, "web")
    assert by_path["/n"] == {"value": None, "writer": result["last"]}
    gone = answer(config_file, capsys, "blame", "order", "42")
    assert (gone["current"], gone["attributes"], gone["last"]["serviceName"]) == (None, [], "cleanup")


@pytest.mark.usefixtures("log")
def test_the_answer_leaves_out_an_unknown_value(config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store_of_one = [record(Op.UPDATE, '{"id":1}', unavailable=("doc",))]
    (config_file.parent / "other").mkdir()
    other = config_file.parent / "other" / "changelog.toml"
    other.write_text(CONFIG)
    store(other.parent / "log", store_of_one)
    identity, doc = answer(other, capsys, "blame", "order", "42")["attributes"]
    assert (identity["value"], identity["beforeUnknown"], doc["beforeUnknown"]) == (1, True, True)
    assert "value" not in doc
    state = answer(other, capsys, "history", "order", "42", "--at", at(1))
    assert (state["current"], state["unavailable"]) == ({"id": 1}, ["doc"])


@pytest.mark.usefixtures("log")
def test_blame_and_who_print_text_for_people(config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    title, *_ = text(config_file, capsys, "blame", "order", "42", "--at", at(4))
    assert title == "order 42 was set by 2 services: order-api, web"
    assert text(config_file, capsys, "who", "--identifier", "req-4")[:3] == [
        "req-4 made 1 change",
        "",
        "order  1 moved",
    ]
    assert text(config_file, capsys, "who", "--service", "order-api", "--identifier", "req-6") == [
        "order-api req-6 made 1 change",
        "",
        "guest  1 created",
        '    keys ["EU","1"]',
        "    first 2026-11-21 03:10:08.886Z  00000001/0000000000000006/00000002",
    ]
    assert text(config_file, capsys, "who", "--service", "x\x1b") == ["x\\u001b made no change"]
    assert text(config_file, capsys, "who", "--service", "x", "--since", "2026-11-21T00:00:00Z") == [
        "x made no change since 2026-11-21T00:00:00.000000Z"
    ]


@pytest.mark.usefixtures("log")
def test_who_prints_json(config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["who", "--service", "order-api", "--entity", "order", "--since", "00000001/0000000000000004/00000000"]
    assert answer(config_file, capsys, *words) == {
        "entity": "order",
        "services": ["order-api"],
        "creates": 0,
        "updates": 0,
        "moves": 1,
        "deletes": 0,
        "truncates": 0,
        "firstPosition": "00000001/0000000000000004/00000000",
        "lastPosition": "00000001/0000000000000004/00000001",
        "firstTime": "2026-11-21T03:10:06.886044Z",
        "lastTime": "2026-11-21T03:10:06.886044Z",
        "keys": ["41", "42"],
    }


@pytest.mark.usefixtures("log")
def test_history_shows_a_state_and_the_change_that_made_it(
    config_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = answer(config_file, capsys, "history", "order", "42", "--at", at(4))
    assert (state["current"], state["unavailable"]) == ({"id": 42, "doc": {"a": 2, "b": []}}, [])
    assert (state["change"]["movedFrom"], state["change"]["value"]["current"]) == (
        {"key": "41", "partition": 0},
        {"id": 42},
    )
    assert text(config_file, capsys, "history", "order", "41", "--at", "2026-11-21T03:10:04.900Z") == [
        "order 41  as of 2026-11-21T03:10:04.900000Z",
        "",
        "id   41",
        'doc  {"a":1,\\u000a"b":[]}',
        "",
        "made by this change:",
        "2026-11-21 03:10:04.886Z  + created  by web v2  req-2",
        '                          id 41   doc {"a":1,\\u000a"b":[]}',
    ]


@pytest.mark.usefixtures("log")
def test_history_shows_patches_and_the_keys_that_the_row_had(
    config_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    title, _, *lines = text(config_file, capsys, "history", "order", "42", "--patch", "--until", at(4))
    assert title == "order 42  4 changes by web, order-api in 2 s; it is gone now"
    assert lines[3:6] == [
        "2026-11-21 03:10:05.886Z  ~ order 41  changed  by order-api v2  req-3",
        '                          {"op":"test","path":"/doc/a","value":1}',
        '                          {"op":"replace","path":"/doc/a","value":2}',
    ]
    words = ["history", "order", "42", "--patch", "--identifier", "req-3"]
    message = answer(config_file, capsys, *words)
    assert message["value"]["patch"][1] == {"op": "replace", "path": "/doc/a", "value": 2}
    assert message["value"]["provenance"]["identifier"] == "req-3"
    assert text(config_file, capsys, "history", "order", "42")[-1].endswith("! truncated  by cleanup v2  req-7")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("blame ordr 42", "the changelog in LOG has no entity ordr; it has: guest, order"),
        ("blame order 43", "the changelog in LOG has no change of order 43"),
        (
            "blame guest EU",
            "the key of the entity guest has 2 columns, not 1; give the values of region, id, in this order",
        ),
        ("history order 42 7", "the key of the entity order has 1 column, not 2; give the values of id, in this order"),
        (
            f"blame order 41 --at {at(1)}",
            (
                f"the changelog in LOG has no change of order 41 up to {at(1)}; its first change is at "
                "00000001/0000000000000002/00000002, 2026-11-21T03:10:04.886044Z"
            ),
        ),
        (
            "history order 41 --at 2026-11-21T00:00:00Z",
            (
                "the changelog in LOG has no change of order 41 up to 2026-11-21T00:00:00.000000Z; "
                "its first change is at 00000001/0000000000000002/00000002, 2026-11-21T03:10:04.886044Z"
            ),
        ),
        (
            "history order 42 --at 1s --service x",
            (
                "--at shows the state at one moment, and takes no filter of changes; "
                "leave out --at, or --since, --until, --service, --identifier and --column"
            ),
        ),
        ("who", "nobody is named; name a --service, an --identifier, or both"),
        ("who --service x --entity ordr", "the changelog in LOG has no entity ordr; it has: guest, order"),
    ],
)
def test_the_error_for_a_question_without_an_answer_is_one_line(
    words: str, error: str, config_file: Path, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*words.split(), "--config", str(config_file)]) == 2
    assert capsys.readouterr().err == f"changelog: {error.replace('LOG', str(log))}\n"


@pytest.mark.parametrize("words", ["blame order 42", "who --service x", "history order 42 --at 1s"])
def test_without_a_changelog_the_error_says_which_command_creates_one(
    words: str, config_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*words.split(), "--config", str(config_file)]) == 3
    where = config_file.parent / "log"
    assert capsys.readouterr().err == (
        f"changelog: there is no file log in {where}; `changelog run` creates it; see [sink] path\n"
    )


@pytest.mark.parametrize("words", ["blame order 42", "who --service x"])
def test_other_envelopes_are_refused(words: str, config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config_file.write_text(
        CONFIG.replace('path = "log"', 'kind = "kafka", bootstrap_servers = "broker:9092", envelope = "flat"')
    )
    assert cli.main([*words.split(), "--config", str(config_file)]) == 2
    assert f"`changelog {words.split(maxsplit=1)[0]}` reads only envelope = " in capsys.readouterr().err


@pytest.mark.parametrize("moment", ["yesterday", "0001-01-01T00:00:00+14:00"])  # the second one is in the year 0 in UTC
def test_a_moment_that_cannot_be_parsed_is_refused(
    config_file: Path, capsys: pytest.CaptureFixture[str], moment: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["blame", "order", "42", "--at", moment, "--config", str(config_file)])
    assert caught.value.code == 2
    assert f"argument --at: {moment!r} is not a position, a time with a zone, or an age" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ("history", "order", "\udcff"),
        ("blame", "order", "4", "\udcff"),
        ("who", "--service", "\udcff"),
        ("who", "--identifier", "\udcff"),
        ("history", "order", "42", "--service", "\udcff"),
    ],
)
def test_words_that_are_not_utf8_are_refused(
    config_file: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main([*words, "--config", str(config_file)])
    assert caught.value.code == 2
    assert r"'\udcff' is not UTF-8" in capsys.readouterr().err
