"""Tests replication connections: their queries, the roles that may connect, and slots that cannot be read.

An error is of the kind *gap* if the server can no longer send a part of its log that the slot's reader has not read
yet. The changes in this part are lost.
"""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo

from changelog.connectors.servers.postgres import PostgresServer, temporary_server
from changelog.connectors.sources.postgres.stream.replication import ReplicationConnection
from changelog.envelope.errors import ChangelogError, Kind
from tests.integration.stream.streams import ask, connected, execute, stream, take_until, wait_for
from tests.servers import SETTINGS, postgres_bin, reload


def test_identify_system_returns_what_the_server_says_about_itself(dsn: str) -> None:
    with connected(dsn) as connection:
        system = connection.identify_system()
        assert (system.timeline, connection.timeline_history(1)) == (1, ())
        assert system.system_identifier == ask(dsn, "SELECT system_identifier::text FROM pg_control_system()")
        assert system.wal_end > 0


def test_session_settings_are_applied(dsn: str) -> None:
    settings = {"DateStyle": "ISO, MDY", "application_name": "it's ours"}
    connection = ReplicationConnection.connect(dsn, settings=settings)
    assert connection.query("SHOW application_name") == [("it's ours",)]
    connection.close()


@pytest.mark.usefixtures("starts_servers")
def test_the_timeline_history_shows_a_promotion() -> None:
    for programs in (None, postgres_bin(15)):
        with temporary_server(programs, settings=SETTINGS) as server:
            server.stop()
            (server.data_dir / "standby.signal").touch()
            server.start()
            execute(server.dsn(), "SELECT pg_promote(true, 60)")
            with connected(server.dsn()) as connection:
                wait_for(lambda: connection.identify_system().timeline == 2)
                [(timeline, switch)] = connection.timeline_history(2)
                assert timeline == 1
                assert 0 < switch <= connection.identify_system().wal_end


def test_the_error_of_a_slot_in_use_names_its_reader(dsn: str, slot: str) -> None:
    with stream(make_conninfo(dsn, application_name="the other one"), slot):
        with pytest.raises(ChangelogError, match=rf"slot {slot} is read by process \d+ \(the other one, ") as raised:
            stream(dsn, slot)
        assert raised.value.kind is Kind.IN_USE
        with connected(dsn) as connection, pytest.raises(ChangelogError) as raised:
            connection.drop_slot(slot)
        assert raised.value.kind is Kind.IN_USE


def test_a_slot_that_is_missing_is_a_gap(dsn: str, slot: str) -> None:
    with connected(dsn) as connection:
        connection.drop_slot(slot)
    with pytest.raises(ChangelogError, match=f"slot {slot} does not exist") as raised:
        stream(dsn, slot)
    assert raised.value.kind is Kind.GAP


@pytest.mark.usefixtures("starts_servers")
def test_a_slot_that_lost_its_log_is_a_gap() -> None:
    settings = {**SETTINGS, "max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB", "max_wal_size": "32MB"}
    for programs in (None, postgres_bin(15)):
        with temporary_server(programs, settings=settings) as server:
            with connected(server.dsn()) as connection:
                connection.create_slot("s")
            for _ in range(4):
                execute(server.dsn(), "CREATE TABLE x AS SELECT 1 AS a", "DROP TABLE x", "SELECT pg_switch_wal()")
            execute(server.dsn(), "CHECKPOINT")
            with pytest.raises(ChangelogError, match="slot s has lost its log") as raised:
                stream(server.dsn(), "s")
            assert raised.value.kind is Kind.GAP


