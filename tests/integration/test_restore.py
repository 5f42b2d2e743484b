"""Tests that the service notices if its server was restored to an earlier point. It must notice this even if the server
kept its timeline, and even if the server's log has since grown past all published positions.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from changelog.connectors import config, failpoints, gaps
from changelog.connectors.servers.postgres import PostgresServer, temporary_server
from changelog.connectors.servers.unprivileged import give_away
from changelog.connectors.sources.postgres import source
from changelog.connectors.sources.postgres.values.lsn import lsn_text, through_lsn
from changelog.envelope.errors import Kind
from tests.integration.site import Site
from tests.servers import SETTINGS, postgres_bin

ORDERS = """
[entities.orders]
table = "public.orders"
"""


@pytest.fixture(scope="module")
def restorable(request: pytest.FixtureRequest, starts_servers: None) -> Iterator[PostgresServer]:
    """A server of the version that the test requests, by default 18."""
    with temporary_server(postgres_bin(getattr(request, "param", 18)), settings=SETTINGS) as server:
        yield server


@pytest.fixture
def site(restorable: PostgresServer, tmp_path: Path, own_name: str) -> Site:
    """A service that has read its table and is stopped."""
    Site(restorable.dsn(), tmp_path).sql(f"CREATE DATABASE {own_name}")
    new_site = Site(restorable.dsn(own_name), tmp_path)
    new_site.sql(
        "CREATE TABLE orders (id int PRIMARY KEY, note text)",
        "ALTER TABLE orders REPLICA IDENTITY FULL",
        "CREATE TABLE other (id int)",
        "INSERT INTO orders VALUES (1, 'first')",
    )
    new_site.configure(ORDERS)
    publish(new_site, "1")
    return new_site


def publish(site: Site, key: str) -> None:
    """Runs the service until it has published the row with this key."""
    with site.running() as running:
        running.until(lambda: key in site.state("orders"))


def copy_data(server: PostgresServer) -> Path:
    """Copies the server's whole data folder, as a snapshot of its volume does. Returns the folder of the copy."""
    server.stop()
    copy = server.data_dir.with_name("copy")
    shutil.copytree(server.data_dir, copy, symlinks=True)
    server.start()
    return copy


def restore(server: PostgresServer, copy: Path) -> None:
    server.stop()
    shutil.rmtree(server.data_dir)
    copy.rename(server.data_dir)
    for file in [server.data_dir, *server.data_dir.rglob("*")]:
        give_away(file)
    server.start()


def pass_end(site: Site, lsn: int, statement: str) -> None:
    """Repeats the statement, each time in a new transaction, until the server's log has passed the position `lsn`."""
    is_past = False
    while not is_past:
        [(is_past,)] = site.sql(statement, f"SELECT pg_current_wal_flush_lsn() > '{lsn_text(lsn)}'")


def go_over_gap(site: Site) -> None:
    """Accepts that changes are lost (a *gap*), as `changelog run --over-gap --yes` does before it runs the service."""
    settings = config.load(site.config, os.environ)
    gap = gaps.find(settings, accept_settings=False, reach=failpoints.nowhere)
    assert gap is not None
    assert gap.error.kind is Kind.DIVERGED
    gaps.cross(settings, gap, accept_settings=False, reach=failpoints.nowhere)


ELSEWHERE = "INSERT INTO other SELECT generate_series(1, 100)"


@pytest.mark.parametrize(
    ("restorable", "statement"),
    [(18, ELSEWHERE), (14, "INSERT INTO orders SELECT coalesce(max(id), 0) + 1 FROM orders")],
    indirect=["restorable"],
)
def test_a_server_restored_on_the_same_timeline_is_refused_whatever_is_written_to_it(
    restorable: PostgresServer, site: Site, statement: str
) -> None:
    copy = copy_data(restorable)
    site.sql("INSERT INTO orders VALUES (10, 'lost with the restore')")
    publish(site, "10")
    checkpoint, messages = site.checkpoint, site.messages()
    restore(restorable, copy)
    assert site.sql("SELECT id FROM orders") == [(1,)]
    pass_end(site, through_lsn(checkpoint) + (1 << 16), statement)
    for _ in range(3):  # like a supervisor that restarts the service again and again
        line = site.refused()
        assert line.startswith("the server's log lacks the last transaction of the changelog (")
        assert "`changelog run --over-gap`" in line
        assert "drop" not in line
        assert site.messages() == messages
    go_over_gap(site)
    keys = {str(key) for (key,) in site.sql("SELECT id FROM orders")}
    with site.running() as running:
        running.until(lambda: site.state("orders").keys() == keys)


def test_a_restore_while_the_service_runs_is_noticed_when_it_connects_again(
    restorable: PostgresServer, site: Site
) -> None:
    copy = copy_data(restorable)
    with site.running() as running:
        site.sql("INSERT INTO orders VALUES (10, 'lost with the restore')")
        running.until(lambda: "10" in site.state("orders"))
        checkpoint = site.checkpoint
        restore(restorable, copy)
        pass_end(site, through_lsn(checkpoint), ELSEWHERE)
        assert running.ended().kind is Kind.DIVERGED


def test_the_service_continues_after_a_restore_that_lost_nothing(restorable: PostgresServer, site: Site) -> None:
    site.sql("INSERT INTO orders VALUES (2, 'kept')")
    publish(site, "2")
    restore(restorable, copy_data(restorable))
    site.sql("INSERT INTO orders VALUES (3, 'new')")
    publish(site, "3")
    assert [key for _, key in site.ops("orders")] == ["1", "2", "3"]


def test_transactions_that_the_server_sends_twice_are_handled_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server sends a transaction again if the service ended before it confirmed the transaction. In this test, the
    last transaction before the service ends contains only a *signal*: an operator's request, written into the
    database's log. So no row of the changelog shows that the service has handled this transaction.
    """
    monkeypatch.setattr(source.PostgresSource, "confirm", lambda *_: None)
    site.sql("INSERT INTO orders VALUES (2, 'second')")
    publish(site, "2")
    with site.running() as running:
        assert site.call("signal", "pause", "orders")[0] == 0
        running.until(lambda: bool(site.checkpoint.repairs.get("paused")))
    checkpoint = site.checkpoint
    monkeypatch.undo()
    site.sql("INSERT INTO orders VALUES (3, 'third')")
    with site.running() as running:
        running.until(lambda: "3" in site.state("orders"))
        assert not running.said("signal")
    assert [key for _, key in site.ops("orders")] == ["1", "2", "3"]
    assert site.checkpoint.repairs == checkpoint.repairs
