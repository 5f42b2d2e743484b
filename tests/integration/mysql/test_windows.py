"""Tests the chunks of a busy table. A chunk has the rows that one query returns. All these rows must be as they were at
one place in the log.

The first test runs a few rounds of the campaign `mysql_windows`.
"""

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from changelog.connectors.capture.tables.windows import Visibility
from changelog.connectors.servers.mysql import MysqlServer
from changelog.connectors.sources.mysql.admin.server_log import LogEnd, end_coordinate, log_end, snapshot_place
from changelog.connectors.sources.mysql.decode.events.events import XaId
from changelog.connectors.sources.mysql.session.address import Address
from changelog.connectors.sources.mysql.session.connection import Connection
from changelog.connectors.sources.mysql.snapshot import chunk_reader, xa_commits
from changelog.connectors.sources.mysql.snapshot.orphans import literal
from changelog.connectors.sources.mysql.snapshot.visibility import Deliveries, GtidSnapshot, PlaceSnapshot
from changelog.connectors.sources.mysql.snapshot.xa_commits import SETTLED_AFTER_S, prepared_transactions
from changelog.connectors.sources.mysql.values.positions.gtids import parse_gtids
from tests.campaigns._mysql.hot import create, update_by_xa
from tests.campaigns._pieces import run
from tests.campaigns.mysql_windows import SETUPS, campaign, read_once
from tests.servers.mysql import on_versions

END = 1 << 62

IDS = (
    XaId(format_id=1, gtrid=b"plain", bqual=b""),
    XaId(format_id=7, gtrid=b"quotes ',' inside", bqual=b"back\\slash"),
    XaId(format_id=0, gtrid=b"\0\xff'", bqual=b"\x80"),
    XaId(format_id=7, gtrid="Straße".encode(), bqual=b""),
)

MARIADB_VERSIONS = on_versions("mariadb", "mariadb-10.11", "mariadb-11.8")


@pytest.mark.campaign
@pytest.mark.usefixtures("starts_servers")
def test_chunks_of_a_busy_table_have_the_rows_of_one_place_in_the_log(seed: int) -> None:
    figures = run(campaign(), len(SETUPS), seed)
    assert figures["reads"]
    assert figures["chunks"].keys() == {setup.name for setup in SETUPS}
    assert {name for name, wrong in figures["marks_wrong"].items() if wrong} == {
        setup.name for setup in SETUPS if not setup.is_ordered
    }


