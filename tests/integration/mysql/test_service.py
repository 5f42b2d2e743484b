"""Tests what a service on a real MySQL or MariaDB reads, publishes and refuses.

A *signal* is an operator's request to read rows again. A *stamp* says who made a change. A *gap* is a span of the log
whose changes are lost.
"""

import json
import os
from pathlib import Path

import pytest

from changelog.connectors import config, gaps
from changelog.connectors.failpoints import nowhere
from changelog.connectors.servers.mysql import MysqlServer
from changelog.connectors.sources.mysql.snapshot import orphans
from changelog.envelope.errors import Kind
from tests.integration.mysql.site import MysqlSite
from tests.patience import until
from tests.servers.mysql import EVERY_VERSION, FLAVOURS, fresh_mysql_database, on_versions

WAITING = "table reads wait for prepared XA transactions"

ITEM = """
[entities.item]
table = "{database}.item"
"""


@pytest.fixture
def site(mysql_server: MysqlServer, mysql_database: str, tmp_path: Path) -> MysqlSite:
    """A table of 50 rows, and the configuration of a service that reads the table in chunks of 20 rows."""
    site = MysqlSite(mysql_server, mysql_database, tmp_path)
    values = ", ".join(f"({number}, 'item {number}', {number})" for number in range(1, 51))
    site.sql(
        "CREATE TABLE item (id INT PRIMARY KEY, name VARCHAR(40), amount BIGINT)",
        f"INSERT INTO item VALUES {values}",
    )
    site.configure(ITEM.format(database=mysql_database))
    return site


@EVERY_VERSION
def test_a_table_is_read_and_its_changes_follow(site: MysqlSite) -> None:
    with site.running() as service:
        service.until(site.is_read)
        assert site.is_exact("item")
        assert {op for op, _ in site.ops("item")} == {"read"}
        site.sql(
            "BEGIN",
            "UPDATE item SET name = 'first' WHERE id <= 2",
            "DELETE FROM item WHERE id = 3",
            "INSERT INTO item VALUES (100, NULL, 1)",
            "COMMIT",
            "UPDATE item SET id = 200 WHERE id = 4",
        )
        service.until(lambda: site.is_exact("item"))
    assert site.ops("item")[50:] == [
        ("update", "1"), ("update", "2"), ("delete", "3"), ("create", "100"), ("delete", "4"), ("create", "200"),
    ]  # fmt: skip
    message = site.messages("item")[50]["value"]
    assert message["original"] == {"id": 1, "name": "item 1", "amount": 1}
    assert message["current"] == {"id": 1, "name": "first", "amount": 1}
    source = message["provenance"]["source"]
    assert (source["connector"], source["database"]) == (site.server.flavour, site.database)
    transactions = {item["value"]["provenance"]["source"]["transaction"] for item in site.messages("item")[50:54]}
    assert len(transactions) == 1


@EVERY_VERSION
def test_a_service_continues_where_it_stopped(site: MysqlSite) -> None:
    with site.running() as service:
        service.until(site.is_read)
        site.sql("UPDATE item SET amount = 7")
        service.until(lambda: site.is_exact("item"))
    count = len(site.messages("item"))
    site.sql("DELETE FROM item WHERE id > 40", "FLUSH BINARY LOGS", "INSERT INTO item VALUES (99, 'new', 1)")
    with site.running() as service:
        service.until(lambda: site.is_exact("item"))
    ops = site.ops("item")[count:]
    assert ops == [*(("delete", str(number)) for number in range(41, 51)), ("create", "99")]
    positions = [message["value"]["provenance"]["source"]["position"] for message in site.messages("item")]
    assert positions == sorted(set(positions))


def test_a_checkpoint_does_not_grow_with_each_start(site: MysqlSite) -> None:
    for amount in range(3):
        with site.running() as service:
            service.until(site.is_read)
            site.sql(f"UPDATE item SET amount = {amount} WHERE id = 1")
            service.until(lambda: site.is_exact("item"))
        assert site.checkpoint.source["declared"] == {"item": {"name": ""}}


