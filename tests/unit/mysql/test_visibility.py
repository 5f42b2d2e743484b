"""Tests how the service finds out which transactions a snapshot of MySQL or MariaDB sees, and which it misses."""

from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pymysql
import pytest
from structlog.testing import capture_logs

from changelog.connectors.capture.tables.windows import Visibility
from changelog.connectors.sources.mysql.session.flavour import Flavour, ServerVersion
from changelog.connectors.sources.mysql.session.server_errors import XA_REFUSED, translated
from changelog.connectors.sources.mysql.snapshot import orphans
from changelog.connectors.sources.mysql.snapshot.chunk_reader import take_snapshot
from changelog.connectors.sources.mysql.snapshot.visibility import Deliveries, PlaceSnapshot
from changelog.connectors.sources.mysql.values.positions.coordinates import coordinate
from changelog.connectors.sources.mysql.values.positions.gtid_position import GtidPosition
from changelog.connectors.sources.mysql.values.positions.gtid_set import GtidSet
from changelog.envelope.errors import ChangelogError, Kind

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


def gtids(text: str) -> GtidSet:
    return GtidSet.parse(f"{UUID}:{text}" if text else "")


def delivered(received: str, *numbers: int) -> Deliveries:
    """Returns `Deliveries` of a stream that was opened after the transactions `received`, and has delivered the
    transactions with these numbers. The place of each in the log is ten times its number.
    """
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
    version = ServerVersion.parse("8.4.0")

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
    """A session of MariaDB. Its snapshot ends at `offset` in the log's first file, after the transactions `gtids`.

    The log ends there, too. `prepared` has the ids of prepared XA transactions, as the server prints them.
    """

    flavour = Flavour.MARIADB
    version = ServerVersion.parse("11.4.5-MariaDB")
    prepared: Sequence[str] = ()

    def __init__(self, offset: int, gtids: str) -> None:
        self._offset, self._gtids = offset, gtids

    def execute(self, _statement: str) -> None:
        pass

    def query(self, query: str, _values: object = ()) -> list[tuple[object, ...]]:
        if query.startswith("SHOW STATUS"):
            return [("Binlog_snapshot_file", "log.000001"), ("Binlog_snapshot_position", str(self._offset))]
        if query.startswith("SHOW MASTER STATUS"):
            return [("log.000001", self._offset, "", "")]
        if query.startswith("XA RECOVER"):
            return [(1, 1, 0, text) for text in self.prepared]
        return [(self._gtids,)]


@pytest.mark.parametrize("covered", [None, coordinate(1, 500)])
def test_mariadb_waits_until_a_snapshot_sees_what_another_server_delivered(covered: int | None) -> None:
    """`covered` is the place where the other server's transactions end, or None if it is not known. All snapshots of
    this test end before that place.
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


def test_mariadb_may_miss_what_was_logged_after_a_prepared_transaction_was_absent() -> None:
    transactions = Deliveries(GtidPosition.parse(""), 0)
    place = Place(300, "0-1-7")
    take_snapshot(place, place, transactions)  # type: ignore[arg-type]
    later = Place(400, "0-1-8")
    later.prepared = ["'x'"]
    ids = np.array([coordinate(1, offset) for offset in (299, 300, 400)])
    assert take_snapshot(later, later, transactions).misses(ids).tolist() == [False, True, True]  # type: ignore[arg-type]
    later.prepared = []
    assert take_snapshot(later, later, transactions).misses(ids).tolist() == [False, False, True]  # type: ignore[arg-type]


@pytest.mark.parametrize(("passed", "count"), [(299, 0), (300, 1)])
def test_mariadb_warns_of_a_prepared_transaction_once_the_stream_has_read_the_log_up_to_its_end(
    passed: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orphans, "time", SimpleNamespace(monotonic=iter([0.0, 1.0, 11.0]).__next__))
    transactions = Deliveries(GtidPosition.parse(""), 0, passed=lambda: coordinate(1, passed))
    place = Place(300, "0-1-7")
    place.prepared = ["'x'"]
    with capture_logs() as logs:
        for _ in range(3):
            take_snapshot(place, place, transactions)  # type: ignore[arg-type]
    assert len(logs) == count


class OldMysql:
    """A session of an old MySQL, which logs an XA COMMIT before it commits the rows. The log ends at `offset` in its
    first file.

    `prepared` has the hexadecimal ids of prepared XA transactions; None if the account may not list them.
    """

    flavour = Flavour.MYSQL
    version = ServerVersion.parse("8.0.29")

    def __init__(self, offset: int, executed: str, prepared: Sequence[str] | None = (), xa_commits: int = 1) -> None:
        self._offset, self._executed, self._prepared, self._xa_commits = offset, executed, prepared, xa_commits

    def execute(self, _statement: str) -> None:
        pass

    def query(self, query: str, _values: object = ()) -> list[tuple[object, ...]]:
        if query.startswith("SHOW MASTER STATUS"):
            return [("log.000001", self._offset, "", "", f"{UUID}:{self._executed}")]
        if query.startswith("SHOW GLOBAL STATUS"):
            return [("Com_xa_commit", str(self._xa_commits))]
        with translated("asking the server"):
            if self._prepared is None:
                raise pymysql.OperationalError(XA_REFUSED, "XAER_RMERR")
            return [(1, 1, 0, text) for text in self._prepared]


def snapshot_of(server: OldMysql, transactions: Deliveries) -> Visibility:
    return take_snapshot(server, server, transactions)  # type: ignore[arg-type]


def test_old_mysql_may_miss_what_was_logged_after_a_prepared_transaction_was_absent() -> None:
    transactions = Deliveries(gtids("1-4"), coordinate(1, 100))
    ids = np.array([coordinate(1, 110), coordinate(1, 210)])
    transactions.add(coordinate(1, 110), f"{UUID}:5")
    assert snapshot_of(OldMysql(100, "1-4", ["0x78"]), transactions).unseen_before(100) == (99,)
    first = snapshot_of(OldMysql(200, "1-5"), transactions)
    transactions.add(coordinate(1, 210), f"{UUID}:6")
    second = snapshot_of(OldMysql(300, "1-6", ["0x78"]), transactions)
    third = snapshot_of(OldMysql(300, "1-6"), transactions)
    assert first.misses(ids).tolist() == second.misses(ids).tolist() == [False, True]
    assert third.misses(ids).tolist() == [False, False]
    assert first.unseen_before(100) == second.unseen_before(100) == third.unseen_before(100) == ()


def test_old_mysql_waits_for_an_xa_transaction_that_another_server_delivered() -> None:
    transactions = Deliveries(gtids("1-6"), None)
    assert snapshot_of(OldMysql(200, "1-5"), transactions).unseen_before(0) == (-1,)
    assert snapshot_of(OldMysql(300, "1-6", ["0x78"]), transactions).unseen_before(0) == (-1,)
    assert snapshot_of(OldMysql(300, "1-6"), transactions).unseen_before(0) == ()


def test_old_mysql_must_list_prepared_transactions_once_there_was_one() -> None:
    transactions = Deliveries(gtids("1-4"), coordinate(1, 100))
    assert snapshot_of(OldMysql(100, "1-4", None, xa_commits=0), transactions).unseen_before(100) == ()
    with pytest.raises(ChangelogError) as raised:
        snapshot_of(OldMysql(100, "1-4", None), transactions)
    assert raised.value.kind is Kind.ACCESS
    assert "XA_RECOVER_ADMIN" in str(raised.value.hint)