@pytest.mark.usefixtures("starts_servers")
def test_log_that_the_server_lacks_is_a_gap_and_any_other_missing_file_is_not() -> None:
    for programs in (None, postgres_bin(15)):
        with temporary_server(programs, settings=SETTINGS) as server:
            execute(server.dsn(), "CREATE TABLE t (id int)", "CREATE PUBLICATION p FOR TABLE t")
            with connected(server.dsn()) as connection:
                connection.create_slot("s")
                with pytest.raises(ChangelogError, match="No such file") as raised:
                    connection.query("SELECT pg_read_file('absent')")
                assert raised.value.kind is Kind.PRECONDITION
            oldest = ask(server.dsn(), "SELECT pg_walfile_name(restart_lsn) FROM pg_replication_slots")
            execute(server.dsn(), "SELECT pg_switch_wal()", "INSERT INTO t VALUES (1)")
            (server.data_dir / "pg_wal" / str(oldest)).unlink()
            with (
                pytest.raises(ChangelogError, match="has already been removed") as raised,
                stream(server.dsn(), "s") as open_stream,
            ):
                take_until(open_stream, lambda _: False)
            assert raised.value.kind is Kind.GAP


@pytest.mark.usefixtures("starts_servers")
def test_a_slot_cannot_be_created_without_wal_level_logical() -> None:
    for programs in (None, postgres_bin(15)):
        with (
            temporary_server(programs, settings={**SETTINGS, "wal_level": "replica"}) as server,
            connected(server.dsn()) as connection,
            pytest.raises(ChangelogError, match="wal_level") as raised,
        ):
            connection.create_slot("s")
        assert raised.value.kind is Kind.PRECONDITION


@pytest.fixture(scope="module", params=["18", "15"])
def strict_server(request: pytest.FixtureRequest, starts_servers: None) -> Iterator[PostgresServer]:
    """A server that admits only the roles `reader`, `postgres` and `plain`. `reader` needs a password (SCRAM)."""
    with temporary_server(None if request.param == "18" else postgres_bin(15), settings=SETTINGS) as server:
        execute(server.dsn(), "CREATE ROLE reader LOGIN REPLICATION PASSWORD 'right'", "CREATE ROLE plain LOGIN")
        rules = "host all,replication postgres,plain 127.0.0.1/32 trust\nhost all reader 127.0.0.1/32 scram-sha-256\n"
        _write(server.data_dir / "pg_hba.conf", rules)
        reload(server.dsn())
        yield server


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"user": "reader", "password": "wrong-secret"}, "password authentication failed"),
        ({"user": "reader"}, "no password supplied"),
        ({"user": "stranger"}, "no pg_hba.conf entry"),
        ({"user": "plain"}, "replication|permission denied"),
    ],
)
def test_roles_that_are_not_admitted_are_refused(
    strict_server: PostgresServer, change: dict[str, str], message: str
) -> None:
    with pytest.raises(ChangelogError, match=message) as raised:
        ReplicationConnection.connect(make_conninfo(strict_server.dsn(), **change))
    assert raised.value.kind is Kind.ACCESS
    assert "\n" not in str(raised.value)
    assert "secret" not in str(raised.value)


def test_a_role_that_is_admitted_can_connect(strict_server: PostgresServer) -> None:
    with connected(make_conninfo(strict_server.dsn(), user="reader", password="right")) as connection:
        assert connection.identify_system().timeline == 1


def test_a_database_that_does_not_exist_is_refused(server: PostgresServer) -> None:
    with pytest.raises(ChangelogError, match="does not exist") as raised:
        ReplicationConnection.connect(server.dsn("nowhere"))
    assert raised.value.kind is Kind.PRECONDITION


def test_a_server_that_does_not_run_is_an_error_of_the_connection() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(ChangelogError, match="refused") as raised:
            ReplicationConnection.connect(f"host=127.0.0.1 port={unused.getsockname()[1]}")
    assert raised.value.kind is Kind.CONNECTION


def test_the_error_of_an_invalid_dsn_does_not_repeat_it() -> None:
    with pytest.raises(ChangelogError) as raised:
        ReplicationConnection.connect("host=localhost my secret")
    assert raised.value.kind is Kind.USAGE
    assert "secret" not in str(raised.value)
