"""Tests that only one service at a time can read a slot. Sessions of other roles must not be able to keep the service
from reading the slot.

Before a service reads a slot, it claims the slot: it takes advisory locks that other services look for.
"""

import threading
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from changelog.connectors.sources.postgres.admin.claim import claim_slot
from changelog.connectors.sources.postgres.admin.slot import ensure_slot
from changelog.connectors.sources.postgres.session.connection import connect
from changelog.connectors.sources.postgres.stream.pump import Stream
from changelog.connectors.sources.postgres.stream.replication import ReplicationConnection
from changelog.connectors.sources.postgres.values.text_to_json import SETTINGS as SESSION
from changelog.envelope.errors import ChangelogError, Kind
from tests.patience import PATIENCE_S
from tests.servers import VERSIONS, fresh_database, server_name

Connection = psycopg.Connection[tuple[object, ...]]

LOCKS = "SELECT l.classid::int8::bit(32)::int4, l.objid::int8::int4 FROM pg_locks AS l WHERE locktype = 'advisory'"


@pytest.fixture(params=["18", "15"])
def conn(request: pytest.FixtureRequest, starts_servers: None) -> Iterator[Connection]:
    """A connection to a fresh database. Each test runs on PostgreSQL 18 and on PostgreSQL 15."""
    dsn = request.getfixturevalue("database" if request.param == "18" else "database_15")
    with connect(dsn, settings=SESSION) as connection:
        yield connection


@pytest.fixture
def slot(conn: Connection) -> str:
    return f"slot_{conn.info.dbname}"


@pytest.fixture
def stranger(conn: Connection) -> Iterator[Connection]:
    """A session of a role that may only connect."""
    role = sql.Identifier(f"stranger_{conn.info.dbname}")
    conn.execute(sql.SQL("CREATE ROLE {} LOGIN").format(role))
    try:
        with psycopg.connect(
            conn.info.dsn, user=f"stranger_{conn.info.dbname}", application_name="stranger", autocommit=True
        ) as session:
            yield session
    finally:
        conn.execute(sql.SQL("DROP ROLE {}").format(role))


def replication_session(conn: Connection, name: str = "") -> "closing[ReplicationConnection]":
    return closing(ReplicationConnection.connect(conn.info.dsn, settings={"application_name": name}))


def test_the_error_of_a_slot_in_use_names_the_reader(conn: Connection, slot: str) -> None:
    with replication_session(conn) as replication:
        ensure_slot(conn, replication, slot, None, failover=False)
        reader = ReplicationConnection.connect(conn.info.dsn, settings={"application_name": "another"})
        conn.execute("CREATE PUBLICATION p")
        options = {"proto_version": "1", "publication_names": "p"}
        with Stream(reader, slot=slot, start_lsn=0, options=options):
            with pytest.raises(ChangelogError, match=r"read by process \d+ \(another, ") as raised:
                claim_slot(conn, replication, slot, patience_s=0.3)
            assert raised.value.kind is Kind.IN_USE
        claim_slot(conn, replication, slot)


def test_the_error_describes_the_session_that_holds_the_claim(conn: Connection, slot: str) -> None:
    with replication_session(conn, "first") as first, replication_session(conn) as second:
        claim_slot(conn, first, slot)
        [(started_at, role, pid)] = conn.execute(
            "SELECT to_char(backend_start AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"'), usename, pid"
            " FROM pg_stat_activity WHERE application_name = 'first' AND datname = current_database()"
        ).fetchall()
        with pytest.raises(ChangelogError) as raised:
            claim_slot(conn, second, slot, patience_s=0)
        address = "" if conn.info.host.startswith("/") else f", from {conn.info.hostaddr}"
        assert raised.value.message == (
            f"replication slot {slot} is read by process {pid} (first, role {role}{address}, since {started_at})"
        )
        assert raised.value.hint is not None
        assert f"SELECT pg_terminate_backend({pid})" in raised.value.hint


def test_a_slot_that_is_released_while_a_service_waits_for_it_is_claimed(conn: Connection, slot: str) -> None:
    with replication_session(conn) as replication:
        ensure_slot(conn, replication, slot, None, failover=False)
        conn.execute("CREATE PUBLICATION p")
        options = {"proto_version": "1", "publication_names": "p"}
        stream = Stream(ReplicationConnection.connect(conn.info.dsn), slot=slot, start_lsn=0, options=options)
        closing_timer = threading.Timer(0.5, stream.close)
        closing_timer.start()
        claim_slot(conn, replication, slot, patience_s=PATIENCE_S)
        closing_timer.join()


