"""A service continues on a replica that was promoted, and refuses a server whose history is another one."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pymysql
import pytest

from changelog.connectors.servers.mysql import Flavour, Server
from changelog.envelope.errors import Kind
from tests.integration.mysql.site import MysqlSite
from tests.patience import PATIENCE_S
from tests.servers.mysql import FLAVOURS, mysql_server

DATABASE = "shop"

ITEM = """
[entities.item]
table = "shop.item"
"""

FOLLOW = {
    "mariadb": "CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {port}, MASTER_USER = 'copy', "
    "MASTER_PASSWORD = 'copy', MASTER_USE_GTID = slave_pos, MASTER_SSL = 0",
    "mysql": "CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {port}, MASTER_USER = 'copy', "
    "MASTER_PASSWORD = 'copy', MASTER_AUTO_POSITION = 1",
}
NATIVE = {"mariadb": "", "mysql": "WITH mysql_native_password "}


@dataclass(frozen=True, slots=True)
class Pair:
    """A primary and its replica. `site` has the primary's database."""

    primary: Server
    replica: Server
    site: MysqlSite

    def promote(self) -> MysqlSite:
        """Waits until the replica has everything, and makes it the primary. Returns the same site on it."""
        [(count,)] = self.site.sql("SELECT COUNT(*) FROM item")
        [(total,)] = self.site.sql("SELECT SUM(amount) FROM item")
        deadline = time.monotonic() + PATIENCE_S
        while self._replicated() != (count, total):
            assert time.monotonic() < deadline, one(self.replica, "SHOW SLAVE STATUS")
            time.sleep(0.05)
        run(self.replica, "STOP SLAVE")
        promoted = MysqlSite(self.replica, DATABASE, self.site.folder)
        promoted.configure(ITEM)
        return promoted

    def _replicated(self) -> object:
        try:
            return one(self.replica, "SELECT COUNT(*), SUM(amount) FROM shop.item")
        except pymysql.err.ProgrammingError:  # the table is not there yet
            return None


def run(server: Server, *statements: str) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def one(server: Server, query: str) -> object:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(query)
        return cursor.fetchone()


@pytest.fixture(params=FLAVOURS)
def pair(request: pytest.FixtureRequest, starts_servers: None, tmp_path: Path) -> Iterator[Pair]:
    flavour: Flavour = request.param
    with ExitStack() as stack:
        primary, replica = (stack.enter_context(mysql_server(flavour, {"server_id": number})) for number in ("1", "2"))
        run(
            primary,
            f"CREATE USER copy@'127.0.0.1' IDENTIFIED {NATIVE[flavour]}BY 'copy'",
            f"CREATE USER copy@localhost IDENTIFIED {NATIVE[flavour]}BY 'copy'",
            "GRANT REPLICATION SLAVE ON *.* TO copy@'127.0.0.1', copy@localhost",
            f"CREATE DATABASE {DATABASE}",
        )
        run(replica, FOLLOW[flavour].format(port=primary.port), "START SLAVE")
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
    promoted = pair.promote()
    promoted.sql("INSERT INTO item VALUES (100, 9)")
    with promoted.running() as service:
        service.until(lambda: promoted.is_exact("item"))
        promoted.sql("UPDATE item SET amount = 10 WHERE id = 100")
        service.until(lambda: promoted.is_exact("item"))
    assert promoted.ops("item")[50:] == [
        ("update", "1"), ("update", "1"), ("delete", "2"), ("create", "100"), ("update", "100"),
    ]  # fmt: skip
    positions = [message["value"]["provenance"]["source"]["position"] for message in promoted.messages("item")]
    assert positions == sorted(set(positions))
    assert [position[:8] for position in positions[49:]] == ["00000001"] * 2 + ["00000002"] * 4
    with promoted.running() as service:
        promoted.sql("UPDATE item SET amount = 11 WHERE id = 100")
        service.until(lambda: promoted.is_exact("item"))
    assert promoted.checkpoint.epoch == 2


def test_a_replica_that_lacks_published_transactions_is_refused(pair: Pair) -> None:
    site = pair.site
    behind = pair.promote()
    site.configure(ITEM)
    with site.running() as service:
        service.until(site.is_read)
        site.sql("UPDATE item SET amount = 2 WHERE id = 1")
        service.until(lambda: site.is_exact("item"))
    behind.configure(ITEM)
    refusal = behind.refused("run")
    assert "the server's log lacks transactions that are published" in refusal
    assert "and it is another server than before" in refusal
    with behind.running(accept_cluster=True) as service:
        service.until(lambda: service.said("streaming"))
        behind.sql("UPDATE item SET amount = 3 WHERE id = 2")
        service.until(lambda: behind.ops("item")[-1] == ("update", "2"))
    assert behind.checkpoint.epoch == 2


def test_a_prepared_transaction_is_committed_on_the_promoted_replica(pair: Pair) -> None:
    if pair.primary.flavour == "mysql":
        pytest.skip("replicas of MySQL 8.0.15 lose prepared transactions")
    site = pair.site
    with site.running() as service:
        service.until(site.is_read)
        site.sql("XA START 'x'", "UPDATE item SET amount = 7 WHERE id = 5", "XA END 'x'", "XA PREPARE 'x'")
        site.sql("UPDATE item SET amount = 8 WHERE id = 6")
        service.until(lambda: ("update", "6") in site.ops("item"))
    promoted = pair.promote()
    with promoted.running() as service:
        promoted.sql("XA COMMIT 'x'")
        service.until(lambda: promoted.is_exact("item"))
    assert promoted.ops("item")[50:] == [("update", "6"), ("update", "5")]


def test_a_server_whose_log_began_again_is_refused(pair: Pair) -> None:
    site = pair.site
    with site.running() as service:
        service.until(site.is_read)
    site.sql("RESET MASTER", "INSERT INTO item VALUES (200, 1)")
    with pytest.raises(Exception, match="lacks transactions that are published") as caught, site.running() as service:
        service.until(lambda: False)
    assert getattr(caught.value, "kind", None) is Kind.DIVERGED
