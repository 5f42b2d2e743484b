"""The campaign over chunks of a hot table, for a few rounds, and a proof that its judge finds wrong rows."""

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
def test_chunks_under_writers_have_the_rows_of_their_place(seed: int) -> None:
    figures = run(campaign(), len(SETUPS), seed)
    assert figures["reads"]
    assert figures["chunks"].keys() == {setup.name for setup in SETUPS}
    assert {name for name, wrong in figures["marks_wrong"].items() if wrong} == {"mysql_unordered"}


@pytest.mark.campaign
def test_the_judge_finds_rows_that_were_changed_while_they_were_read(
    mysql_server: MysqlServer, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this test, the reader claims that its snapshots see all changes. So it does not leave out the rows that
    changed later.
    """

    def see_everything(reading: Connection, _asking: Connection, _delivered: Deliveries) -> PlaceSnapshot:
        reading.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
        return PlaceSnapshot(end=END)

    monkeypatch.setattr(chunk_reader, "take_snapshot", see_everything)
    judge, _ = read_once(mysql_server, seed)
    assert judge.stale


@on_versions("mariadb", "mariadb-10.11", "mariadb-11.8")
def test_an_idle_server_whose_log_ends_with_an_event_of_its_own_is_read(
    mysql_server: MysqlServer, mysql_database: str
) -> None:
    """MariaDB's snapshots end at the last commit, but the log may be longer: in this test by 40 bytes, as after a
    checkpoint of the server.

    In this case, the end of the snapshot is moved to where the stream begins, unless the snapshot lacks a transaction
    before that place.
    """
    address = Address.parse(f"mysql://root@127.0.0.1:{mysql_server.port}/{mysql_database}")
    with Connection(address) as reading, Connection(address) as asking:
        reading.execute("CREATE TABLE item (id INT PRIMARY KEY)")
        end = log_end(asking.query, asking.version)
        begun = end.coordinate + 40
        snapshot = chunk_reader.take_snapshot(reading, asking, Deliveries(end.gtids, begun))
        assert snapshot.unseen_before(begun) == ()
        reading.execute("ROLLBACK")
        [(gtid,)] = reading.query("SELECT @@gtid_binlog_pos")
        later = re.sub(r"(\d+)$", lambda match: str(int(match[1]) + 1), str(gtid))
        lacking = Deliveries(parse_gtids(asking.flavour, later), begun)
        assert chunk_reader.take_snapshot(reading, asking, lacking).unseen_before(begun) == (begun - 1,)
