"""Pieces that wait for a look at the catalogue. No look comes here: the watch is never started."""

import pytest

from changelog.connectors.sources import Piece
from changelog.connectors.sources.postgres.admin.check import Requirements
from changelog.connectors.sources.postgres.admin.evidence import Evidence
from changelog.connectors.sources.postgres.noticed import Noticed
from changelog.connectors.sources.postgres.watch import Watch
from changelog.envelope.checkpoint import Checkpoint

PIECE = Piece(rows=(), checkpoint=Checkpoint(position=None, through="0" * 16, epoch=1), nbytes=0)


@pytest.fixture
def noticed() -> Noticed:
    """It has looked at the catalogue at the log position 100."""
    before = Evidence(lsn=100, horizon=900, tables={})
    requirements = Requirements(slot="s", publication="p", failover=False, entities=())
    return Noticed(Watch("", requirements, before, covered=100, answer_s=1.0), before, (), 100)


def test_a_piece_waits_for_a_look_after_its_descriptions(noticed: Noticed) -> None:
    assert noticed.withhold(PIECE, 100) is PIECE
    assert noticed.withhold(PIECE, 101) is None
    assert noticed.withholds
    assert noticed.release(0.0) is None


def test_the_next_piece_waits_where_the_block_of_the_description_gave_none(noticed: Noticed) -> None:
    assert noticed.withhold(None, 101) is None
    assert not noticed.withholds
    assert noticed.withhold(PIECE, 0) is None
    assert noticed.withholds
