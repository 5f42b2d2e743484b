"""Tests that `GtidSet` and `GtidPosition` give the same sets and positions of GTIDs as real servers."""

from collections.abc import Iterator, Sequence
from random import Random

import pytest

from changelog.connectors.servers.mysql import MysqlServer
from changelog.connectors.sources.mysql.decode.events.event_reader import EventReader
from changelog.connectors.sources.mysql.decode.events.events import PreviousGtids
from changelog.connectors.sources.mysql.values.positions.gtid_encoding import decode_gtids, encode_gtids
from changelog.connectors.sources.mysql.values.positions.gtid_position import GtidPosition
from changelog.connectors.sources.mysql.values.positions.gtid_set import GtidSet
from tests.servers.binlog import logged
from tests.servers.mysql import mysql_server

UUIDS = [f"{digit * 8}-71ca-11e1-9e33-c80aa9429562" for digit in "a1f"]


def ask(server: MysqlServer, *statements: str) -> str:
    """Executes statements in one session, and returns the value that the last statement selects."""
    with server.connect() as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        row = cursor.fetchone()
    assert row is not None
    return str(row[0])


def random_gtids(random: Random) -> str:
    """Returns the text of a random set of GTIDs. Its intervals are not sorted, and may overlap."""
    spans = [(random.choice(UUIDS), first, first + random.randrange(9)) for first in random.sample(range(1, 60), 6)]
    return ",".join(f"{uuid}:{first}-{last}" for uuid, first, last in spans)


def test_sets_agree_with_the_functions_of_mysql(mysql: MysqlServer, seed: int) -> None:
    random = Random(seed)
    with mysql.connect() as connection, connection.cursor() as cursor:
        for _ in range(200):
            mine, theirs = random_gtids(random), random_gtids(random)
            one, other = GtidSet.parse(mine), GtidSet.parse(theirs)
            cursor.execute("SELECT GTID_SUBTRACT(%s, %s), GTID_SUBTRACT(%s, ''), GTID_SUBSET(%s, %s)",
                           (mine, theirs, mine, other.text, theirs))  # fmt: skip
            assert cursor.fetchone() == (printed(one.minus(other)), printed(one), 1)
            cursor.execute("SELECT GTID_SUBSET(%s, %s)", (one.minus(other).text, theirs))
            assert cursor.fetchone() == (int(one.minus(other).is_subset(other)),)


def printed(gtids: GtidSet) -> str:
    """Returns the text that the server prints for a set: with a line break after each comma."""
    return gtids.text.replace(",", ",\n")


def test_a_set_has_the_bytes_that_mysql_writes_to_its_log(starts_servers: None, seed: int) -> None:
    random = Random(seed)
    gtids = {f"{random.choice(UUIDS)}:{random.randrange(1, 30)}" for _ in range(40)}
    builder = GtidSet.parse("").builder()
    for gtid in gtids:
        builder.add(gtid)
    with mysql_server("mysql") as server:
        transactions = [text for gtid in sorted(gtids) for text in (f"SET gtid_next = '{gtid}'", "BEGIN", "COMMIT")]
        executed = ask(server, "RESET MASTER", *transactions, "SELECT @@global.gtid_executed")
        (previous,) = previous_gtids(logged(server, "mysql", lambda _: None))
    assert executed == printed(builder.build())
    assert previous == encode_gtids(builder.build())
    assert decode_gtids(previous) == builder.build()


def previous_gtids(packets: Sequence[bytes]) -> list[bytes]:
    reader = EventReader()
    events = [event for packet in packets for event in reader.read(packet)]
    return [event.encoded for event in events if isinstance(event, PreviousGtids)]


@pytest.fixture
def loose_mariadb(starts_servers: None) -> Iterator[MysqlServer]:
    """A MariaDB that accepts GTIDs whose sequence numbers do not ascend."""
    with mysql_server("mariadb", {"gtid_strict_mode": "OFF"}) as server:
        yield server


def test_a_position_is_the_same_as_in_mariadb_after_each_transaction(loose_mariadb: MysqlServer, seed: int) -> None:
    random = Random(seed)
    ask(loose_mariadb, "CREATE DATABASE test", "CREATE TABLE test.t (a INT)", "SELECT 1")
    start = position = GtidPosition.parse(ask(loose_mariadb, "SELECT @@gtid_binlog_pos"))
    builder = position.builder()
    for _ in range(40):
        gtid = ask(
            loose_mariadb,
            f"SET gtid_domain_id = {random.randrange(3)}, server_id = {random.randrange(1, 4)}",
            f"SET gtid_seq_no = {random.randrange(1, 99)}",
            "INSERT INTO test.t VALUES (1)",
            "SELECT @@last_gtid",
        )
        builder.add(gtid)
        position = builder.build()
        assert position == GtidPosition.parse(ask(loose_mariadb, "SELECT @@gtid_binlog_pos"))
        assert position == GtidPosition.parse(ask(loose_mariadb, "SELECT @@gtid_binlog_state"))
        assert position.contains(gtid)
    assert ask(loose_mariadb, f"SET GLOBAL gtid_slave_pos = '{start.text}'", "SELECT @@gtid_slave_pos") == start.text
