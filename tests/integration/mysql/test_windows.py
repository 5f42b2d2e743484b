"""Tests the chunks of a busy table. A chunk has the rows that one query returns. All these rows must be as they were at
one place in the log.

The first test runs a few rounds of the campaign `mysql_windows`.
"""

import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from changelog.connectors.servers.mysql import MysqlServer
from changelog.connectors.sources.mysql.admin.server_log import log_end, snapshot_place
from changelog.connectors.sources.mysql.session.address import Address
from changelog.connectors.sources.mysql.session.connection import Connection
from changelog.connectors.sources.mysql.snapshot import chunk_reader
from changelog.connectors.sources.mysql.snapshot.visibility import Deliveries, GtidSnapshot, PlaceSnapshot
from changelog.connectors.sources.mysql.values.positions.gtids import parse_gtids
from tests.campaigns._mysql.hot import create, update_by_xa
from tests.campaigns._pieces import run
from tests.campaigns.mysql_windows import SETUPS, campaign, read_once
from tests.servers.mysql import on_versions

END = 1 << 62

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
def test_a_snapshot_misses_an_xa_transaction_whose_commit_is_only_in_the_log(
    mysql_server: MysqlServer, mysql_database: str, end: str
) -> None:
    """In this test, the commit of an XA transaction still takes a while after the server has written it into the log.

    Meanwhile, snapshots are taken. According to the server, some of them end after the commit, but they do not see it.
    """
    create(mysql_server, mysql_database)
    address = Address.parse(f"mysql://root@127.0.0.1:{mysql_server.port}/{mysql_database}")
    with Connection(address) as reader, Connection(address) as control, ThreadPoolExecutor(1) as pool:
        start = log_end(control.query, control.version)
        deliveries = Deliveries(start.gtids, start.coordinate)
        over = pool.submit(update_by_xa, mysql_server, mysql_database, mysql_database, 0, end, slow=True)
        snapshots = []
        while not over.done():
            snapshot = chunk_reader.take_snapshot(reader, control, deliveries)
            [(version,)] = reader.query("SELECT version FROM hot WHERE id = 0")
            snapshots.append((snapshot, snapshot_place(reader.query).coordinate, version))
            reader.execute("ROLLBACK")
        over.result()
        events = control.query(f"SHOW BINLOG EVENTS IN '{start.file}' FROM {start.offset}")
        commit = start.coordinate + max(event[1] for event in events if event[2] == "Gtid") - start.offset
        assert [version for _, place, version in snapshots if place > commit].count(0)
        assert all(snapshot.misses(np.array([commit])).all() for snapshot, _, version in snapshots if version == 0)
        last = chunk_reader.take_snapshot(reader, control, deliveries)
        assert not last.misses(np.array([commit])).any()
        assert last.unseen_before(start.coordinate) == ()


@on_versions("mysql")
@pytest.mark.parametrize("end", ["other session", "ONE PHASE"])
def test_a_snapshot_of_old_mysql_misses_an_xa_transaction_whose_gtid_is_executed(
    mysql_server: MysqlServer, mysql_database: str, end: str
) -> None:
    """Like the test above. Here, MySQL 8.0.15 adds the GTID to the executed ones before the rows are visible."""
    create(mysql_server, mysql_database)
    address = Address.parse(f"mysql://root@127.0.0.1:{mysql_server.port}/{mysql_database}")
    with Connection(address) as reader, Connection(address) as control, ThreadPoolExecutor(1) as pool:
        start = log_end(control.query, control.version)
        deliveries = Deliveries(start.gtids, start.coordinate)
        over = pool.submit(update_by_xa, mysql_server, mysql_database, mysql_database, 0, end, slow=True)
        snapshots = []
        while not over.done():
            snapshot = chunk_reader.take_snapshot(reader, control, deliveries)
            [(version,)] = reader.query("SELECT version FROM hot WHERE id = 0")
            snapshots.append((snapshot, version))
            reader.execute("ROLLBACK")
        over.result()
        events = control.query(f"SHOW BINLOG EVENTS IN '{start.file}' FROM {start.offset}")
        [*_, (offset, gtid)] = [(event[1], event[5].split("'")[1]) for event in events if event[2] == "Gtid"]
        commit = start.coordinate + offset - start.offset
        deliveries.add(commit, gtid)
        old = [snapshot for snapshot, version in snapshots if version == 0]
        assert any(isinstance(snapshot, GtidSnapshot) and snapshot.executed.contains(gtid) for snapshot in old)
        assert all(snapshot.misses(np.array([commit])).all() for snapshot in old)
        last = chunk_reader.take_snapshot(reader, control, deliveries)
        assert not last.misses(np.array([commit])).any()
        assert last.unseen_before(start.coordinate) == ()


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
