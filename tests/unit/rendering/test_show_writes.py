"""Tests how the changes of one service or request are printed for people, on terminals of any width."""

import re
from pathlib import Path

import pytest

from changelog.connectors.history.writes import writes
from changelog.connectors.rendering import show_writes
from changelog.envelope.entity import TRUNCATE_KEY
from changelog.envelope.model import Op
from tests.unit.history.stored import store
from tests.unit.records import record
from tests.unit.rendering.printed import lines

RECORDS = [
    *(record(Op.CREATE, "{}", commit=number, key=str(40 + number), service="import-job") for number in range(1, 13)),
    record(Op.UPDATE, "{}", commit=13, key="7", entity="guest", service="import-job"),
    record(Op.TRUNCATE, None, None, commit=14, key=TRUNCATE_KEY, entity="guest", service="import-job"),
]


def test_each_entity_has_its_counts_its_first_keys_and_its_span(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "who-changed-what.md").read_text("utf-8")
    example = re.search(r"```text\n(import-job made .*?)\n```", page, re.DOTALL)
    assert example is not None
    result = writes(store(tmp_path, RECORDS), service="import-job")
    assert lines(show_writes.writes("import-job", result, with_services=False), 80) == example[1].splitlines()


def test_control_characters_do_not_reach_the_terminal(tmp_path: Path) -> None:
    hostile = record(Op.CREATE, "{}", key="\x1b[2J", service="\x07")
    result = writes(store(tmp_path, [hostile]), service="\x07")
    text = "\n".join(lines(show_writes.writes("\x07", result, with_services=True), 80))
    assert not set(text) & set("\x1b\x07")
    assert "keys \\u001b[2J" in text


@pytest.mark.parametrize("width", [30, 80])
def test_one_request_shows_its_services(tmp_path: Path, width: int) -> None:
    result = writes(store(tmp_path, RECORDS), identifier="req-2")
    title, _, *rest = lines(show_writes.writes("req-2", result, with_services=True), width)
    assert title == "req-2 made 1 change"
    assert rest[:3] == ["order  1 created", "    keys 42", "    by import-job"]
    assert max(map(len, rest)) <= width
