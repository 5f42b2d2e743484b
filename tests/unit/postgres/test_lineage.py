"""Tests how the service finds the *epoch* of a commit: the number of the history to which the commit belongs. Also
tests how it finds out whether a server has this history, so that the changelog can continue there.

A standby that is promoted begins a new history of the log. In its log, a new timeline then branches off the old
timeline. The position where this happens is the *fork*.
"""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog.connectors.sources.postgres.admin.lineage import Lineage
from changelog.connectors.sources.postgres.stream.replication import System, parse_history
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.position import Position, commit_text

STORED = Checkpoint(
    position=Position(epoch=4, commit=0x900, ordinal=0),
    through=commit_text(0x1000),
    epoch=4,
    source={"system_identifier": "77", "timeline": 1},
)
ON_SECOND = replace(STORED, source={"system_identifier": "77", "timeline": 2})
FIRST = System(system_identifier="77", timeline=1, wal_end=0x2000)
SECOND = System(system_identifier="77", timeline=2, wal_end=0x5000)
THIRD = System(system_identifier="77", timeline=3, wal_end=0x5000)


def refusal(stored: Checkpoint, system: System, *history: tuple[int, int], confirmed: int = 0) -> ChangelogError:
    with pytest.raises(ChangelogError) as caught:
        Lineage.trace(stored, system, history, confirmed)
    assert caught.value.position is None  # no remedy needs a position
    assert caught.value.hint is not None
    return caught.value


def test_a_new_changelog_begins_in_the_first_epoch() -> None:
    lineage = Lineage.trace(None, SECOND, ((1, 0x1800),), 0x4000)
    assert (lineage.epoch(0x10), lineage.epoch(0x9000)) == (1, 1)
    assert lineage.reached(0x10).timeline == 2


def test_the_epoch_stays_the_same_on_the_same_timeline() -> None:
    lineage = Lineage.trace(STORED, FIRST, (), 0x1000)
    assert (lineage.epoch(0x1000), lineage.epoch(0x9000)) == (4, 4)
    assert lineage.reached(0x9000).timeline == 1


def test_after_a_promotion_commits_before_the_fork_keep_the_old_epoch() -> None:
    lineage = Lineage.trace(STORED, SECOND, ((1, 0x1800),), 0x1000)
    assert [lineage.epoch(commit) for commit in (0x1000, 0x17F8, 0x1800, 0x3000)] == [4, 4, 5, 5]
    assert [lineage.reached(end).timeline for end in (0x1000, 0x1800, 0x1808)] == [1, 1, 2]


def test_each_of_several_promotions_begins_an_epoch() -> None:
    lineage = Lineage.trace(STORED, THIRD, ((1, 0x1800), (2, 0x2800)), 0x1000)
    assert [lineage.epoch(commit) for commit in (0x1000, 0x2000, 0x3000)] == [4, 5, 6]


def test_promotions_before_the_checkpoint_do_not_count_again() -> None:
    stored = replace(ON_SECOND, through=commit_text(0x2000))
    lineage = Lineage.trace(stored, THIRD, ((1, 0x1800), (2, 0x2800)), 0x1000)
    assert [lineage.epoch(commit) for commit in (0x2000, 0x3000)] == [4, 5]


@given(st.integers(0x1000, 0x3000), st.integers(0x1000, 0x3000))
def test_a_restart_between_two_promotions_changes_no_epoch(pause: int, commit: int) -> None:
    history = ((1, 0x1800), (2, 0x2800))
    uninterrupted = Lineage.trace(STORED, THIRD, history, 0)
    reached = uninterrupted.reached(pause)
    stored = replace(STORED, through=commit_text(pause), epoch=reached.epoch)
    stored = replace(stored, source={**stored.source, "timeline": reached.timeline})
    if commit >= pause:
        assert Lineage.trace(stored, THIRD, history, 0).epoch(commit) == uninterrupted.epoch(commit)


def test_a_changelog_that_ends_at_the_fork_is_not_diverged() -> None:
    Lineage.trace(STORED, SECOND, ((1, 0x1000),), 0)


def test_a_changelog_beyond_the_fork_is_diverged() -> None:
    error = refusal(STORED, SECOND, (1, 0xFF8))
    assert error.kind is Kind.DIVERGED
    assert "left that timeline at 0/FF8" in str(error)


def test_a_half_published_commit_beyond_the_fork_is_diverged() -> None:
    stored = replace(STORED, partial=True, position=Position(epoch=4, commit=0x1800, ordinal=2))
    assert refusal(stored, SECOND, (1, 0x1800)).kind is Kind.DIVERGED
    Lineage.trace(stored, SECOND, ((1, 0x1900),), 0)


@pytest.mark.parametrize(
    ("stored", "system", "history"),
    [
        (STORED, replace(FIRST, wal_end=0xFF8), ()),
        (ON_SECOND, FIRST, ()),
        (ON_SECOND, THIRD, ((1, 0x1800),)),
    ],
    ids=["restored from a backup", "an older timeline", "another branch"],
)
def test_a_server_that_lacks_published_commits_is_diverged(
    stored: Checkpoint, system: System, history: tuple[tuple[int, int], ...]
) -> None:
    assert refusal(stored, system, *history).kind is Kind.DIVERGED


def test_a_slot_beyond_the_changelog_is_a_gap() -> None:
    error = refusal(STORED, FIRST, confirmed=0x1008)
    assert error.kind is Kind.GAP
    assert "0/1008" in str(error)


def test_another_cluster_is_a_gap_until_it_is_accepted() -> None:
    other = replace(FIRST, system_identifier="78")
    assert refusal(STORED, other).kind is Kind.GAP
    assert Lineage.unlinked(STORED, other).epoch(0) == 5


def test_a_history_file_is_parsed() -> None:
    content = b"1\t0/3000148\tno recovery target specified\n\n# a comment\n2\t16/B374D848\tbefore 2026-11-21\n"
    assert parse_history(content) == ((1, 0x3000148), (2, 0x16B374D848))
    for broken in (b"1\n", b"x\t0/1\n", b"1\tnowhere\n"):
        with pytest.raises(ChangelogError):
            parse_history(broken)
