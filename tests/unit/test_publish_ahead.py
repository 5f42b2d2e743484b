"""The publish loop reads a backlog while a commit is stored."""

from collections.abc import Sequence
from threading import Event

import pyarrow as pa
import pytest

from changelog.connectors.sources import Piece
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.position import Position
from tests.unit.test_publish import World, piece


class Overlapping(World):
    """A sink whose commits wait until the source was read once more."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.read_more = Event()

    def read(self, timeout_s: float, gather_s: float = 0.0) -> Piece | None:
        self.read_more.set()
        return super().read(timeout_s, gather_s)

    def add(self, rows: Sequence[pa.RecordBatch]) -> None:
        self.read_more.clear()
        super().add(rows)

    def commit(self, checkpoint: Checkpoint) -> None:
        assert self.read_more.wait(10), "nothing is read while a commit is stored"
        super().commit(checkpoint)


def test_a_backlog_is_read_while_a_commit_is_stored() -> None:
    world = Overlapping([piece(1, rows=12), piece(2, rows=11), "stop"])
    assert world.run() == ["publish 1: 12", "confirm 1", "publish 2: 11", "confirm 2", "close"]


def test_what_was_read_while_a_commit_failed_is_not_published() -> None:
    lost = ChangelogError(Kind.CONNECTION, "lost")
    world = World([piece(1, rows=12), piece(2, rows=3), piece(1, rows=12), "stop"], refuses={"commit": lost})
    assert world.run() == ["close", "publish 1: 12", "confirm 1", "close"]
    assert world.added_when_opened == [0, 12]


def test_an_error_that_was_read_while_a_commit_was_stored_comes_after_it() -> None:
    world = World([piece(1, rows=12), ChangelogError(Kind.STOP, "stop here", position=Position(1, 2, 0))])
    with pytest.raises(ChangelogError, match="stop here"):
        world.run()
    assert world.happened == ["publish 1: 12", "confirm 1", "publish 1: 0", "confirm 1", "close"]
