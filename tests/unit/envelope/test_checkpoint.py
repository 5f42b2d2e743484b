"""Tests how checkpoints are written as JSON, and read from JSON of this version and of older versions."""

import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from changelog.envelope.checkpoint import GENERATIONS, NO_DECISIONS, Checkpoint, Decisions, Stop
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.position import Position, commit_text
from tests.unit.envelope.format_1 import reader

GOLDEN = Path(__file__).parent / "golden"
AT = Position(1, 5, 4)
FULL = Checkpoint(
    position=Position(1, 0x1781838, 6),
    through="00000016B374D848",
    epoch=2,
    partial=True,
    windows={"order": {"complete": True, "stale": ["stock"]}},
    settings={"order": {"key": ["id"]}},
    decisions=Decisions({Position(1, 5, 0): "skip"}),
    accepted={"order": str(Position(1, 7, 2))},
    repairs={"open": {}, "paused": ["order"], "ended": {"a": "done"}, "revision": 2},
    source={"system_identifier": "7594081", "timeline": 3, "database": "app"},
    sink={"topics": {"order": "x1"}},
    stop=Stop(
        position=Position(2, 0x16_B374D850, 2), message="a row", hint="do this", choices=("skip",), altered="order"
    ),
)


@pytest.mark.parametrize(
    "checkpoint",
    [FULL, replace(FULL, position=None, windows={}, accepted={}, repairs={}, source={}, sink={}, stop=None)],
)
def test_a_checkpoint_is_read_as_it_was_written(checkpoint: Checkpoint) -> None:
    assert Checkpoint.from_json(checkpoint.to_json()) == checkpoint


@pytest.mark.parametrize("number", [1, 2])
def test_the_golden_file_of_each_format_gives_the_same_checkpoint(number: int) -> None:
    """The last version with format 1 wrote `format-1.json`; the first version with format 2 wrote `format-2.json`."""
    assert Checkpoint.from_json((GOLDEN / f"format-{number}.json").read_bytes()) == FULL


def test_a_checkpoint_is_written_like_the_golden_file_of_format_2() -> None:
    assert json.loads(FULL.to_json()) == json.loads((GOLDEN / "format-2.json").read_bytes())


def test_a_checkpoint_of_format_1_is_rewritten_as_format_2() -> None:
    stored = Checkpoint.from_json((GOLDEN / "format-1.json").read_bytes())
    assert json.loads(stored.to_json())["format"] == 2
    assert Checkpoint.from_json(stored.to_json()) == stored


def test_a_checkpoint_without_accepted_changes_is_read() -> None:
    members = json.loads(FULL.to_json())
    del members["accepted"]
    assert Checkpoint.from_json(json.dumps(members).encode()) == replace(FULL, accepted={})


@pytest.mark.parametrize("name", ["repairs", "source", "sink"])
def test_a_member_that_older_versions_did_not_write_is_empty(name: str) -> None:
    members = json.loads(FULL.to_json())
    del members[name]
    checkpoint = Checkpoint.from_json(json.dumps(members).encode())
    assert getattr(checkpoint, name) == {}
    assert json.loads(checkpoint.to_json()) == members


@pytest.mark.parametrize("name", ["repairs", "source", "sink", "accepted", "stop"])
def test_a_checkpoint_of_format_1_may_lack_a_later_member(name: str) -> None:
    members = json.loads((GOLDEN / "format-1.json").read_bytes())
    del members[name]
    checkpoint = Checkpoint.from_json(json.dumps(members).encode())
    assert checkpoint.source["system_identifier"] == "7594081"
    assert (checkpoint.source.get("database"), checkpoint.through) == (
        None if name == "source" else "app",
        FULL.through,
    )


def test_a_stop_is_kept_until_through_is_after_it() -> None:
    assert FULL.stopping(None) == FULL
    assert FULL.stop is not None
    commit = FULL.stop.position.commit
    assert replace(FULL, through=commit_text(commit)).stopping(None).stop == FULL.stop
    assert replace(FULL, through=commit_text(commit + 1)).stopping(None).stop is None
    assert replace(FULL, epoch=3, through=commit_text(1)).stopping(None).stop is None
    other = replace(FULL.stop, message="another")
    assert FULL.stopping(other).stop == other


