"""Tests that a service continues on a promoted replica, but refuses a server that lacks published transactions."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pymysql
import pytest

from changelog.connectors.servers.mysql import MysqlServer
from changelog.envelope.errors import Kind
from tests.integration.mysql.site import MysqlSite
from tests.patience import PATIENCE_S
from tests.servers.mysql import FLAVOURS, OTHER_VERSIONS, mysql_server, version_of
from tests.servers.replication import follow, last_error, reset_log, stop_following

DATABASE = "shop"

ITEM = """
[entities.item]
table = "shop.item"
"""


@dataclass(frozen=True, slots=True)
class Pair:
    """A primary and its replica. `site` uses a database of the primary."""

    primary: MysqlServer
    replica: MysqlServer
    site: MysqlSite

    def promote(self) -> MysqlSite:
        """Stops the replication once the replica has all rows of the primary. Returns a site whose service reads the
        replica, and continues the changelog of `site`.
        """
        [(count,)] = self.site.sql("SELECT COUNT(*) FROM item")
        [(total,)] = self.site.sql("SELECT SUM(amount) FROM item")
        deadline = time.monotonic() + PATIENCE_S
        while self._replica_totals() != (count, total):
            assert time.monotonic() < deadline, f"the replica does not catch up: {last_error(self.replica)}"
            time.sleep(0.05)
        stop_following(self.replica)
        replica_site = MysqlSite(self.replica, DATABASE, self.site.folder)
        replica_site.configure(ITEM)
        return replica_site

    def _replica_totals(self) -> object:
        try:
            return first_row(self.replica, "SELECT COUNT(*), SUM(amount) FROM shop.item")
        except (pymysql.err.ProgrammingError, pymysql.err.OperationalError):  # the table or database is not there yet
            return None


def first_row(server: MysqlServer, query: str) -> object:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(query)
        return cursor.fetchone()


@pytest.fixture(params=[*FLAVOURS, *OTHER_VERSIONS])
def pair(request: pytest.FixtureRequest, starts_servers: None, tmp_path: Path) -> Iterator[Pair]:
    with ExitStack() as stack:
        primary, replica = (
            stack.enter_context(mysql_server(request.param, {"server_id": number})) for number in ("1", "2")
        )
        follow(replica, primary)
        with primary.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {DATABASE}")
        site = MysqlSite(primary, DATABASE, tmp_path)
        values = ", ".join(f"({number}, 1)" for number in range(1, 51))
        site.sql("CREATE TABLE item (id INT PRIMARY KEY, amount INT)", f"INSERT INTO item VALUES {values}")
        site.configure(ITEM)
        yield Pair(primary, replica, site)


def test_a_service_continues_on_a_promoted_replica(pair: Pair) -> None:
    site = pair.site
    with site.running() as service:
        service.until(site.is_read)
        site.sql("UPDATE item SET amount = 2 WHERE id = 1")
        service.until(lambda: site.is_exact("item"))
    site.sql("UPDATE item SET amount = 3 WHERE id = 1", "FLUSH BINARY LOGS", "DELETE FROM item WHERE id = 2")
    replica_site = pair.promote()
    replica_site.sql("INSERT INTO item VALUES (100, 9)")
    with replica_site.running() as service:
        service.until(lambda: replica_site.is_exact("item"))
        replica_site.sql("UPDATE item SET amount = 10 WHERE id = 100")
        service.until(lambda: replica_site.is_exact("item"))
    assert replica_site.ops("item")[50:] == [
        ("update", "1"), ("update", "1"), ("delete", "2"), ("create", "100"), ("update", "100"),
    ]  # fmt: skip
    positions = [message["value"]["provenance"]["source"]["position"] for message in replica_site.messages("item")]
    assert positions == sorted(set(positions))
    assert [position[:8] for position in positions[49:]] == ["00000001"] * 2 + ["00000002"] * 4
    with replica_site.running() as service:
        replica_site.sql("UPDATE item SET amount = 11 WHERE id = 100")
        service.until(lambda: replica_site.is_exact("item"))
    assert replica_site.checkpoint.epoch == 2


def test_a_replica_that_lacks_published_transactions_is_refused(pair: Pair) -> None:
    site = pair.site
    replica_site = pair.promote()
    site.configure(ITEM)
    with site.running() as service:
        service.until(site.is_read)
        site.sql("UPDATE item SET amount = 2 WHERE id = 1")
        service.until(lambda: site.is_exact("item"))
    replica_site.configure(ITEM)
    refusal = replica_site.refused("run")
    assert "the server's log lacks transactions that are published" in refusal
    assert "this is not the server from which the changelog was made" in refusal
    with replica_site.running(accept_cluster=True) as service:
        service.until(lambda: service.said("streaming"))
        replica_site.sql("UPDATE item SET amount = 3 WHERE id = 2")
        service.until(lambda: replica_site.ops("item")[-1] == ("update", "2"))
    assert replica_site.checkpoint.epoch == 2


def test_a_prepared_transaction_is_committed_on_the_promoted_replica(pair: Pair) -> None:
    if pair.primary.flavour == "mysql" and version_of(pair.primary) < (8, 4):
        pytest.skip("replicas of MySQL 8.0.15 lose prepared transactions")
    site = pair.site
    with site.running() as service:
        service.until(site.is_read)
        site.sql("XA START 'x'", "UPDATE item SET amount = 7 WHERE id = 5", "XA END 'x'", "XA PREPARE 'x'")
        site.sql("UPDATE item SET amount = 8 WHERE id = 6")
        service.until(lambda: ("update", "6") in site.ops("item"))
    replica_site = pair.promote()
    with replica_site.running() as service:
        replica_site.sql("XA COMMIT 'x'")
        service.until(lambda: replica_site.is_exact("item"))
    assert replica_site.ops("item")[50:] == [("update", "6"), ("update", "5")]


def test_a_server_whose_log_began_again_is_refused(pair: Pair) -> None:
    site = pair.site
    with site.running() as service:
        service.until(site.is_read)
    reset_log(pair.primary)
    site.sql("INSERT INTO item VALUES (200, 1)")
    with pytest.raises(Exception, match="lacks transactions that are published") as caught, site.running() as service:
        service.until(lambda: False)
    assert getattr(caught.value, "kind", None) is Kind.DIVERGED
