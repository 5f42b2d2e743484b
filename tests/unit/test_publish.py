"""Tests the publish loop with a scripted source and a sink in memory: what is stored, when, and in which order."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from threading import Event
from typing import Any, Literal

import pyarrow as pa
import pytest

from changelog.connectors.service.loop import BACKOFF_S_MAX, BACKOFF_S_MIN, DRAIN_S_MAX, Cadence, Observer, publish
from changelog.connectors.sources import Activity, Piece, Recover
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.columnar import batch
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Op
from changelog.envelope.position import commit_text
from tests.unit.records import checkpoint, record

MIB = 1 << 20
CADENCE = Cadence(seconds=1.0, nbytes=1000, rows=10, backlog_rows=6, idle_seconds=60.0, idle_log_bytes=16 * MIB)


def piece(commit: int, rows: int = 1, *, nbytes: int = 100, log_bytes: int = 1, urgent: bool = False) -> Piece:
    """Returns a piece that ends with the transaction `commit`. If `rows` is 0, the piece has a position but no rows."""
    batches = [batch.from_records([record(Op.CREATE, "{}", commit=commit, ordinal=2 * n) for n in range(rows)])]
    return Piece(
        rows=batches if rows else [], checkpoint=checkpoint(commit), nbytes=nbytes, log_bytes=log_bytes, urgent=urgent
    )


Step = Piece | ChangelogError | float | Literal["stop"] | None
"""What a call of `read` does: it returns a piece, raises an error, returns nothing after some seconds, or stops the
service.

If the step is None, the whole timeout of the call passes, and the call returns nothing.
"""


@dataclass(slots=True)
class World:
    """A clock, a source that follows `script`, and a sink. `happened` lists in order what source and sink did."""

    script: Sequence[Step]
    stop: Event = field(default_factory=Event)
    happened: list[str] = field(default_factory=list)
    opened: list[Checkpoint | None] = field(default_factory=list)
    timeouts: list[float] = field(default_factory=list)
    gathers: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    now: float = 1000.0
    end_of_log: int = 0
    refuses: dict[str, ChangelogError] = field(default_factory=dict)
    stored: Checkpoint | None = None
    added: int = 0
    added_when_opened: list[int] = field(default_factory=list)
    recovered: int = 0
    published_while_away: Checkpoint | None = None

    def __post_init__(self) -> None:
        self.stop = _Stop(self)

    def open(self, recover: Recover) -> "World":
        self.added_when_opened.append(self.added)
        self._fail("open")
        self.opened.append(recover())
        return self

    # The source

    def read(self, timeout_s: float, gather_s: float = 0.0) -> Piece | None:
        self.timeouts.append(timeout_s)
        self.gathers.append(gather_s)
        step, *self.script = self.script or ["stop"]
        match step:
            case ChangelogError():
                raise step
            case "stop":
                self.stop.set()
                return None
            case float() | None:
                self.now += timeout_s if step is None else step
                return None
        self.now += gather_s
        return step

    def end(self) -> str:
        return commit_text(self.end_of_log)

    def activity(self) -> Activity:
        raise AssertionError("the loop must not ask for the activity")

    def confirm(self, checkpoint: Checkpoint) -> None:
        self._fail("confirm")
        self.happened.append(f"confirm {checkpoint.complete_before.commit}")

    def close(self) -> None:
        self.happened.append("close")
        self.stored = self.published_while_away or self.stored

    # The sink

    def prepare(self, entities: Sequence[Entity]) -> None:
        raise AssertionError("the loop must not prepare the sink")

    def recover(self) -> Checkpoint | None:
        self._fail("recover")
        self.recovered += 1
        self.added = 0
        return self.stored

    def add(self, rows: Sequence[pa.RecordBatch]) -> None:
        self._fail("add")
        self.added += sum(batch_.num_rows for batch_ in rows)

    def commit(self, checkpoint: Checkpoint) -> None:
        self._fail("commit")
        self.happened.append(f"publish {checkpoint.complete_before.commit}: {self.added}")
        self.added, self.stored = 0, checkpoint

    def lost(self, entities: Collection[str]) -> Collection[str]:
        raise AssertionError("the loop must not call `lost`")

    def abandon(self) -> None:
        self._fail("abandon")
        self.added = 0

    def _fail(self, what: str) -> None:
        if what in self.refuses:
            raise self.refuses.pop(what)

    def run(
        self, stored: Checkpoint | None = None, reach: Callable[[str], None] = lambda _: None, *, seconds: float = 1.0
    ) -> list[str]:
        self.stored = stored
        publish(
            self.open,
            self,
            stop=self.stop,
            cadence=replace(CADENCE, seconds=seconds),
            reach=reach,
            clock=lambda: self.now,
        )
        return self.happened


class _Stop(Event):
    """An event of a world. A wait for it returns at once, but advances the world's clock by the timeout."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self._world.waits.append(timeout)
        self._world.now += timeout
        return self.is_set()