def test_a_restarted_service_knows_types_that_the_catalogue_no_longer_has(mariadb: MysqlServer, tmp_path: Path) -> None:
    """MariaDB logs a UUID like a BINARY(16). When the service publishes row 4, which was logged when the column was a
    UUID, the catalogue already says BINARY(16).
    """
    code = "123e4567-e89b-12d3-a456-426655440000"
    with fresh_mysql_database(mariadb) as database:
        site = MysqlSite(mariadb, database, tmp_path)
        site.sql("CREATE TABLE item (id INT PRIMARY KEY, code UUID)", f"INSERT INTO item VALUES (1, '{code}')")
        site.configure(f'schemas = {{ on_incompatible = "publish" }}\n{ITEM.format(database=database)}')
        for number in (2, 3):
            with site.running() as service:
                service.until(site.is_read)
                site.sql(f"INSERT INTO item VALUES ({number}, '{code}')")
                service.until(lambda: site.is_exact("item"))
        site.sql(f"INSERT INTO item VALUES (4, '{code}')", "ALTER TABLE item MODIFY code BINARY(16)")
        with site.running() as service:
            service.until(lambda: ("create", "4") in site.ops("item"))
        created = [
            message["value"]["current"]
            for message in site.messages("item")
            if message["value"]["provenance"]["source"]["op"] == "create"
        ]
    assert created == [{"id": number, "code": code} for number in (2, 3, 4)]


def test_rolled_back_changes_and_other_tables_are_not_published(site: MysqlSite) -> None:
    with site.running() as service:
        service.until(site.is_read)
        site.sql(
            "CREATE TABLE other (id INT PRIMARY KEY)",
            "INSERT INTO other VALUES (1)",
            "BEGIN", "DELETE FROM item", "ROLLBACK",
            "BEGIN", "UPDATE item SET amount = 0 WHERE id = 1", "SAVEPOINT s", "DELETE FROM item WHERE id = 2",
            "ROLLBACK TO s", "COMMIT",
        )  # fmt: skip
        service.until(lambda: site.is_exact("item"))
    assert site.ops("item")[50:] == [("update", "1")]


@EVERY_VERSION
def test_xa_transactions_are_published_when_they_are_committed(site: MysqlSite) -> None:
    with site.running() as service:
        service.until(site.is_read)
        for name, id_ in (("kept", 101), ("undone", 102), ("later", 103)):
            site.sql(f"XA START '{name}'", f"INSERT INTO item VALUES ({id_}, '{name}', 1)", f"XA END '{name}'",
                     f"XA PREPARE '{name}'")  # fmt: skip
        site.sql("UPDATE item SET amount = 5 WHERE id = 1")
        service.until(lambda: ("update", "1") in site.ops("item"))
        assert site.ops("item")[50:] == [("update", "1")]
        site.sql("XA COMMIT 'kept'", "XA ROLLBACK 'undone'")
        service.until(lambda: ("create", "101") in site.ops("item"))
    with site.running() as service:
        site.sql("UPDATE item SET amount = 6 WHERE id = 1", "XA COMMIT 'later'")
        service.until(lambda: site.is_exact("item"))
    with site.running() as service:
        site.sql(
            "XA START 'one'", "INSERT INTO item VALUES (104, 'one', 1)", "XA END 'one'", "XA COMMIT 'one' ONE PHASE"
        )
        service.until(lambda: site.is_exact("item"))
    assert site.ops("item")[50:] == [
        ("update", "1"), ("create", "101"), ("update", "1"), ("create", "103"), ("create", "104"),
    ]  # fmt: skip


