"""Tests how blames and states of rows are printed for people, on terminals of any width.

A blame has, for each attribute of a row, the change that set it.
"""

import re
from pathlib import Path

import pytest

from changelog.connectors.history.key_blame import key_state
from changelog.connectors.rendering.show_blame import blame
from changelog.connectors.rendering.show_state import state
from changelog.envelope.model import MISSING, Op, Place, Record
from changelog.envelope.position import Position
from tests.unit.history.stored import store
from tests.unit.records import record
from tests.unit.rendering.printed import lines

DOCS = Path(__file__).parents[3] / "docs"

HERE, THERE = Place(key="42", partition=0), Place(key="41", partition=0)

ROW = '{"id":%d,"status":"%s","address":{"street":"Main 1","zip":"%d"},"note":%s}'

LIFE = [
    record(Op.CREATE, ROW % (41, "NEW", 10115, "null"), commit=2, key="41", service="web-booking"),
    record(Op.UPDATE, ROW % (41, "PAID", 10117, "null"), commit=3, key="41", service="payment-api"),
    record(Op.DELETE, commit=4, ordinal=0, key="41", service="merge-job", moved_to=HERE),
    record(Op.CREATE, ROW % (42, "PAID", 10117, "null"), commit=4, ordinal=1, service="merge-job", moved_from=THERE),
    record(Op.READ, ROW % (42, "PAID", 10117, '"lost"'), commit=5),
    record(Op.DELETE, commit=6, service="cleanup"),
]


def shown(folder: Path, records: list[Record], key: str, commit: int, width: int) -> list[str]:
    at = Position(1, commit, 9)
    return lines(blame("order", key, key_state(store(folder, records), "order", key, at=at), width=width), width)


def test_attributes_are_below_the_changes_that_set_them(tmp_path: Path) -> None:
    page = (DOCS / "how-to" / "who-changed-what.md").read_text("utf-8")
    example = re.search(r"```text\n(order 42 was .*?)\n```", page, re.DOTALL)
    assert example is not None
    assert shown(tmp_path, LIFE, "42", 5, 120) == example[1].splitlines()


@pytest.mark.parametrize(
    ("key", "commit", "title"),
    [
        ("41", 3, "order 41 was set by 2 services: web-booking, payment-api"),
        ("41", 2, "order 41 was set by web-booking"),
        ("41", 6, "order 41 is gone: - merge-job v2  req-4  moved to 42 2026-11-21 03:10:06.886Z  "),
        ("42", 6, "order 42 is gone: - cleanup v2  req-6  deleted 2026-11-21 03:10:08.886Z  "),
        ("42", 4, "order 42 was set by 3 services: merge-job, payment-api, web-booking"),
    ],
)
def test_the_first_line_says_who_composed_the_row(tmp_path: Path, key: str, commit: int, title: str) -> None:
    title_line, *rest = shown(tmp_path, LIFE, key, commit, 200)
    assert title_line.startswith(title)
    assert bool(rest) == ("gone" not in title)
    assert commit != 4 or rest[0].startswith("last change: + merge-job v2  req-4  moved here 2026-11-21")


def test_blames_of_rows_with_unknown_writers_or_no_columns_are_shown(tmp_path: Path) -> None:
    records = [
        record(Op.READ, '{"id":42}', unavailable=("body",)),
        record(Op.CREATE, "{}", commit=2, key="7"),
        record(Op.UPDATE, '{"id":8}', key="8", commit=3),
    ]
    title, _, _, *rest = shown(tmp_path / "read", records, "42", 9, 120)
    assert title == "order 42 was set by an unknown writer"
    assert rest[1:] == ["    /id    42", "    /body  unavailable: the database's log did not send it"]
    assert shown(tmp_path / "empty", records, "7", 9, 120)[0] == "order 7 has no attributes"
    assert "~ unknown writer, first seen 2026" in "\n".join(shown(tmp_path / "update", records, "8", 9, 120))


def test_changes_without_a_stamp_do_not_count_as_a_service(tmp_path: Path) -> None:
    records = [
        record(Op.READ, '{"id":42,"a":1}'),
        record(Op.UPDATE, '{"id":42,"a":2}', commit=2, service="unknown"),
        record(Op.UPDATE, '{"id":42,"a":2,"b":3}', commit=3, service="web"),
    ]
    titles = [shown(tmp_path / str(commit), records, "42", commit, 120)[0] for commit in (2, 3)]
    assert titles == [
        "order 42 was set by an unknown writer and without a stamp",
        "order 42 was set by web; 1 of 3 attributes by an unknown writer; 1 of 3 attributes without a stamp",
    ]


@pytest.mark.parametrize("width", [36, 60])
def test_a_narrow_terminal_shows_everything(tmp_path: Path, width: int) -> None:
    narrow, wide = (shown(tmp_path / str(size), LIFE, "42", 5, size) for size in (width, 200))
    assert max(map(len, narrow)) <= width
    assert sorted(re.sub(r"\s", "", "".join(narrow))) == sorted(re.sub(r"\s", "", "".join(wide)))


def test_control_characters_do_not_reach_the_terminal(tmp_path: Path) -> None:
    hostile = record(Op.CREATE, '{"a\x9b":{"\u202e":"[red]x[/red]\x9b31m"}}', key="\x1b[2J", service="\x07[bold]")
    text = "\n".join(shown(tmp_path, [hostile], "\x1b[2J", 9, 120))
    assert not set(text) & set("\x1b\x9b\u202e\x07")
    assert '/a\\u009b/\\u202e  "[red]x[/red]\\u009b31m"' in text
    assert "order \\u001b[2J was set by \\u0007[bold]" in text


def test_a_long_value_is_shortened_to_the_part_that_changed(tmp_path: Path) -> None:
    before, after = (f'{{"t":"{"a" * 500}{end}"}}' for end in "xy")
    records = [record(Op.CREATE, before), record(Op.UPDATE, after, before, commit=2)]
    assert '…aaaaaaaaaaaaaaaay"  was …aaaaaaaaaaaaaaaax"' in "\n".join(shown(tmp_path, records, "42", 9, 120))


def test_a_state_lists_its_columns(tmp_path: Path) -> None:
    records = [
        record(Op.READ, '{"id":42,"n\x9bote":{"x":1}}', unavailable=("a/b",)),
        record(Op.DELETE, None, MISSING, commit=2),
    ]
    log = store(tmp_path, records)
    row = key_state(log, "order", "42", at=Position(1, 1, 9)).blame
    assert lines(state(row, width=80), 80) == [
        "id          42",
        'n\\u009bote  {"x":1}',
        "a/b         unavailable: the database's log did not send it",
    ]
    assert max(map(len, lines(state(row, width=30), 30))) <= 30
    assert lines(state(key_state(log, "order", "42").blame, width=80), 80) == ["there is no row"]
    assert (
        lines(state(key_state(store(tmp_path / "empty", [record(Op.CREATE, "{}")]), "order", "42").blame, width=80), 80)
        == []
    )