def failure(kind: Kind = Kind.CONNECTION) -> ChangelogError:
    return ChangelogError(kind, "it happened")


# When rows and positions are committed


def test_rows_are_stored_a_second_after_the_first_of_them_and_then_confirmed() -> None:
    world = World([piece(1), 0.5, piece(2), 0.4, 0.2, piece(3), None])
    assert world.run(checkpoint(0)) == ["publish 2: 2", "confirm 2", "publish 3: 1", "confirm 3", "close"]


def test_the_wait_for_more_ends_when_the_commit_is_due() -> None:
    world = World([piece(1), 0.9])
    world.run(checkpoint(0))
    assert world.timeouts[0] == 0.2
    assert world.timeouts[2] == pytest.approx(0.05)


def test_a_read_collects_rows_for_only_a_part_of_the_time_before_its_commit() -> None:
    world = World([piece(1), 0.93, piece(2)])
    world.run(checkpoint(0))
    assert world.gathers[:3] == pytest.approx([0.05, 0.05, 0.02])


def test_a_read_that_ends_when_a_commit_is_due_is_followed_by_the_commit() -> None:
    world = World([piece(1), piece(2)])
    stored = world.run(checkpoint(0), seconds=1 / 32)
    assert stored == ["publish 1: 1", "confirm 1", "publish 2: 1", "confirm 2", "close"]


class Slow(World):
    """A world in which each commit takes half a second."""

    def commit(self, checkpoint: Checkpoint) -> None:
        self.now += 0.5
        World.commit(self, checkpoint)


def test_slow_commits_of_a_backlog_are_made_larger() -> None:
    world = Slow([piece(1, 6), 1.0, piece(2, 6), 1.5, piece(3, 1), 0.4, piece(4, 6), 0.7, None])
    assert world.run(checkpoint(0))[:4] == ["publish 1: 6", "confirm 1", "publish 3: 7", "confirm 3"]


def test_slow_commits_without_a_backlog_stay_small() -> None:
    world = Slow([piece(1), 1.0, piece(2), 1.0, piece(3), 0.5, None])
    assert world.run(checkpoint(0))[:4] == ["publish 1: 1", "confirm 1", "publish 2: 1", "confirm 2"]


def test_a_commit_with_enough_rows_is_made_at_once() -> None:
    world = World([piece(1, 4), piece(2, 5), piece(3, 1), piece(4, 1)])
    assert world.run(checkpoint(0))[:2] == ["publish 3: 10", "confirm 3"]


def test_a_commit_with_enough_bytes_is_made_at_once() -> None:
    world = World([piece(1, nbytes=999), piece(2, nbytes=1), piece(3)])
    assert world.run(checkpoint(0))[:2] == ["publish 2: 2", "confirm 2"]


def test_a_new_changelog_stores_its_first_position_at_once() -> None:
    assert World([piece(1, 0)]).run() == ["publish 1: 0", "confirm 1", "close"]


def test_positions_without_rows_are_stored_after_a_minute() -> None:
    world = World([piece(1, 0), 30.0, piece(2, 0), 29.0, piece(3, 0), 1.5, piece(4, 0)])
    assert world.run(checkpoint(0))[:2] == ["publish 3: 0", "confirm 3"]


def test_positions_without_rows_are_stored_after_much_log() -> None:
    world = World([piece(1, 0, log_bytes=16 * MIB - 1), piece(2, 0, log_bytes=1), None])
    assert world.run(checkpoint(0)) == ["publish 2: 0", "confirm 2", "close"]


def test_a_position_that_the_server_waits_for_is_stored_at_once() -> None:
    world = World([piece(1, 0), piece(2, 0, urgent=True), None])
    assert world.run(checkpoint(0))[:2] == ["publish 2: 0", "confirm 2"]


@pytest.mark.parametrize("progress", [{"windows": {"order": {"complete": True}}}, {"repairs": {"revision": 1}}])
def test_the_progress_of_table_reads_is_stored_within_a_second(progress: dict[str, Any]) -> None:
    further = replace(checkpoint(1), **progress)
    world = World([0.5, Piece(rows=(), checkpoint=further, nbytes=0), 0.5, None, 100.0])
    assert world.run(checkpoint(0)) == ["publish 1: 0", "confirm 1", "close"]