@pytest.mark.campaign
def test_the_judge_finds_rows_that_were_changed_while_they_were_read(
    mysql_server: MysqlServer, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this test, the reader claims that its snapshots see all changes. So rows that were changed after the snapshot
    was taken are published as they were before, and the judge must find these rows.
    """

    def see_everything(reader: Connection, _control: Connection, _deliveries: Deliveries) -> PlaceSnapshot:
        reader.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
        return PlaceSnapshot(end=END)

    monkeypatch.setattr(chunk_reader, "take_snapshot", see_everything)
    judge, _ = read_once(mysql_server, seed)
    assert judge.stale


@MARIADB_VERSIONS
@pytest.mark.parametrize("end", ["own session", "other session"])
def test_a_snapshot_of_mariadb_misses_an_xa_transaction_whose_commit_is_only_in_the_log(
    mysql_server: MysqlServer, mysql_database: str, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    check_snapshots(mysql_server, mysql_database, monkeypatch, end)


@on_versions("mysql", "mysql-9")
@pytest.mark.parametrize("end", ["other session", "ONE PHASE"])
def test_a_snapshot_of_mysql_misses_an_xa_transaction_whose_commit_is_only_in_the_log(
    mysql_server: MysqlServer, mysql_database: str, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """MySQL 8.0.15 adds the GTID to the executed ones before the rows are visible. MySQL 9 does not."""
    check_snapshots(mysql_server, mysql_database, monkeypatch, end)


def check_snapshots(server: MysqlServer, database: str, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    """Takes snapshots while the commit of an XA transaction takes a while, after it was written into the log.

    The snapshots that do not see the rows must miss the transaction. An old server says of some of them that they
    include it; a new server must not. A commit in ONE PHASE is hidden from the service's list of prepared transactions,
    because MySQL 8.0.15 may list it only after such a snapshot.
    """
    clock = Clock()
    monkeypatch.setattr(xa_commits, "time", clock)
    if end == "ONE PHASE":
        monkeypatch.setattr(chunk_reader, "prepared_transactions", lambda _: ())
    create(server, database)
    address = Address.parse(f"mysql://root@127.0.0.1:{server.port}/{database}")
    with Connection(address) as reader, Connection(address) as control, ThreadPoolExecutor(1) as pool:
        start = log_end(control.query, control.version)
        deliveries = Deliveries(start.gtids, start.coordinate)
        over = pool.submit(update_by_xa, server, database, database, 0, end, slow=True)
        old = []
        while not over.done():
            log_length = end_coordinate(control.query, control.version)
            snapshot = chunk_reader.take_snapshot(reader, control, deliveries)
            [(version,)] = reader.query("SELECT version FROM hot WHERE id = 0")
            if version == 0:
                old.append((snapshot, log_length, included(reader, snapshot)))
            reader.execute("ROLLBACK")
        over.result()
        commit, gtid = last_transaction(control, start)
        deliveries.add(commit, gtid, end == "ONE PHASE")
        assert any(log_length > commit for _, log_length, _ in old)
        assert any(includes(commit, gtid) for *_, includes in old) == control.version.logs_xa_commits_first
        assert all(snapshot.misses(np.array([commit])).all() for snapshot, *_ in old)
        for _ in range(2):
            clock.now_s += SETTLED_AFTER_S
            last = chunk_reader.take_snapshot(reader, control, deliveries)
        assert not last.misses(np.array([commit])).any()
        assert last.unseen_before(start.coordinate) == ()


class Clock:
    """The seconds of `time.monotonic`."""

    now_s = 0.0

    def monotonic(self) -> float:
        """Returns the time."""
        return self.now_s


def included(reader: Connection, snapshot: Visibility) -> Callable[[int, str], bool]:
    """Returns a function that says whether the server's description of the snapshot includes a transaction.

    Its arguments are the coordinate and the GTID of the transaction. `reader` has taken the snapshot.
    """
    if isinstance(snapshot, GtidSnapshot):
        return lambda _, gtid: snapshot.executed.contains(gtid)
    end = snapshot_place(reader.query).coordinate
    return lambda commit, _: commit < end


def last_transaction(control: Connection, start: LogEnd) -> tuple[int, str]:
    """Returns the coordinate and the GTID of the last transaction in the log. `start` is a place in the same file."""
    events = control.query(f"SHOW BINLOG EVENTS IN '{start.file}' FROM {start.offset}")
    [*_, (offset, text)] = [(event[1], event[5]) for event in events if event[2] == "Gtid"]
    return start.coordinate + offset - start.offset, re.sub(r".*'(.*)'.*", r"\1", text)


@MARIADB_VERSIONS
def test_an_idle_server_whose_log_ends_with_an_event_of_its_own_is_read(
    mysql_server: MysqlServer, mysql_database: str
) -> None:
    """A snapshot of MariaDB ends at the last commit, but the log may be longer, for example after a checkpoint of the
    server. In this test, the stream begins 40 bytes after the snapshot's end.

    Even so, the snapshot sees all transactions before the beginning of the stream, because it has all their GTIDs. The
    second snapshot lacks the GTID of one of these transactions, so it does not see all of them.
    """
    address = Address.parse(f"mysql://root@127.0.0.1:{mysql_server.port}/{mysql_database}")
    with Connection(address) as reader, Connection(address) as control:
        reader.execute("CREATE TABLE item (id INT PRIMARY KEY)")
        end = log_end(control.query, control.version)
        stream_start = end.coordinate + 40
        snapshot = chunk_reader.take_snapshot(reader, control, Deliveries(end.gtids, stream_start))
        assert snapshot.unseen_before(stream_start) == ()
        reader.execute("ROLLBACK")
        [(gtid,)] = reader.query("SELECT @@gtid_binlog_pos")
        later = re.sub(r"(\d+)$", lambda match: str(int(match[1]) + 1), str(gtid))
        deliveries = Deliveries(parse_gtids(control.flavour, later), stream_start)
        snapshot = chunk_reader.take_snapshot(reader, control, deliveries)
        assert snapshot.unseen_before(stream_start) == (stream_start - 1,)


@on_versions("mariadb", "mariadb-10.11", "mariadb-11.8", "mysql")
def test_the_ids_of_prepared_transactions_are_read_as_the_server_prints_them(
    mysql_server: MysqlServer, mysql_database: str
) -> None:
    """Each transaction is ended by the id that a warning would show."""
    address = Address.parse(f"mysql://root@127.0.0.1:{mysql_server.port}/{mysql_database}")
    with Connection(address) as writer, Connection(address) as control:
        writer.execute("CREATE TABLE item (id INT PRIMARY KEY)")
        for xa_id in IDS:
            name = f"X'{xa_id.gtrid.hex()}', X'{xa_id.bqual.hex()}', {xa_id.format_id}"
            for statement in (
                f"XA START {name}",
                "INSERT INTO item VALUES (1)",
                f"XA END {name}",
                f"XA PREPARE {name}",
            ):
                writer.execute(statement)
            ids = prepared_transactions(control)
            writer.execute(f"XA ROLLBACK {literal(xa_id)}")
            assert ids == [xa_id]
            assert not prepared_transactions(control)
