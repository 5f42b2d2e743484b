"""Which transactions a snapshot misses, for both databases."""

import numpy as np

from changelog.connectors.sources.mysql.snapshot.visibility import Delivered, PlaceSnapshot
from changelog.connectors.sources.mysql.values.positions.gtid_set import GtidSet

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


def gtids(text: str) -> GtidSet:
    return GtidSet.parse(f"{UUID}:{text}" if text else "")


def delivered(received: str, *numbers: int) -> Delivered:
    """Transactions with these numbers, each at a coordinate ten times its number."""
    result = Delivered(gtids(received), 0)
    for number in numbers:
        result.add(10 * number, f"{UUID}:{number}")
    return result


def test_mariadb_sees_what_is_before_a_place() -> None:
    snapshot = PlaceSnapshot(end=100)
    assert snapshot.misses(np.array([20, 99, 100, 130])).tolist() == [False, False, True, True]
    assert snapshot.unseen_before(100) == ()
    assert snapshot.unseen_before(101) == (100,)


def test_mysql_sees_what_was_executed_before() -> None:
    snapshot = delivered("1-4", 5, 6, 7, 8).snapshot(gtids("1-5:7"))
    ids = np.array([80, 50, 60, 60, 70, 50])
    assert snapshot.misses(ids).tolist() == [True, False, True, True, False, False]


def test_mysql_sees_transactions_from_before_the_opening() -> None:
    assert not delivered("1-4", 5).snapshot(gtids("1-4")).misses(np.array([30, 40])).any()


def test_a_snapshot_that_lacks_an_earlier_transaction_waits() -> None:
    transactions = delivered("1-4", 5)
    assert transactions.snapshot(gtids("1-3:5")).unseen_before(1000) == (999,)
    assert transactions.snapshot(gtids("1-4")).unseen_before(1000) == ()


def test_transactions_are_kept_while_a_snapshot_in_use_lacks_them() -> None:
    transactions = delivered("1-4", 5, 6, 7)
    first = transactions.snapshot(gtids("1-5"))
    second = transactions.snapshot(gtids("1-7"))
    assert transactions.gtid(50) is None
    assert transactions.gtid(60) == f"{UUID}:6"
    assert first.misses(np.array([50, 60, 70])).tolist() == [False, True, True]
    assert not second.misses(np.array([50, 60, 70])).any()
    del first
    transactions.snapshot(gtids("1-7"))
    assert transactions.gtid(60) is None
