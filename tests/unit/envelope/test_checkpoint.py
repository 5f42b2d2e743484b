"""The recovery record as JSON: of this program, and of older ones."""

import json
from dataclasses import replace

import pytest

from envelope.checkpoint import Checkpoint, Stop
from envelope.errors import ChangelogError, Kind
from envelope.position import Position

FULL = Checkpoint(
    position=Position(1, 0x1781838, 6),
    through_lsn=0x16_B374D848,
    epoch=2,
    system_identifier="7594081",
    timeline=3,
    partial=True,
    windows={"order": {"complete": True, "stale": ["stock"]}},
    settings={"order": {"key": ["id"]}},
    decisions={str(Position(1, 5, 0)): "skip"},
    accepted={"order": str(Position(1, 7, 2))},
    repairs={"open": {}, "paused": ["order"], "ended": {"a": "done"}, "revision": 2},
    source={"database": "app"},
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


def test_a_checkpoint_from_before_changes_of_columns_could_be_accepted_has_none() -> None:
    written = json.loads(FULL.to_json())
    del written["accepted"]
    assert Checkpoint.from_json(json.dumps(written).encode()) == replace(FULL, accepted={})


@pytest.mark.parametrize("name", ["repairs", "source", "sink"])
def test_a_checkpoint_from_before_a_later_member_has_an_empty_one(name: str) -> None:
    written = json.loads(FULL.to_json())
    del written[name]
    checkpoint = Checkpoint.from_json(json.dumps(written).encode())
    assert getattr(checkpoint, name) == {}
    assert json.loads(checkpoint.to_json()) == written


def test_a_stop_is_kept_until_the_log_is_past_it() -> None:
    assert FULL.stopping(None) == FULL
    assert FULL.stop is not None
    assert replace(FULL, through_lsn=FULL.stop.position.commit).stopping(None).stop == FULL.stop
    assert replace(FULL, through_lsn=FULL.stop.position.commit + 1).stopping(None).stop is None
    assert replace(FULL, epoch=3, through_lsn=1).stopping(None).stop is None
    other = replace(FULL.stop, message="another")
    assert FULL.stopping(other).stop == other


def test_of_an_error_that_nobody_can_pass_no_stop_is_kept() -> None:
    at = Position(1, 2, 4)
    assert Stop.of(ChangelogError(Kind.MALFORMED, "bytes", position=at)) is None
    assert Stop.of(ChangelogError(Kind.STOP, "a row", hint="do this", position=at, choices=["skip"])) == Stop(
        position=at, message="a row", hint="do this", choices=("skip",)
    )


def test_a_checkpoint_of_a_newer_program_is_refused() -> None:
    with pytest.raises(ChangelogError, match="has format 2; this program knows 1") as caught:
        Checkpoint.from_json(replace(FULL, format=2).to_json())
    assert caught.value.kind is Kind.PRECONDITION


@pytest.mark.parametrize("text", [b"", b"{}", b"null", FULL.to_json().replace(b"16/B374D848", b"16")])
def test_what_is_no_checkpoint_is_malformed(text: bytes) -> None:
    with pytest.raises(ChangelogError, match="cannot be read") as caught:
        Checkpoint.from_json(text)
    assert caught.value.kind is Kind.MALFORMED
