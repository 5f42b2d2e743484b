"""Tests the chunks of a busy table. A chunk has the rows that one query returns. All these rows must be as they were at
one place in the log.

The first test runs a few rounds of the campaign `mysql_windows`.
"""

import re

import pytest

from changelog.connectors.servers.mysql import MysqlServer
from changelog.connectors.sources.mysql.admin.server_log import log_end
from changelog.connectors.sources.mysql.session.address import Address
from changelog.connectors.sources.mysql.session.connection import Connection
from changelog.connectors.sources.mysql.snapshot import chunk_reader
from changelog.connectors.sources.mysql.snapshot.visibility import Deliveries, PlaceSnapshot
from changelog.connectors.sources.mysql.values.positions.gtids import parse_gtids
from tests.campaigns._pieces import run
from tests.campaigns.mysql_windows import SETUPS, campaign, read_once
from tests.servers.mysql import on_versions

END = 1 << 62


@pytest.mark.campaign
@pytest.mark.usefixtures("starts_servers")
def test_chunks_of_a_busy_table_have_the_rows_of_one_place_in_the_log(seed: int) -> None:
    figures = run(campaign(), len(SETUPS), seed)
    assert figures["reads"]
    assert figures["chunks"].keys() == {setup.name for setup in SETUPS}
    assert {name for name, wrong in figures["marks_wrong"].items() if wrong} == {"mysql_unordered"}


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


@on_versions("mariadb", "mariadb-10.11", "mariadb-11.8")
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
