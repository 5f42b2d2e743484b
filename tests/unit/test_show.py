"""Tests how changes are printed for people."""

import io
import json
from dataclasses import replace
from datetime import timedelta

import pytest
from rich.console import Console, ConsoleRenderable

from changelog.connectors import show
from changelog.connectors.capture.tables.table_progress import pages_read
from changelog.connectors.commands.tail import message_line
from changelog.envelope.model import MISSING, Op, Place, Record
from tests.unit.envelope.strategies import HOSTILE_CONTEXTS
from tests.unit.records import record


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def text(*shown: ConsoleRenderable) -> str:
    out = io.StringIO()
    console = Console(file=out, width=100, highlight=False, markup=False, emoji=False)
    for renderable in shown:
        console.print(renderable)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def test_an_update_shows_what_changed() -> None:
    update = record(Op.UPDATE, '{"id":42,"status":"PAID","n":1}', '{"id":42,"status":"NEW","n":1}')
    assert text(show.record(update)) == (
        "2026-11-21 03:10:03.886Z  ~ order 42  changed  by order-api v2  req-1\n"
        '                          status  "NEW" → "PAID"'
    )


def test_a_create_shows_the_state_and_a_read_shows_no_writer() -> None:
    assert text(show.record(record(Op.CREATE, '{"id":42,"note":null}'), subject=False)) == (
        "2026-11-21 03:10:03.886Z  + created  by order-api v2  req-1\n                          id 42   note null"
    )
    assert "by order-api" not in text(show.record(record(Op.READ, '{"id":42}')))


def test_a_context_is_shown_between_the_writer_and_the_columns() -> None:
    context = '{"user": "anna\\u001b[2J", "ticket":\n{"id": 1.50}, "long": "%s", "half": "\\ud800"}' % ("x" * 90)
    update = with_context(record(Op.UPDATE, '{"id":42}', '{"id":41}'), context)
    first, *lines, last = text(show.record(update)).splitlines()
    assert (first[26:], last.split()) == ("~ order 42  changed  by order-api v2  req-1", ["id", "41", "→", "42"])
    assert " ".join(" ".join(lines).split()) == (
        f'context user "anna\\u001b[2J" ticket {{"id": 1.50}} long "{"x" * 71}… half "\\ud800"'
    )
    assert "context" not in text(show.record(with_context(update, "{}")))


@pytest.mark.parametrize("context", HOSTILE_CONTEXTS)
def test_a_change_with_a_context_is_one_line_of_json(context: str) -> None:
    [line] = message_line(with_context(record(Op.CREATE, '{"doc":{\n"a":\t1}}'), context)).splitlines()
    value = json.loads(line)["value"]
    assert value["provenance"]["context"] == json.loads(context)
    assert value["current"] == {"doc": {"a": 1}}


def with_context(change: Record, context: str) -> Record:
    provenance = change.envelope.provenance
    provenance = replace(provenance, stamp=replace(provenance.stamp, context=context))
    return replace(change, envelope=replace(change.envelope, provenance=provenance))


def test_a_delete_shows_where_the_row_moved() -> None:
    to_another_key = record(Op.DELETE, None, '{"id":42}', moved_to=Place(key="43", partition=0))
    assert "- order 42  moved to 43" in text(show.record(to_another_key))
    to_another_partition = record(Op.DELETE, None, '{"id":42}', moved_to=Place(key="42", partition=5))
    assert "moved to partition 5" in text(show.record(to_another_partition))


def test_an_unknown_original_and_unavailable_values_are_mentioned() -> None:
    update = record(Op.UPDATE, '{"id":42}', MISSING, unavailable=("body",))
    assert "the database's log does not have the row before this change" in text(show.record(update))
    assert "unavailable: body" in text(show.record(update))
    known = record(Op.UPDATE, '{"id":42}', '{"id":42,"body":"x"}', unavailable=("body",))
    assert show.changes(known.envelope) == []
    assert "no published column changed" in text(show.record(known))


def test_an_invalid_state_is_shown_unchanged() -> None:
    invalid = record(Op.UPDATE, '{"c":{"x":hello}}', '{"c":{"x":1}}')
    assert '(not JSON)  absent → {"c":{"x":hello}}' in text(show.record(invalid))
    [line] = message_line(invalid).splitlines()
    value = json.loads(line)["value"]
    assert (value["current"], value["original"]) == ('{"c":{"x":hello}}', {"c": {"x": 1}})


def test_the_old_value_of_an_added_column_is_shown_as_absent() -> None:
    update = record(Op.UPDATE, '{"id":42,"new":1}', '{"id":42}')
    assert show.changes(update.envelope) == [show.ChangedValue(name="new", before=MISSING, after="1")]
    assert "new  absent → 1" in text(show.record(update))


def test_long_values_are_shortened_to_the_part_that_differs() -> None:
    long = "a" * 500
    update = record(Op.UPDATE, f'{{"t":"{long}y"}}', f'{{"t":"{long}x"}}')
    assert 't  …aaaaaaaaaaaaaaaax" → …aaaaaaaaaaaaaaaay"' in text(show.record(update))


def test_control_characters_do_not_reach_the_terminal() -> None:
    hostile = record(Op.UPDATE, '{"id":"\x9b31m\u202e"}', MISSING, key="\x1b[2J", service="\x07")
    shown = text(show.record(hostile))
    assert not set(shown) & set("\x1b\x9b\u202e\x07")
    assert "\\u001b[2J" in shown


def test_markup_in_values_is_printed_as_text() -> None:
    assert "[red]x[/red]" in text(show.record(record(Op.CREATE, '{"id":"[red]x[/red]"}')))


def test_a_history_shows_the_time_between_changes() -> None:
    shown = text(
        *show.history([record(Op.CREATE, '{"a":1}'), record(Op.UPDATE, '{"a":2}', '{"a":1}', commit=301)], key="42")
    )
    assert "│ 5 min later" in shown


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0.2134, "0.213 s"), (60, "60 s"), (240, "4 min"), (-1, "-1 s"), (12600, "3.5 h"), (864000, "10 days")],
)
def test_durations_are_written_for_people(seconds: float, expected: str) -> None:
    assert show.duration(timedelta(seconds=seconds)) == expected


@pytest.mark.parametrize(("nbytes", "expected"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 40, "5 TiB")])
def test_sizes_are_written_for_people(nbytes: int, expected: str) -> None:
    assert show.size(nbytes) == expected


READING = {"complete": False, "leaves": {"a": {"pages": 8, "left": [[2, 4], [6, None]]}, "b": {"pages": 0, "left": []}}}


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        (READING, (4, 8)),
        ({"complete": True}, (1, 1)),
        ({"complete": False}, (0, 1)),
        ({"complete": False, "leaves": {"a": {"pages": 0, "left": [[0, None]]}}}, (0, 1)),
        ({"complete": False, "leaves": {"a": {"pages": 4, "left": [[[0, 8], [0, 32]], [[2, 1], None]]}}}, (1, 4)),
    ],
)
def test_the_pages_that_were_read_are_counted(stored: dict[str, object], expected: tuple[int, int]) -> None:
    assert pages_read(stored) == expected


def test_progress_bars_appear_only_on_terminals() -> None:
    for stream, shown in ((Terminal(), True), (io.StringIO(), False)):
        bar = show.SnapshotBar(stream)
        bar.update({"order": READING, "guest": {"complete": True}})
        bar.update({"order": {"complete": True}, "guest": {"complete": True}})
        bar.close()
        assert ("reading order" in stream.getvalue()) == shown
        assert "guest" not in stream.getvalue()
