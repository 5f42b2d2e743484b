"""Tests how the service finds out which transactions a snapshot of MySQL or MariaDB sees, and which it misses."""

import numpy as np
import pytest

from changelog.connectors.capture.tables.windows import Visibility
from changelog.connectors.sources.mysql.session.flavour import Flavour
from changelog.connectors.sources.mysql.snapshot.chunk_reader import take_snapshot
from changelog.connectors.sources.mysql.snapshot.visibility import Deliveries, PlaceSnapshot
from changelog.connectors.sources.mysql.values.positions.coordinates import coordinate
from changelog.connectors.sources.mysql.values.positions.gtid_position import GtidPosition
from changelog.connectors.sources.mysql.values.positions.gtid_set import GtidSet

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


def gtids(text: str) -> GtidSet:
    return GtidSet.parse(f"{UUID}:{text}" if text else "")


def delivered(received: str, *numbers: int) -> Deliveries:
    """Records that these transactions were delivered. The place of each in the log is ten times its number."""
    result = Deliveries(gtids(received), None)
    for number in numbers:
        result.add(10 * number, f"{UUID}:{number}")
    return result


def test_a_snapshot_of_mariadb_sees_everything_before_its_place_in_the_log() -> None:
    snapshot = PlaceSnapshot(end=100)
    assert snapshot.misses(np.array([20, 99, 100, 130])).tolist() == [False, False, True, True]
    assert snapshot.unseen_before(101) == ()
    assert PlaceSnapshot(end=100, sees_received=False).unseen_before(101) == (100,)


def test_a_snapshot_of_mysql_sees_the_transactions_in_its_set_of_gtids() -> None:
    snapshot = delivered("1-4", 5, 6, 7, 8).snapshot(gtids("1-5:7"))
    ids = np.array([80, 50, 60, 60, 70, 50])
    assert snapshot.misses(ids).tolist() == [True, False, True, True, False, False]


def test_a_snapshot_of_mysql_sees_transactions_from_before_the_stream_was_opened() -> None:
    assert not delivered("1-4", 5).snapshot(gtids("1-4")).misses(np.array([30, 40])).any()


def test_mysql_waits_until_a_snapshot_sees_all_earlier_transactions() -> None:
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


class Reading:
    """A session of MySQL. While its snapshot begins, a transaction is delivered, and another session takes a snapshot
    that sees this transaction.
    """

    flavour = Flavour.MYSQL

    def __init__(self, transactions: Deliveries) -> None:
        self._transactions = transactions
        self.others: list[object] = []

    def execute(self, _statement: str) -> None:
        self._transactions.add(60, f"{UUID}:6")
        self.others.append(self._transactions.snapshot(gtids("1-6")))

    def query(self, _query: str) -> list[tuple[str]]:
        return [(f"{UUID}:1-5",)]


def test_a_transaction_is_kept_if_it_is_delivered_while_a_snapshot_begins() -> None:
    transactions = delivered("1-4", 5)
    reading = Reading(transactions)
    snapshot = take_snapshot(reading, reading, transactions)  # type: ignore[arg-type]
    assert snapshot.misses(np.array([50, 60])).tolist() == [False, True]


class Place:
    """A session of MariaDB. Its snapshot sees the transactions `gtids`, and ends at `offset` in the first log file."""

    flavour = Flavour.MARIADB

    def __init__(self, offset: int, gtids: str) -> None:
        self._offset, self._gtids = offset, gtids

    def execute(self, _statement: str) -> None:
        pass

    def query(self, query: str, _values: object = ()) -> list[tuple[object, ...]]:
        if query.startswith("SHOW STATUS"):
            return [("Binlog_snapshot_file", "log.000001"), ("Binlog_snapshot_position", str(self._offset))]
        return [(self._gtids,)]


@pytest.mark.parametrize("covered", [None, coordinate(1, 500)])
def test_mariadb_waits_until_a_snapshot_sees_what_another_server_delivered(covered: int | None) -> None:
    """`covered` is where the transactions end that the other server delivered, or None if this is not known. All
    snapshots of this test end before that place.
    """
    transactions = Deliveries(GtidPosition.parse("0-1-8"), covered)

    def snapshot(offset: int, gtids: str) -> Visibility:
        place = Place(offset, gtids)
        return take_snapshot(place, place, transactions)  # type: ignore[arg-type]

    assert snapshot(300, "0-1-7").unseen_before(0) == (-1,)
    assert snapshot(400, "0-1-8").unseen_before(0) == ()
    assert snapshot(450, "not asked for").unseen_before(0) == ()
    assert snapshot(350, "0-1-7").unseen_before(0) == (-1,), "an older snapshot must wait again"
    assert snapshot(400, "0-1-8").misses(np.array([coordinate(1, 399), coordinate(1, 400)])).tolist() == [False, True]
