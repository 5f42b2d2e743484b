"""Tests how signals and progress change the checkpoint of an opened source. After some changes
of the checkpoint, the source must be opened again.

A signal is an operator's request, for example to read a table again. A *sweep* searches the changelog for rows that
the table lacks.
"""

from dataclasses import replace
from typing import Any

import pytest

from changelog.connectors.capture.assembly.assembled import Assembled
from changelog.connectors.capture.checkpointing import Checkpointing, resumed
from changelog.connectors.capture.rows.row_records import Change, Transaction
from changelog.connectors.capture.tables.repairs import Reached
from changelog.connectors.capture.tables.table_progress import COMPLETE
from changelog.envelope.checkpoint import Checkpoint, Decisions
from changelog.envelope.columnar import batch
from changelog.envelope.model import Op
from changelog.envelope.position import Position, commit_text
from changelog.envelope.signal import Do, Signal, Signing, encode
from tests.unit.postgres.messages import entity
from tests.unit.records import record

STORED = Checkpoint(
    position=None,
    through=commit_text(100),
    epoch=1,
    source={"system_identifier": "7", "timeline": 1},
    windows={"order": COMPLETE, "guest": {"complete": False, "part": 1}},
)
AT = Change(transaction=Transaction(xid=8, name="8", epoch=1, commit=200, committed_at=0), ordinal=0, stamp=None)


def checkpointing(
    checkpoint: Checkpoint = STORED, *, secret: bytes | None = None, reached: list[str] | None = None
) -> Any:
    def signing(transaction: int) -> Signing | None:
        return None if secret is None else Signing(secret=secret, cluster="7", transaction=transaction)

    passed = [] if reached is None else reached
    return Checkpointing(
        checkpoint, name="booking", signing=signing, asking=(), stretch=lambda _: (1, {}), reach=passed.append
    )


def signal(do: Do, entity: str | None = "order", *, service: str | None = None) -> bytes:
    return encode(Signal(do=do, id=f"{do}-{entity}", entity=entity, service=service), None)


def test_a_source_opens_again_only_after_the_signal_is_durable() -> None:
    state = checkpointing()
    state.obey(signal("rebuild"), AT, 8)
    assert not state.is_outdated(sweeping=False)
    state.confirm(STORED)
    assert not state.is_outdated(sweeping=False)
    state.confirm(state.checkpoint)
    assert state.is_outdated(sweeping=False)
    assert not checkpointing(state.checkpoint).is_outdated(sweeping=False), "the next opening follows the stored plan"


def test_a_sweep_finishes_first_unless_a_signal_interrupts_it() -> None:
    state = checkpointing()
    state.obey(signal("rebuild"), AT, 8)
    state.confirm(state.checkpoint)
    assert not state.is_outdated(sweeping=True)
    state.obey(signal("pause"), AT, 8)
    state.confirm(state.checkpoint)
    assert state.is_outdated(sweeping=True)


def test_progress_of_an_old_plan_counts_unless_the_plan_of_the_entity_changed() -> None:
    state = checkpointing()
    state.progress({"guest": {"complete": False, "part": 2}}, Reached(revision=0))
    assert state.checkpoint.windows["guest"] == {"complete": False, "part": 2}
    state.obey(signal("rebuild", "guest"), AT, 8)
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
def test_an_invalid_or_foreign_signal_changes_nothing(content: bytes, secret: bytes | None, ignored: int) -> None:
    passed: list[str] = []
    state = checkpointing(secret=secret, reached=passed)
    state.obey(content, AT, 8)
    assert (state.checkpoint, state.replanned, passed) == (STORED, set(), [])
    assert state.signals.take() == ignored


def test_delivering_rows_changes_the_position_and_settling_changes_the_plan() -> None:
    state = checkpointing()
    rows = batch.from_records([record(Op.CREATE, "{}", commit=200)])
    state.deliver(Assembled(rows=[rows], partial=True))
    assert state.checkpoint == replace(STORED, position=Position(1, 200, 2), partial=True)
    state.settle(
        lambda checkpoint, repairs: (
            replace(checkpoint, source={"seen": 1}),
            replace(repairs, paused=frozenset({"order"})),
        )
    )
    assert state.checkpoint.source == {"seen": 1}
    assert state.replanned == {"order"}


