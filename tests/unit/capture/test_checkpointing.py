"""A checkpoint while a source is open: when the source has to open again, and what still counts until then."""

from dataclasses import replace
from typing import Any

import pytest

from connectors.capture.checkpointing import Checkpointing
from connectors.capture.rows.row_records import Change, Transaction
from connectors.capture.tables.repairs import Reached
from connectors.capture.tables.table_progress import COMPLETE
from envelope.checkpoint import Checkpoint
from envelope.position import Position, commit_text
from envelope.signal import Do, Signal, Signing, encode

STORED = Checkpoint(
    position=None,
    through=commit_text(100),
    epoch=1,
    source={"system_identifier": "7", "timeline": 1},
    windows={"order": COMPLETE, "guest": {"complete": False, "part": 1}},
)
AT = Change(transaction=Transaction(xid=8, epoch=1, commit=200, committed_at=0), ordinal=0, stamp=None)


def opened(checkpoint: Checkpoint = STORED, *, secret: bytes | None = None, reached: list[str] | None = None) -> Any:
    def signing(transaction: int) -> Signing | None:
        return None if secret is None else Signing(secret=secret, cluster="7", transaction=transaction)

    passed = [] if reached is None else reached
    return Checkpointing(checkpoint, name="booking", signing=signing, asking=(), reach=passed.append)


def signal(do: Do, entity: str | None = "order", *, service: str | None = None) -> bytes:
    return encode(Signal(do=do, id=f"{do}-{entity}", entity=entity, service=service), None)


def test_a_source_opens_again_only_once_the_signal_is_durable() -> None:
    state = opened()
    state.obey(signal("rebuild"), AT)
    assert not state.is_outdated(sweeping=False)
    state.confirm(STORED)
    assert not state.is_outdated(sweeping=False)
    state.confirm(state.checkpoint)
    assert state.is_outdated(sweeping=False)
    assert not opened(state.checkpoint).is_outdated(sweeping=False), "the next opening does what is stored"


def test_a_sweep_is_waited_for_unless_somebody_wants_it_to_end() -> None:
    state = opened()
    state.obey(signal("rebuild"), AT)
    state.confirm(state.checkpoint)
    assert not state.is_outdated(sweeping=True)
    state.obey(signal("pause"), AT)
    state.confirm(state.checkpoint)
    assert state.is_outdated(sweeping=True)


def test_what_the_old_plan_reads_counts_but_of_what_is_planned_anew() -> None:
    state = opened()
    state.progress({"guest": {"complete": False, "part": 2}}, Reached(revision=0))
    assert state.checkpoint.windows["guest"] == {"complete": False, "part": 2}
    state.obey(signal("rebuild", "guest"), AT)
    planned = state.checkpoint.windows["guest"]
    state.progress({"guest": COMPLETE}, Reached(revision=0))
    assert state.checkpoint.windows["guest"] == planned
    assert state.replanned == {"guest"}


@pytest.mark.parametrize(
    ("content", "secret", "ignored"),
    [
        (b"no signal", None, 1),
        (signal("rebuild", "unknown"), None, 1),
        (signal("rebuild"), b"secret", 1),
        (signal("rebuild", service="another"), None, 0),
    ],
)
def test_what_is_no_signal_for_us_changes_nothing(content: bytes, secret: bytes | None, ignored: int) -> None:
    passed: list[str] = []
    state = opened(secret=secret, reached=passed)
    state.obey(content, AT)
    assert (state.checkpoint, state.replanned, passed) == (STORED, set(), [])
    assert state.signals.take() == ignored


def test_rows_move_the_position_and_what_the_source_noticed_changes_the_plan() -> None:
    state = opened()
    state.deliver(Position(1, 200, 2), partial=True)
    assert state.checkpoint == replace(STORED, position=Position(1, 200, 2), partial=True)
    state.settle(
        lambda checkpoint, repairs: (
            replace(checkpoint, source={"seen": 1}),
            replace(repairs, paused=frozenset({"order"})),
        )
    )
    assert state.checkpoint.source == {"seen": 1}
    assert state.replanned == {"order"}
