"""Tests how an opened source reads tables: how the reads start and end, and when they record their progress."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from time import monotonic, sleep
from typing import NoReturn

import pytest

from changelog.connectors.capture.checkpointing import Checkpointing
from changelog.connectors.capture.table_reads import TableReads
from changelog.connectors.capture.tables.chunk_threads import ReadChunk
from changelog.connectors.capture.tables.planned_reads import PlannedReads
from changelog.connectors.capture.tables.windows import Chunk
from changelog.envelope.errors import ChangelogError, Kind
from tests.unit.capture.test_checkpointing import AT, checkpointing, signal
from tests.unit.memory.tables import RangeTask
from tests.unit.postgres.messages import entity

ENTITIES = [entity("order"), entity("guest", table="guests")]
UNREAD = {"complete": False, "columns": ["id"], "leaves": {"all": {"left": [[0, 5]]}}}
PATIENCE_S = 30


class UnforeseenError(Exception):
    """An error that the code under test does not know."""


def table_reads(state: Checkpointing, passed: list[str] | None = None, task: RangeTask | None = None) -> TableReads:
    """Returns the `TableReads` of an opened source. The table of orders was read completely, that of guests was not.

    The names of the fail points that the code reaches are added to `passed`. (A fail point is a place at which a test
    can make the code fail.)
    """
    plan = PlannedReads(ENTITIES, state.checkpoint.windows, state.repairs, can_sweep=True)
    nonces = map(str, count())
    return TableReads(
        plan,
        {} if task is None else {"guest": task},
        horizon=100,
        nonces=lambda: next(nonces),
        reach=([] if passed is None else passed).append,
    )


def start(reads: TableReads, sessions: object) -> None:
    reads.start(ENTITIES, sessions, _refuse, workers=1, changelog=None)  # type: ignore[arg-type]


def _refuse() -> NoReturn:
    raise AssertionError("no table has to be read")


def _check_until_ended(reads: TableReads, state: Checkpointing) -> None:
    """Calls `check` until the threads have ended."""
    end = monotonic() + PATIENCE_S
    while reads.running and monotonic() < end:
        reads.check(state)
        sleep(0.01)


def test_nothing_is_started_if_all_tables_are_complete() -> None:
    state, passed = checkpointing(), list[str]()
    reads = table_reads(state, passed)
    start(reads, _refuse)
    reads.check(state)
    assert not reads.running
    assert passed == []


def test_an_error_of_a_reading_thread_reaches_the_source() -> None:
    def sessions() -> AbstractContextManager[ReadChunk]:
        raise UnforeseenError

    state = checkpointing()
    reads = table_reads(state, task=RangeTask("guest", ("id",), UNREAD))
    start(reads, sessions)
    with pytest.raises(UnforeseenError):
        _check_until_ended(reads, state)
    reads.close()


def test_the_threads_end_when_every_table_is_read() -> None:
    state, passed = checkpointing(), list[str]()
    task = RangeTask("guest", ("id",), UNREAD)
    reads = table_reads(state, passed, task)

    @contextmanager
    def sessions() -> Iterator[ReadChunk]:
        yield read_and_publish

    def read_and_publish(_nonce: str, chunk: Chunk) -> bool:
        task.publish(chunk.part, ())
        return True

    start(reads, sessions)
    _check_until_ended(reads, state)
    assert not reads.running
    assert passed == ["reading:planned", "reading:complete"]


def test_a_changed_plan_makes_the_source_open_again_once_the_plan_is_durable() -> None:
    state = checkpointing()
    reads = table_reads(state)
    state.obey(signal("rebuild"), AT, 8)
    reads.check(state)
    state.confirm(state.checkpoint)
    with pytest.raises(ChangelogError) as refused:
        reads.check(state)
    assert refused.value.kind is Kind.ALTERED


def test_progress_is_recorded_only_if_it_has_changed() -> None:
    state = checkpointing()
    task = RangeTask("guest", ("id",), UNREAD)
    reads = table_reads(state, task=task)
    reads.record(state)
    recorded = state.checkpoint
    assert recorded.windows["guest"] == task.to_json()
    reads.record(state)
    assert state.checkpoint is recorded
    state.obey(signal("rebuild", "guest"), AT, 8)
    changed = state.checkpoint
    assert changed is not recorded
    reads.record(state)
    assert state.checkpoint is not changed, "progress is recorded again after a change of the plan"
