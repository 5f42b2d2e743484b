"""Tests how the service checks that the server's log still has the last transaction of the changelog.

The server must send this transaction first. Until it arrives, the service confirms no new position to the server.
"""

from dataclasses import replace
from typing import Any

import pytest

from changelog.connectors.capture.rows.row_records import Transaction
from changelog.connectors.sources.postgres.admin.history import MEMBER, History, last_transaction
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.position import Position, commit_text

XID = (1 << 32) + 700
LAST = Transaction(xid=XID, name=str(XID), epoch=1, commit=0x900, committed_at=1_795_230_602_000_000)
STORED = Checkpoint(
    position=Position(1, 0x800, 4),
    through=commit_text(0x1000),
    epoch=1,
    source={"system_identifier": "77", "timeline": 1, MEMBER: last_transaction(LAST, "app")},
)


def history_of(stored: Checkpoint | None = STORED, confirmed: int = 0x900, publication: str = "app") -> History:
    return History.of(stored, publication, confirmed)


def test_nothing_is_confirmed_before_the_last_transaction_arrives_again() -> None:
    history = history_of()
    assert (history.start_lsn, history.durable, history.confirmable) == (0x900, 0x1000, 0x900)
    history.durable = 0x1100
    assert not history.heard(None)
    assert history.confirmable == 0x900
    history.reached(0x900)
    assert history.heard(LAST)
    assert history.confirmable == 0x1100
    assert not history.heard(LAST._replace(commit=0x1200)), "transactions after the last published one are new"
    history.reached(0x1200)


@pytest.mark.parametrize(
    "other", [{"commit": 0x980}, {"xid": 701}, {"committed_at": LAST.committed_at + 1}, {"commit": 0x2000, "xid": 9}]
)
def test_a_server_that_sends_another_transaction_first_has_another_history(other: dict[str, Any]) -> None:
    history = history_of()
    for _ in range(2):
        with pytest.raises(ChangelogError, match=r"lacks the last transaction .*\(700, committed at 0/900\)") as caught:
            history.heard(LAST._replace(**other))
        assert caught.value.kind is Kind.DIVERGED
    assert history.confirmable == 0x900


def test_a_server_that_sends_nothing_up_to_a_later_position_has_another_history() -> None:
    with pytest.raises(ChangelogError, match="lacks the last transaction"):
        history_of().reached(0x901)


@pytest.mark.parametrize(
    "history",
    [
        history_of(confirmed=0x901),
        history_of(replace(STORED, source={})),
        history_of(publication="another"),
    ],
    ids=["confirmed", "of an older program", "another publication"],
)
def test_a_transaction_that_the_server_may_not_send_is_not_awaited(history: History) -> None:
    assert (history.start_lsn, history.confirmable) == (0x1000, 0x1000)
    history.reached(0x5000)
    assert not history.heard(LAST._replace(commit=0x1200))


def test_a_new_changelog_begins_where_the_slot_does() -> None:
    history = history_of(None, confirmed=0x700)
    assert (history.start_lsn, history.durable, history.confirmable) == (0x700, 0x700, 0x700)
    history.reached(0x5000)


def test_a_transaction_that_is_published_in_part_is_sent_again() -> None:
    """Only a part of the last transaction is in the changelog. The server must send this transaction again."""
    partial = LAST._replace(commit=0x1800)
    source = {MEMBER: last_transaction(partial, "app")}
    history = history_of(replace(STORED, partial=True, position=Position(1, 0x1800, 8), source=source))
    assert history.start_lsn == 0x1000
    assert history.heard(partial)


def test_the_last_transaction_is_covered_even_without_rows() -> None:
    assert history_of().covered(STORED, lambda _: 1) == Position(1, 0x900, 0)
    assert history_of().covered(STORED, lambda _: 2) == Position(2, 0x900, 0), "it must have the present epoch"
    rows = replace(STORED, position=Position(1, 0x900, 6))
    assert history_of().covered(rows, lambda _: 1) == rows.position
    assert history_of().covered(replace(STORED, position=None), lambda _: 1) == Position(1, 0x900, 0)
    assert history_of().covered(replace(STORED, partial=True), lambda _: 1) == STORED.position
    assert history_of(replace(STORED, source={})).covered(STORED, lambda _: 1) == STORED.position