def test_through_never_goes_back_and_determines_the_epoch() -> None:
    """`through` is the position in the database's log up to which a checkpoint includes all changes."""
    state = Checkpointing(
        STORED,
        name="booking",
        signing=lambda _: None,
        asking=(),
        stretch=lambda through: (1 if through <= commit_text(150) else 2, {"timeline": through[-2:]}),
        reach=lambda _: None,
    )
    state.reach(commit_text(90))
    assert (state.checkpoint.through, state.checkpoint.epoch) == (STORED.through, 1)
    state.deliver(Assembled(through=commit_text(201)))
    assert (state.checkpoint.through, state.checkpoint.epoch) == (commit_text(201), 2)
    assert state.checkpoint.source["timeline"] == "C9"


@pytest.mark.parametrize("value", [{"seen": 1}, None])
def test_a_member_of_the_source_is_replaced_or_removed(value: object) -> None:
    state = checkpointing()
    state.remember("readings", {"seen": 0})
    state.remember("readings", value)
    assert state.checkpoint.source.get("readings", None) == value
    assert ("readings" in state.checkpoint.source) == (value is not None)


@pytest.mark.parametrize("joined", [True, False])
def test_a_changelog_is_resumed_with_the_present_entities_and_settings(joined: bool) -> None:
    stored = replace(STORED, decisions=Decisions({Position(1, 5, 0): "skip"}), partial=True)
    entities = [entity("guest"), entity("ticket")]
    checkpoint = resumed(
        stored,
        entities,
        through=commit_text(300),
        epoch=2,
        settings={"guest": 1},
        source={"oid": 5},
        joined=joined,
        held_entities=lambda: {"guest"},
    )
    assert (checkpoint.position, checkpoint.partial, checkpoint.decisions) == (None, True, stored.decisions)
    assert (checkpoint.through, checkpoint.epoch, checkpoint.source) == (commit_text(300), 2, {"oid": 5})
    part = {"complete": False, "part": 1} if joined else {"complete": False}
    assert checkpoint.windows == {"guest": part, "ticket": {"complete": False}}
    assert checkpoint.repairs == stored.repairs


def test_an_entity_that_is_configured_again_is_read_and_swept() -> None:
    stored = Checkpoint(position=None, through=commit_text(9), epoch=1, windows={"order": {"complete": True}})
    checkpoint = resumed(
        stored,
        [entity(), entity("guest"), entity("ticket")],
        through=commit_text(300),
        epoch=2,
        settings={"order": 1, "guest": 1, "ticket": 1},
        source={},
        joined=True,
        held_entities=lambda: {"order", "guest", "gone"},
    )
    [(name, repair)] = checkpoint.repairs["open"].items()
    assert (name, repair["start"]) == ("guest", str(checkpoint.complete_before))
    assert repair["table"]
    assert repair["sweep"]


def test_a_new_changelog_reads_every_table() -> None:
    checkpoint = resumed(
        None, [entity()], through=commit_text(3), epoch=1, settings={}, source={}, joined=False, held_entities=set
    )
    assert checkpoint == Checkpoint(
        position=None, through=commit_text(3), epoch=1, windows={"order": {"complete": False}}
    )


def test_the_signature_of_a_signal_includes_the_transaction() -> None:
    state = checkpointing(secret=b"secret")
    signals = [
        (
            encode(
                Signal(do="pause", id=entity, entity=entity), Signing(secret=b"secret", cluster="7", transaction=number)
            ),
            AT,
            number,
        )
        for number, entity in enumerate(["order", "guest"])
    ]
    state.hear(Assembled(signals=signals))
    assert state.repairs.paused == {"order", "guest"}
    state.hear(Assembled(signals=[(content, change, number + 1) for content, change, number in signals]))
    assert state.signals.take() == 2
