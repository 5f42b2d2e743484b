"""Tests mistakes that make a service on MySQL or MariaDB stop or refuse to run.

For each mistake, the service prints one line that says what to do.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from changelog.connectors.servers.certificates import write_certificates
from changelog.connectors.servers.mysql import MysqlServer
from changelog.envelope.errors import Kind
from tests.integration.mysql.site import MysqlSite
from tests.servers.mysql import EVERY_VERSION, FLAVOURS, fresh_mysql_database
from tests.servers.mysql import mysql_server as own_mysql_server
from tests.servers.replication import reset_log

ENTITY = '[entities.item]\ntable = "item"\n'


@pytest.fixture
def site(mysql_server: MysqlServer, mysql_database: str, tmp_path: Path) -> MysqlSite:
    site = MysqlSite(mysql_server, mysql_database, tmp_path)
    site.sql("CREATE TABLE item (id INT PRIMARY KEY, amount INT)", "INSERT INTO item VALUES (1, 1), (2, 2)")
    site.configure(ENTITY)
    return site


@contextmanager
def account(site: MysqlSite, *, rights: str = "ALL ON *.*", requires: str = "") -> Iterator[str]:
    """Yields the name of an account that has these rights. Its password is `secret`."""
    name = f"u_{site.database[5:]}"
    requirement = f" REQUIRE {requires}" if requires else ""
    site.sql(f"CREATE USER {name} IDENTIFIED BY 'secret'{requirement}", f"GRANT {rights} TO {name}")
    try:
        yield name
    finally:
        site.sql(f"DROP USER {name}")


def test_a_wrong_password_is_refused(site: MysqlSite) -> None:
    with account(site) as user:
        site.configure(ENTITY, dsn=site.url(user, "wrong"))
        refusal = site.refused()
    assert f"Access denied for user '{user}'@" in refusal
    assert "check user and password in [source] dsn" in refusal
    assert "wrong" not in refusal


def test_an_unknown_database_is_refused(site: MysqlSite) -> None:
    site.configure(ENTITY, dsn=site.dsn + "x")
    assert "check the database in [source] dsn" in site.refused()


def test_a_server_that_cannot_be_reached_is_reported(site: MysqlSite) -> None:
    site.configure(ENTITY, dsn="mysql://root@127.0.0.1:1/shop")
    assert "is the server running and reachable?" in site.refused("check")


def test_an_account_that_needs_tls_is_refused_without_tls(site: MysqlSite) -> None:
    with account(site, requires="SSL") as user:
        site.configure(ENTITY, dsn=site.url(user, "secret") + "?ssl-mode=DISABLED")
        refusal = site.refused()
        assert "ssl-mode" in refusal
        site.configure(ENTITY, dsn=site.url(user, "secret"))
        with site.running() as service:
            service.until(site.is_read)


def test_the_servers_certificate_is_verified(site: MysqlSite) -> None:
    other = site.folder / "other"
    other.mkdir()
    write_certificates(other)
    for mode in ("VERIFY_CA", "VERIFY_IDENTITY"):
        with account(site) as user:
            dsn = f"{site.url(user, 'secret')}?ssl-mode={mode}&ssl-ca="
            site.configure(ENTITY, dsn=f"{dsn}{other / 'ca.pem'}")
            refusal = site.refused("check")
            assert "no encrypted connection to the server" in refusal
            assert "check ssl-mode and ssl-ca in [source] dsn" in refusal
            site.configure(ENTITY, dsn=f"{dsn}{site.folder / 'absent.pem'}")
            assert "check ssl-ca, ssl-cert and ssl-key" in site.refused("check", code=2)
            site.configure(ENTITY, dsn=f"{dsn}{site.server.ca}")
            assert site.call("check")[0] == 0


@EVERY_VERSION
@pytest.mark.parametrize("missing", ["REPLICATION SLAVE", "log"])
def test_the_error_of_a_missing_right_has_the_statement_that_grants_it(site: MysqlSite, missing: str) -> None:
    log = "BINLOG MONITOR" if site.server.flavour == "mariadb" else "REPLICATION CLIENT"
    missing, present = (log, "REPLICATION SLAVE") if missing == "log" else (missing, log)
    with account(site, rights=f"SELECT, {present} ON *.*") as user:
        site.configure(ENTITY, dsn=site.url(user, "secret"))
        refusal = site.refused()
        assert f"lacks {missing}" in refusal
        statement = refusal.partition("GRANT")[1] + refusal.partition("GRANT")[2].removesuffix(")")
        site.sql(statement)
        with site.running() as service:
            service.until(site.is_read)


def test_a_table_that_the_account_may_not_read_is_refused(site: MysqlSite) -> None:
    log = "BINLOG MONITOR" if site.server.flavour == "mariadb" else "REPLICATION CLIENT"
    with account(site, rights=f"REPLICATION SLAVE, {log} ON *.*") as user:
        site.sql("CREATE TABLE other (id INT PRIMARY KEY)", f"GRANT SELECT ON {site.database}.other TO {user}")
        site.configure(ENTITY, dsn=site.url(user, "secret"))
        refusal = site.refused(code=2)
    assert "SELECT" in refusal


@EVERY_VERSION
@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("binlog_format", "STATEMENT", "binlog_format = ROW"),
        ("binlog_row_image", "MINIMAL", "binlog_row_image = FULL"),
        ("binlog_row_metadata", "MINIMAL", "binlog_row_metadata = FULL"),
    ],
)
def test_a_setting_that_does_not_fit_is_refused(site: MysqlSite, name: str, value: str, remedy: str) -> None:
    with site.setting(name, value):
        refusal = site.refused()
    assert f"{name} is {value}" in refusal
    assert f"SET {'GLOBAL' if site.server.flavour == 'mariadb' else 'PERSIST'} {remedy}" in refusal


def test_a_server_without_gtids_is_refused(tmp_path: Path, starts_servers: None) -> None:
    settings = {"gtid_mode": "OFF", "enforce_gtid_consistency": "OFF"}
    with own_mysql_server("mysql", settings) as server, fresh_mysql_database(server) as database:
        site = MysqlSite(server, database, tmp_path)
        site.sql("CREATE TABLE item (id INT PRIMARY KEY)")
        site.configure(ENTITY)
        refusal = site.refused()
        assert "gtid_mode is OFF" in refusal
        assert "SET PERSIST gtid_mode = ON" in refusal


@pytest.mark.parametrize(
    ("sql", "problem", "remedy"),
    [
        ("ALTER TABLE item ENGINE = MyISAM", "is stored in MyISAM", "ENGINE = InnoDB"),
        (
            "ALTER TABLE item ADD FOREIGN KEY (amount) REFERENCES parent (id) ON DELETE CASCADE",
            "does not log what the foreign key",
            "replace CASCADE and SET NULL by RESTRICT",
        ),
        ("ALTER TABLE item DROP PRIMARY KEY", "has no primary key", "add key"),
        ("DROP TABLE item", "has no table", "create it"),
    ],
)
def test_a_table_that_cannot_be_published_is_refused(site: MysqlSite, sql: str, problem: str, remedy: str) -> None:
    site.sql("CREATE TABLE parent (id INT PRIMARY KEY)", "INSERT INTO parent VALUES (1), (2)", sql)
    refusal = site.refused(code=3 if "stored" in problem or "log" in problem else 2)
    assert problem in refusal
    assert remedy in refusal


@pytest.mark.parametrize("version", [*FLAVOURS, "mysql-9"])
def test_a_log_that_was_reset_is_refused(version: str, tmp_path: Path, starts_servers: None) -> None:
    with own_mysql_server(version) as server, fresh_mysql_database(server) as database:
        site = MysqlSite(server, database, tmp_path)
        site.sql("CREATE TABLE item (id INT PRIMARY KEY)", "INSERT INTO item VALUES (1)")
        site.configure(ENTITY)
        with site.running() as service:
            service.until(site.is_read)
        reset_log(server)
        refusal = site.refused()
        assert "the server's log lacks transactions that are published" in refusal
        assert "--over-gap" in refusal
        assert site.call("check")[0] == 1


def skip_the_stop(site: MysqlSite, *statements: str, problem: str) -> None:
    """Executes statements that stop the service. Then tells the service to skip their changes, and waits until it has
    continued.
    """
    with site.running() as service:
        service.until(site.is_read)
        site.sql(*statements)
        error = service.ended()
    assert (error.kind, error.choices) == (Kind.STOP, ("skip",))
    assert problem in error.message
    assert error.position is not None
    assert f"`changelog accept {error.position} --as skip`" in str(error)
    assert site.call("accept", str(error.position), "--as", "skip")[0] == 0
    with site.running() as service:
        site.sql("INSERT INTO item VALUES (3, 3)")
        service.until(lambda: ("create", "3") in site.ops("item"))


def test_a_statement_that_is_not_logged_as_rows_can_be_skipped(site: MysqlSite) -> None:
    statements = "SET SESSION binlog_format = STATEMENT", "UPDATE item SET amount = RAND() WHERE id = 1"
    skip_the_stop(site, *statements, problem="the log has")


def test_a_rollback_in_the_log_can_be_skipped(mariadb: MysqlServer, tmp_path: Path) -> None:
    """If a transaction writes to a MyISAM table, MariaDB logs all changes of the transaction, even rolled-back ones."""
    with fresh_mysql_database(mariadb) as database:
        site = MysqlSite(mariadb, database, tmp_path)
        site.sql("CREATE TABLE item (id INT PRIMARY KEY, amount INT)", "INSERT INTO item VALUES (1, 1)")
        site.sql("CREATE TABLE plain (id INT) ENGINE = MyISAM")
        site.configure(ENTITY)
        statements = (
            "BEGIN", "SAVEPOINT a", "UPDATE item SET amount = 9", "INSERT INTO plain VALUES (1)", "ROLLBACK TO a",
            "COMMIT",
        )  # fmt: skip
        skip_the_stop(site, *statements, problem="was rolled back")


def test_a_log_without_the_names_of_columns_can_be_skipped(site: MysqlSite) -> None:
    statements = (
        "SET GLOBAL binlog_row_metadata = MINIMAL",
        "UPDATE item SET amount = 9 WHERE id = 1",
        "SET GLOBAL binlog_row_metadata = FULL",
    )
    try:
        skip_the_stop(site, *statements, problem="the binary log has no names of the columns")
    finally:
        site.sql("SET GLOBAL binlog_row_metadata = FULL")
    assert ("update", "1") not in site.ops("item")