def test_an_error_about_which_no_operator_can_decide_gives_no_stop() -> None:
    at = Position(1, 2, 4)
    assert Stop.of(ChangelogError(Kind.MALFORMED, "bytes", position=at)) is None
    assert Stop.of(ChangelogError(Kind.STOP, "a row", hint="do this", position=at, choices=["skip"])) == Stop(
        position=at, message="a row", hint="do this", choices=("skip",)
    )


def test_a_decision_holds_from_its_position_to_the_end_of_the_transaction() -> None:
    assert NO_DECISIONS.at(AT) is None
    decisions = NO_DECISIONS.accept(Position(1, 5, 2), "skip").accept(Position(1, 5, 8), "default")
    assert [decisions.at(Position(1, 5, ordinal)) for ordinal in (0, 2, 6, 8, 10)] == [
        None,
        "skip",
        "skip",
        "default",
        "default",
    ]
    assert decisions.at(Position(1, 6, 2)) is None
    assert decisions.at(Position(2, 5, 2)) is None


@pytest.mark.parametrize("suffix", ["", ":gtid-3"])
def test_a_source_may_append_text_to_the_commit(suffix: str) -> None:
    checkpoint = replace(FULL, through=commit_text(0x20) + suffix)
    assert Checkpoint.from_json(checkpoint.to_json()) == checkpoint
    assert checkpoint.complete_before == Position(2, 0x20, 0)
    assert commit_text(0x1F) < checkpoint.through < commit_text(0x21)


def test_a_checkpoint_of_a_newer_program_is_refused() -> None:
    newer = {**json.loads(FULL.to_json()), "format": 4}
    with pytest.raises(ChangelogError, match="has format 4; this program knows 3") as caught:
        Checkpoint.from_json(json.dumps(newer).encode())
    assert caught.value.kind is Kind.PRECONDITION


def test_only_a_checkpoint_with_repartitioned_entities_has_format_3() -> None:
    """Older programs would not read all topics of a repartitioned entity. Format 3 makes them refuse the checkpoint."""
    repartitioned = replace(FULL, sink={**FULL.sink, GENERATIONS: {"order": [{"topic": "app.order", "partitions": 1}]}})
    assert [json.loads(checkpoint.to_json())["format"] for checkpoint in (FULL, repartitioned)] == [2, 3]
    assert Checkpoint.from_json(repartitioned.to_json()) == repartitioned


def test_the_last_version_of_format_1_refuses_format_2_in_one_line() -> None:
    older: ModuleType = reader()
    assert older.Checkpoint.from_json((GOLDEN / "format-1.json").read_bytes()).system_identifier == "7594081"
    with pytest.raises(ChangelogError, match="has format 2; this program knows 1") as caught:
        older.Checkpoint.from_json(FULL.to_json())
    assert caught.value.kind is Kind.PRECONDITION
    assert caught.value.hint == "run the newer version that wrote it"
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b"null",
        FULL.to_json().replace(b"00000016B374D848", b"16"),
        FULL.to_json().replace(b'"00000016B374D848"', b"16"),
        FULL.to_json().replace(b"00000001/0000000000000005/00000000", b"here"),
        FULL.to_json().replace(b'{"00000001/0000000000000005/00000000":"skip"}', b"[]"),
        (GOLDEN / "format-1.json").read_bytes().replace(b"16/B374D848", b"16"),
        (GOLDEN / "format-1.json").read_bytes().replace(b'"16/B374D848"', b"16"),
    ],
)
def test_an_invalid_checkpoint_is_malformed(text: bytes) -> None:
    with pytest.raises(ChangelogError, match="cannot be read") as caught:
        Checkpoint.from_json(text)
    assert caught.value.kind is Kind.MALFORMED
