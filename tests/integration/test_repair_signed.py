"""Tests that the service obeys a signed signal once. It must refuse a copy of the signal, whichever role sends the
copy, and however old the signal is.

A *signal* is an operator's request, written into the database's log.
"""

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from changelog.connectors.capture.tables.repairs import ENDED_MAX, Repairs
from changelog.connectors.sources.postgres.admin.signals import send
from changelog.envelope.signal import Do, Signal
from tests.integration.site import Site

SECRET = "sixteen characters"

NEW_MESSAGES = "SELECT data FROM pg_logical_slot_get_changes('spy_{name}', NULL, NULL) WHERE data LIKE 'message:%'"


@pytest.fixture
def site(database: str, tmp_path: Path) -> Site:
    """A table, and a service that obeys only signed signals."""
    new_site = Site(database, tmp_path)
    new_site.sql("CREATE TABLE item (id int PRIMARY KEY)", "INSERT INTO item VALUES (1)")
    new_site.configure(f'[entities.item]\ntable = "public.item"\n[signals]\nsecret = "{SECRET}"\n')
    return new_site


@pytest.fixture
def stranger(site: Site) -> Iterator[str]:
    """Yields a connection string of a role that may only log in. Also creates a replication slot; through this slot,
    the test copies signals from the database's log.
    """
    role = f"stranger_{site.name}"
    site.sql(
        f'CREATE ROLE "{role}" LOGIN', f"SELECT pg_create_logical_replication_slot('spy_{site.name}', 'test_decoding')"
    )
    yield make_conninfo(site.dsn, user=role)
    site.sql(f"SELECT pg_drop_replication_slot('spy_{site.name}')", f'DROP ROLE "{role}"')


def signal(site: Site, do: Do, id_: str) -> None:
    with psycopg.connect(site.dsn, autocommit=True) as connection:
        send(connection, Signal(do=do, id=id_), SECRET.encode())


def copied_signal(site: Site) -> str:
    """Returns the content of the signal that was sent since the last call. There must be exactly one."""
    [(data,)] = site.sql(NEW_MESSAGES.format(name=site.name))
    return str(data).partition("content:")[2]


def test_a_copied_signal_is_refused_however_old_it_is(site: Site, stranger: str) -> None:
    with site.running() as service:
        service.until(site.is_read)
        site.sql(f"SELECT pg_replication_slot_advance('spy_{site.name}', pg_current_wal_lsn())")
        signal(site, "pause", "first")
        copy = copied_signal(site)
        assert '"do":"pause"' in copy
        for number in range(ENDED_MAX + 2):
            signal(site, "resume", f"later-{number}")
        service.until(lambda: f"later-{ENDED_MAX + 1}" in Repairs.parse(site.checkpoint.repairs).ended)
        assert "first" not in Repairs.parse(site.checkpoint.repairs).ended
        with psycopg.connect(stranger, autocommit=True) as connection:
            connection.execute("SELECT pg_logical_emit_message(true, 'changelog', %s)", [copy])
        service.until(lambda: "changelog_signals_ignored_total 1.0" in service.get("metrics"))
        assert not Repairs.parse(site.checkpoint.repairs).paused
        [warning] = [event for event in service.events() if event["event"] == "signals ignored"]
        assert warning["why"] == "a signal is signed for another transaction: somebody copied it"
        signal(site, "pause", "second")
        service.until(lambda: bool(Repairs.parse(site.checkpoint.repairs).paused))