def test_a_slot_that_does_not_exist_yet_can_be_claimed_by_only_one_session(conn: Connection, slot: str) -> None:
    with replication_session(conn) as second:
        with replication_session(conn, "first") as first:
            claim_slot(conn, first, slot)
            claim_slot(conn, first, slot)
            with pytest.raises(ChangelogError, match=r"read by process \d+ \(first, ") as raised:
                claim_slot(conn, second, slot, patience_s=0.1)
            assert raised.value.kind is Kind.IN_USE
            claim_slot(conn, second, f"{slot}_other", patience_s=0)
        claim_slot(conn, second, slot)


def test_a_session_whose_claim_failed_does_not_block_later_claims(conn: Connection, slot: str) -> None:
    with replication_session(conn) as first, replication_session(conn) as second, replication_session(conn) as third:
        claim_slot(conn, first, slot)
        with pytest.raises(ChangelogError):
            claim_slot(conn, second, slot, patience_s=0)
        first.close()
        claim_slot(conn, third, slot)


@pytest.mark.usefixtures("starts_servers")
@pytest.mark.parametrize("version", VERSIONS)
def test_a_slot_that_many_sessions_claim_at_once_is_held_by_one_at_a_time(
    request: pytest.FixtureRequest, version: int
) -> None:
    """Each session claims the slot, holds it for a moment and ends. Two sessions must never hold the slot at once."""
    with fresh_database(request.getfixturevalue(server_name(version))) as dsn:
        _contend(dsn)


def _contend(dsn: str) -> None:
    """Runs five threads. Each thread claims the slot three times. Checks that no two threads hold the slot at once."""
    claim, overlaps, winners = threading.Lock(), [], []

    def contend(number: int) -> None:
        for _ in range(3):
            with connect(dsn, settings=SESSION) as conn, replication_session(conn) as replication:
                claim_slot(conn, replication, "contended", patience_s=PATIENCE_S)
                if not claim.acquire(blocking=False):
                    overlaps.append(number)
                    return
                winners.append(number)
                claim.release()

    threads = [threading.Thread(target=contend, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert overlaps == []
    assert sorted(winners) == [number for number in range(5) for _ in range(3)]


def test_locks_of_another_role_do_not_block_a_claim(conn: Connection, stranger: Connection, slot: str) -> None:
    """The other role takes locks with guessed keys, and also the locks that it saw the service take."""
    stranger.execute("SELECT pg_advisory_lock(hashtextextended('changelog slot ' || %s, 0))", [slot])
    with replication_session(conn) as first:
        claim_slot(conn, first, slot, patience_s=0)
        service_locks = stranger.execute(LOCKS + " AND l.pid <> pg_backend_pid()").fetchall()
    for lock in service_locks:
        stranger.execute("SELECT pg_advisory_lock(%s::int4, %s::int4)", lock)
    for number in range(100):
        stranger.execute("SELECT pg_advisory_lock(hashtext('changelog slot ' || %s), %s)", [slot, number])
    with replication_session(conn, "second") as second, replication_session(conn) as third:
        claim_slot(conn, second, slot, patience_s=0)
        with pytest.raises(ChangelogError, match=r"read by process \d+ \(second, "):
            claim_slot(conn, third, slot, patience_s=0.3)


def test_another_role_cannot_open_a_replication_session(conn: Connection, stranger: Connection) -> None:
    """Only the locks of replication sessions count as claims. The server refuses such a session to a role that may not
    replicate.
    """
    with pytest.raises(ChangelogError) as raised:
        ReplicationConnection.connect(make_conninfo(conn.info.dsn, user=stranger.info.user))
    assert raised.value.kind is Kind.ACCESS


def test_the_service_role_sees_which_session_holds_a_claim(conn: Connection, slot: str) -> None:
    """The role that `init --grants` creates for the service sees the claims of other sessions, but not the addresses
    and start times of these sessions.
    """
    role = sql.Identifier(f"run_{conn.info.dbname}")
    conn.execute(sql.SQL("CREATE ROLE {} LOGIN REPLICATION").format(role))
    dsn = make_conninfo(conn.info.dsn, user=f"run_{conn.info.dbname}")
    try:
        with (
            replication_session(conn, "first") as first,
            connect(dsn) as session,
            closing(ReplicationConnection.connect(dsn)) as replication,
        ):
            claim_slot(conn, first, slot)
            with pytest.raises(ChangelogError, match=rf"read by process \d+ \(first, role {conn.info.user}\)"):
                claim_slot(session, replication, slot, patience_s=0)
    finally:
        conn.execute(sql.SQL("DROP ROLE {}").format(role))