@on_versions(*FLAVOURS)
def test_table_reads_wait_for_a_transaction_that_was_prepared_before_the_changelog_began(
    site: MysqlSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first warning comes at once, instead of after ten seconds."""
    monkeypatch.setattr(orphans, "LOG_AGAIN_S", (0.0, 0.0))
    site.sql("XA START 'early'", "DELETE FROM item WHERE id = 1", "XA END 'early'", "XA PREPARE 'early'")
    with site.running() as service:
        try:
            service.until(lambda: WAITING in {event["event"] for event in service.events()})
            assert not site.messages("item")
        finally:
            site.sql("XA ROLLBACK 'early'")
        service.until(site.is_read)
    assert site.is_exact("item")


@EVERY_VERSION
def test_a_truncate_is_published_or_stops_the_service(site: MysqlSite) -> None:
    site.configure(ITEM.format(database=site.database) + 'on_truncate = "publish"\n')
    with site.running() as service:
        service.until(site.is_read)
        site.sql("TRUNCATE item", "INSERT INTO item VALUES (1, 'again', 1)")
        service.until(lambda: ("create", "1") in site.ops("item"))
    assert [op for op, _ in site.ops("item")[50:]] == ["truncate", "create"]
    site.configure(ITEM.format(database=site.database))
    with site.running(accept=True) as service:
        site.sql("TRUNCATE item")
        error = service.ended()
    assert error.kind is Kind.STOP
    assert "item was truncated" in error.message
    assert error.position is not None
    assert site.call("accept", str(error.position), "--as", "default")[0] == 0
    with site.running() as service:
        service.until(lambda: [op for op, _ in site.ops("item")].count("truncate") == 2)


def test_a_table_is_read_again_after_a_column_with_a_default_is_added(site: MysqlSite) -> None:
    with site.running() as service:
        service.until(site.is_read)
        site.sql("ALTER TABLE item ADD COLUMN grade INT NOT NULL DEFAULT 3", "UPDATE item SET grade = 4 WHERE id = 1")
        service.until(lambda: site.is_exact("item"))
        site.sql("ALTER TABLE item ADD COLUMN note TEXT", "UPDATE item SET note = 'x' WHERE id = 2")
        service.until(lambda: ("update", "2") in site.ops("item"))
    assert site.state("item")["2"]["note"] == "x"
    assert "note" not in site.state("item")["3"]


@EVERY_VERSION
def test_a_table_that_takes_the_name_of_another_table_is_read(site: MysqlSite) -> None:
    """Tools that alter large tables fill a copy of the table, and then swap the names of the table and its copy."""
    with site.running() as service:
        service.until(site.is_read)
        site.sql(
            "CREATE TABLE item_new LIKE item",
            "INSERT INTO item_new SELECT id, CONCAT(name, '!'), amount FROM item WHERE id > 10",
            "RENAME TABLE item TO item_old, item_new TO item",
            "INSERT INTO item VALUES (500, 'after', 1)",
        )
        service.until(lambda: site.is_exact("item"))


@EVERY_VERSION
def test_a_table_from_create_table_if_not_exists_is_read_again(site: MysqlSite) -> None:
    with site.running() as service:
        service.until(site.is_read)
    site.sql(
        "CREATE TABLE item_new LIKE item",
        "DROP TABLE item",
        "CREATE TABLE IF NOT EXISTS item LIKE item_new",
        "CREATE TABLE IF NOT EXISTS item LIKE item_new",
        "INSERT INTO item VALUES (500, 'after', 1)",
    )
    with site.running() as service:
        service.until(lambda: site.is_exact("item"))
        assert [event["event"] for event in service.events()].count("rows are not in the log") == 1


@EVERY_VERSION
def test_signals_repair_the_changelog(site: MysqlSite) -> None:
    site.sql("CREATE TABLE changelog_signal (id BIGINT PRIMARY KEY, content MEDIUMTEXT NOT NULL)")
    with site.running() as service:
        service.until(site.is_read)
        count = len(site.ops("item"))
        assert site.call("republish", "item", "--keys", "7", "51", "--wait")[0] == 0
        assert site.ops("item")[count:] == [("read", "7")]
        assert site.call("rebuild", "item", "--wait")[0] == 0
        assert len(site.ops("item")) == count + 51


def test_stamps_name_who_made_a_change(site: MysqlSite) -> None:
    site.sql("CREATE TABLE changelog_stamp (id BIGINT AUTO_INCREMENT PRIMARY KEY, content MEDIUMTEXT NOT NULL)")
    with site.running() as service:
        service.until(site.is_read)
        site.sql(
            "BEGIN",
            "UPDATE item SET amount = 0 WHERE id = 1",
            """INSERT INTO changelog_stamp (content) VALUES
            ('{"serviceName":"till","apiVersion":"v2","identifier":"7"}')""",
            "DELETE FROM changelog_stamp",
            "UPDATE item SET amount = 0 WHERE id = 2",
            "COMMIT",
        )
        service.until(lambda: site.is_exact("item"))
    services = [message["value"]["provenance"]["serviceName"] for message in site.messages("item")[50:]]
    assert services == ["unknown", "till"]


def test_a_second_service_is_refused(site: MysqlSite) -> None:
    with site.running() as service:
        service.until(site.is_read)
        other = MysqlSite(site.server, site.database, site.folder)
        other.config = site.folder / "other.toml"
        other.configure(ITEM.format(database=site.database), path="other")
        refusal = other.refused("run")
    assert "reads the binary log for changelog" in refusal
    assert "KILL" in refusal


def test_a_row_without_all_columns_stops_the_service_and_can_be_skipped(site: MysqlSite) -> None:
    with site.running() as service:
        service.until(site.is_read)
        site.sql("SET SESSION binlog_row_image = MINIMAL", "UPDATE item SET amount = 0 WHERE id = 1")
        error = service.ended()
    assert (error.kind, error.choices) == (Kind.STOP, ("skip",))
    assert f"a row of the table {site.database}.item lacks the columns name, amount" in error.message
    assert error.position is not None
    assert site.call("accept", str(error.position), "--as", "skip")[0] == 0
    site.sql("UPDATE item SET amount = 0 WHERE id = 2")
    with site.running() as service:
        service.until(lambda: ("update", "2") in site.ops("item"))
    assert ("update", "1") not in site.ops("item")


def test_a_statement_that_is_not_logged_as_rows_stops_the_service(site: MysqlSite) -> None:
    with site.running() as service:
        service.until(site.is_read)
        site.sql("SET SESSION binlog_format = STATEMENT", "UPDATE item SET amount = 0 WHERE id = 1")
        error = service.ended()
    assert error.kind is Kind.STOP
    assert f"changed {site.database}.item, but not the changed rows" in error.message


def purge(site: MysqlSite) -> None:
    """Makes the server remove all files of its binary log except the last one.

    This may take several attempts: the server keeps a file that a session reads, and it may notice only later that the
    service has stopped.
    """
    last = site.sql("SHOW BINARY LOGS")[-1][0]
    until(lambda: site.sql(f"PURGE BINARY LOGS TO '{last}'", "SHOW BINARY LOGS")[0][0] == last, "the log is not purged")


def is_lost(site: MysqlSite, capsys: pytest.CaptureFixture[str]) -> bool:
    capsys.readouterr()
    site.call("status", "--json")
    slot_lost: bool = json.loads(capsys.readouterr().out.splitlines()[-1])["slot_lost"]
    return slot_lost


def test_a_purged_log_is_a_gap_that_can_be_crossed(
    tmp_path: Path, mysql_server: MysqlServer, mysql_database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    site = MysqlSite(mysql_server, mysql_database, tmp_path)
    site.sql("CREATE TABLE item (id INT PRIMARY KEY, amount INT)", "INSERT INTO item VALUES (1, 1), (2, 2)")
    site.configure(ITEM.format(database=mysql_database))
    with site.running() as service:
        service.until(site.is_read)
    site.sql("FLUSH BINARY LOGS")
    purge(site)
    assert not is_lost(site, capsys), "a loss is reported, but all purged transactions are published"
    site.sql("DELETE FROM item WHERE id = 1", "FLUSH BINARY LOGS", "INSERT INTO item VALUES (3, 3)")
    purge(site)
    assert is_lost(site, capsys)
    refusal = site.refused("run")
    assert "the server has purged transactions that are not published yet" in refusal
    assert "--over-gap" in refusal
    assert site.call("check")[0] == 1
    assert site.call("run", "--over-gap")[0] == 1
    settings = config.load(site.config, os.environ)
    gap = gaps.find(settings, accept_settings=False, reach=nowhere)
    assert gap is not None
    gaps.cross(settings, gap, accept_settings=False, reach=nowhere)
    with site.running() as service:
        service.until(lambda: site.is_exact("item"))
    assert ("delete", "1") in site.ops("item")
    assert len(site.messages("gaps")) == 1