def test_a_position_is_stored_with_the_rows_before_it() -> None:
    world = World([piece(1), piece(2, 0), 1.0, None])
    assert world.run(checkpoint(0)) == ["publish 2: 1", "confirm 2", "close"]


def test_a_stored_position_is_not_stored_again() -> None:
    world = World([piece(1, 0), 100.0, None])
    assert world.run(checkpoint(1)) == ["close"]


# Stopping


def test_transactions_from_before_the_stop_are_still_stored() -> None:
    world = World([piece(1), "stop", piece(2), None, piece(3), piece(4)], end_of_log=3)
    assert world.run(checkpoint(0)) == ["publish 3: 3", "confirm 3", "close"]


def test_a_source_that_never_reaches_the_end_does_not_delay_the_stop_for_long() -> None:
    world = World([piece(1), "stop", *[None] * 1000], end_of_log=2)
    began = world.now
    assert world.run(checkpoint(0)) == ["publish 1: 1", "confirm 1", "close"]
    assert world.now - began == pytest.approx(DRAIN_S_MAX, abs=0.3)


def test_a_connection_lost_at_the_stop_does_not_lose_rows_that_were_read() -> None:
    world = World([piece(1), "stop", piece(2), failure()], end_of_log=9)
    assert world.run(checkpoint(0)) == ["publish 2: 2", "confirm 2", "close"]


def test_an_error_at_the_stop_is_raised_after_the_rows_before_it_are_stored() -> None:
    world = World([piece(1), "stop", piece(2), failure(Kind.STOP)], end_of_log=9)
    with pytest.raises(ChangelogError):
        world.run(checkpoint(0))
    assert world.happened == ["publish 2: 2", "confirm 2", "close"]


def test_nothing_is_opened_when_the_stop_came_first() -> None:
    world = World([])
    world.stop.set()
    assert (world.run(), world.opened) == ([], [])


# Faults


def test_after_a_lost_connection_the_source_is_opened_at_the_stored_checkpoint() -> None:
    world = World([piece(1), 1.0, piece(2), failure(), piece(2), None])
    assert world.run(checkpoint(0)) == ["publish 1: 1", "confirm 1", "close", "publish 2: 1", "confirm 2", "close"]
    assert world.opened == [checkpoint(0), checkpoint(1)]
    assert world.waits == [BACKOFF_S_MIN]


def test_the_wait_before_the_source_is_opened_again_grows_until_something_is_stored() -> None:
    world = World([*(failure() for _ in range(8)), piece(1), 1.0, failure(), failure()])
    world.run(checkpoint(0))
    assert world.waits == [1.0, 2.0, 4.0, 8.0, 16.0, BACKOFF_S_MAX, BACKOFF_S_MAX, BACKOFF_S_MAX, BACKOFF_S_MIN, 1.0]


def test_the_wait_is_short_again_after_the_source_streamed_for_longer_than_the_wait() -> None:
    world = World([*(failure() for _ in range(3)), 8.5, failure(), 0.5, failure(), 0.9, failure()])
    world.run(checkpoint(0))
    assert world.happened == ["close"] * 7, "nothing was committed"
    assert world.waits == [1.0, 2.0, 4.0, BACKOFF_S_MIN, 1.0, 2.0]


def test_a_source_that_cannot_be_opened_now_is_tried_again() -> None:
    world = World([piece(1)], refuses={"open": failure()})
    assert world.run(checkpoint(0)) == ["publish 1: 1", "confirm 1", "close"]
    assert world.opened == [checkpoint(0)]


def test_an_altered_source_is_opened_again() -> None:
    world = World([piece(1), failure(Kind.ALTERED)])
    world.run(checkpoint(0))
    assert len(world.opened) == 2


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind not in (Kind.CONNECTION, Kind.ALTERED)])
def test_every_other_error_ends_the_loop_after_the_rows_before_it_are_stored(kind: Kind) -> None:
    world = World([piece(1), piece(2), failure(kind), piece(3)])
    with pytest.raises(ChangelogError) as caught:
        world.run(checkpoint(0))
    assert caught.value.kind is kind
    assert world.happened == ["publish 2: 2", "confirm 2", "close"]


def test_rows_that_were_not_stored_are_never_confirmed() -> None:
    world = World([piece(1), 1.0, piece(2)], refuses={"commit": failure(Kind.STORAGE)})
    with pytest.raises(ChangelogError):
        world.run(checkpoint(0))
    assert world.happened == ["close"]


