"""Tests which pieces of the stream wait until the catalogue has been read.

A thread of `Watch` would read the catalogue, but these tests do not start this thread. So a piece that must wait waits
forever.
"""

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
    """Returns a `Noticed` that knows the catalogue as it was at the log position 100."""
    before = Evidence(lsn=100, horizon=900, tables={})
    requirements = Requirements(slot="s", publication="p", failover=False, entities=())
    return Noticed(Watch("", requirements, before, covered=100, answer_s=1.0), before, (), 100)


def test_a_piece_waits_until_the_catalogue_is_read_after_its_descriptions(noticed: Noticed) -> None:
    assert noticed.withhold(PIECE, 100) is PIECE
    assert noticed.withhold(PIECE, 101) is None
    assert noticed.withholds
    assert noticed.release(0.0) is None


def test_if_a_block_with_descriptions_gives_no_piece_the_next_piece_waits(noticed: Noticed) -> None:
    assert noticed.withhold(None, 101) is None
    assert not noticed.withholds
    assert noticed.withhold(PIECE, 0) is None
    assert noticed.withholds