def test_rows_that_were_stored_but_not_confirmed_are_not_read_again() -> None:
    world = World([piece(1), 1.0, piece(2), 1.0], refuses={"confirm": failure()})
    assert world.run(checkpoint(0)) == ["publish 1: 1", "close", "publish 2: 1", "confirm 2", "close"]
    assert world.opened == [checkpoint(0), checkpoint(1)]


def test_after_a_lost_source_the_sink_is_recovered_because_another_service_may_have_published() -> None:
    world = World([piece(1), 1.0, failure(), piece(3), None])
    world.published_while_away = checkpoint(2)
    assert world.run(checkpoint(0)) == ["publish 1: 1", "confirm 1", "close", "publish 3: 1", "confirm 3", "close"]
    assert world.opened == [checkpoint(0), checkpoint(2)]


def test_added_rows_are_dropped_before_the_wait_for_a_source() -> None:
    world = World([piece(1), failure(), piece(1), None])
    assert world.run(checkpoint(0)) == ["close", "publish 1: 1", "confirm 1", "close"]
    assert world.added_when_opened == [0, 0], "no rows are kept while the source cannot be opened"


@pytest.mark.parametrize("step", ["add", "commit"])
def test_a_sink_that_is_lost_is_recovered_because_nobody_knows_what_it_stored(step: str) -> None:
    world = World([piece(1), 1.0, piece(1), None], refuses={step: failure()})
    assert world.run(checkpoint(0)) == ["close", "publish 1: 1", "confirm 1", "close"]
    assert world.opened == [checkpoint(0)] * 2
    assert world.recovered == 2


def test_a_sink_that_is_lost_while_it_drops_rows_is_recovered() -> None:
    world = World([piece(1), failure(), piece(1), None], refuses={"abandon": failure()})
    assert world.run(checkpoint(0)) == ["close", "publish 1: 1", "confirm 1", "close"]
    assert world.recovered == 2


def test_a_sink_that_cannot_be_recovered_now_is_tried_again() -> None:
    world = World([piece(1), None], refuses={"recover": failure()})
    assert world.run(checkpoint(0)) == ["publish 1: 1", "confirm 1", "close"]
    assert world.waits == [1.0]


@dataclass(slots=True)
class Choosy(World):
    """A world whose sink accepts one piece and refuses the next one."""

    kind: Kind = Kind.STOP

    def add(self, rows: Sequence[pa.RecordBatch]) -> None:
        if self.added:
            raise failure(self.kind)
        World.add(self, rows)


@pytest.mark.parametrize("kind", [Kind.STOP, Kind.MALFORMED, Kind.PRECONDITION])
def test_the_error_for_a_refused_row_is_raised_after_the_rows_before_it_are_stored(kind: Kind) -> None:
    world = Choosy([piece(1), piece(2), piece(3)], kind=kind)
    with pytest.raises(ChangelogError):
        world.run(checkpoint(0))
    assert world.happened == ["publish 1: 1", "confirm 1", "close"]


def test_nothing_more_is_stored_in_a_sink_that_another_service_took_over() -> None:
    world = Choosy([piece(1), piece(2), piece(3)], kind=Kind.IN_USE)
    with pytest.raises(ChangelogError):
        world.run(checkpoint(0))
    assert world.happened == ["close"]


@pytest.mark.parametrize(
    ("place", "happened"),
    [
        ("loop:read", ["close"]),
        ("loop:published", ["publish 1: 1", "close"]),
        ("loop:confirmed", ["publish 1: 1", "confirm 1", "close"]),
    ],
)
def test_a_crash_prevents_only_the_steps_after_it(place: str, happened: list[str]) -> None:
    class CrashError(Exception):
        pass

    def reach(name: str) -> None:
        if name == place:
            raise CrashError

    world = World([piece(1), 1.0, None])
    with pytest.raises(CrashError):
        world.run(checkpoint(0), reach)
    assert world.happened == happened


def test_the_observer_is_called_for_each_event() -> None:
    calls: list[object] = []

    class Listening(Observer):
        def committed(self, rows: Sequence[pa.RecordBatch], checkpoint: Checkpoint, seconds: float, /) -> None:
            calls.append(("committed", len(rows), checkpoint.complete_before.commit, seconds))

        def started(self, checkpoint: Checkpoint | None) -> None:
            calls.append(("started", checkpoint))

        def interrupted(self, error: ChangelogError, wait_s: float) -> None:
            calls.append(("interrupted", str(error), wait_s))

    world = World([piece(1), failure(), piece(1)])
    publish(world.open, world, stop=world.stop, observer=Listening(), clock=lambda: world.now)
    assert calls == [
        ("started", None),
        ("interrupted", "it happened", 1.0),
        ("started", None),
        ("committed", 1, 1, 0.0),
    ]
