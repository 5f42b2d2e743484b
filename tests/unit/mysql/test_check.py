"""Tests what `check` finds out about a server and its tables. The tests need no server."""

from dataclasses import replace

import pytest

from changelog.connectors.sources.mysql.admin.catalog import Table, TableColumn, UniqueIndex
from changelog.connectors.sources.mysql.admin.check import server, tables
from changelog.connectors.sources.mysql.admin.check.facts import ServerFacts
from changelog.connectors.sources.mysql.session.flavour import Flavour, ServerVersion
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Stamp

SETTINGS = {
    "binlog_expire_logs_seconds": "2592000",
    "binlog_format": "ROW",
    "binlog_row_image": "FULL",
    "binlog_row_metadata": "FULL",
    "enforce_gtid_consistency": "ON",
    "gtid_mode": "ON",
    "log_bin": "ON",
    "log_replica_updates": "ON",
}
MYSQL = ServerFacts(
    version=ServerVersion.parse("8.0.36"),
    settings=SETTINGS,
    is_replica=False,
    account="run@%",
    privileges=frozenset({"REPLICATION SLAVE", "REPLICATION CLIENT"}),
)
MARIADB = replace(
    MYSQL,
    version=ServerVersion.parse("11.4.5-MariaDB-log"),
    privileges=frozenset({"REPLICATION SLAVE", "BINLOG MONITOR"}),
)


@pytest.mark.parametrize("facts", [MYSQL, MARIADB])
def test_a_server_with_the_right_settings_has_no_problem(facts: ServerFacts) -> None:
    assert {finding.status for finding in server.findings(facts)} == {"ok"}


@pytest.mark.parametrize(
    ("setting", "value", "message", "fix"),
    [
        ("log_bin", "OFF", "the server writes no binary log", ()),
        ("binlog_format", "MIXED", "binlog_format is MIXED, not ROW", ("SET PERSIST binlog_format = ROW",)),
        (
            "binlog_row_image",
            "MINIMAL",
            "binlog_row_image is MINIMAL, not FULL",
            ("SET PERSIST binlog_row_image = FULL",),
        ),
        (
            "binlog_row_metadata",
            "MINIMAL",
            "binlog_row_metadata is MINIMAL, not FULL",
            ("SET PERSIST binlog_row_metadata = FULL",),
        ),
        ("gtid_mode", "OFF", "gtid_mode is OFF: transactions have no GTIDs", ()),
        ("binlog_ignore_db", "OLD", "the binary log leaves out changes of some databases (binlog_ignore_db)", ()),
        ("binlog_storage_engine", "INNODB", "the binary log is stored in InnoDB, which the source cannot read", ()),
    ],
)
def test_a_wrong_setting_is_reported_with_its_remedy(
    setting: str, value: str, message: str, fix: tuple[str, ...]
) -> None:
    facts = replace(MYSQL, settings={**SETTINGS, setting: value})
    [failure] = [finding for finding in server.findings(facts) if finding.status != "ok"]
    assert (failure.status, failure.message, failure.fix) == ("fail", message, fix)
    assert failure.hint


def test_the_hint_for_mariadb_says_that_a_setting_is_lost_at_a_restart() -> None:
    facts = replace(MARIADB, settings={**SETTINGS, "binlog_row_metadata": "NO_LOG"})
    [failure] = [finding for finding in server.findings(facts) if finding.status != "ok"]
    assert failure.fix == ("SET GLOBAL binlog_row_metadata = FULL",)
    assert "configuration file" in str(failure.hint)


def test_full_nodup_is_accepted_on_mariadb() -> None:
    facts = replace(MARIADB, settings={**SETTINGS, "binlog_row_image": "FULL_NODUP"})
    assert {finding.status for finding in server.findings(facts)} == {"ok"}


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        (replace(MYSQL, version=ServerVersion.parse("5.7.44")), "MySQL 5.7.44 is too old"),
        (replace(MARIADB, version=ServerVersion.parse("10.4.1-MariaDB")), "MariaDB 10.4.1 is too old"),
        (replace(MYSQL, privileges=frozenset({"REPLICATION CLIENT"})), "the account run@% lacks REPLICATION SLAVE"),
        (
            replace(MYSQL, is_replica=True, settings={**SETTINGS, "log_replica_updates": "OFF"}),
            "log_replica_updates is OFF: a replica does not log what it replicates",
        ),
    ],
)
def test_other_problems_of_a_server_are_reported(facts: ServerFacts, message: str) -> None:
    assert [finding.message for finding in server.findings(facts) if finding.status == "fail"] == [message]


def test_the_hint_for_a_missing_right_is_the_statement_that_grants_it() -> None:
    facts = replace(MARIADB, account="o'hara@10.0.0.%", privileges=frozenset())
    [failure] = [finding for finding in server.findings(facts) if finding.status == "fail"]
    assert failure.hint == "GRANT REPLICATION SLAVE, BINLOG MONITOR ON *.* TO 'o''hara'@'10.0.0.%'"


def test_an_old_mysql_with_xa_transactions_must_show_prepared_transactions() -> None:
    old = replace(MYSQL, version=ServerVersion.parse("8.0.29"))
    assert {finding.status for finding in server.findings(old)} == {"ok"}
    assert {finding.status for finding in server.findings(replace(MYSQL, xa_commits=1))} == {"ok"}
    [failure] = [finding for finding in server.findings(replace(old, xa_commits=1)) if finding.status == "fail"]
    assert failure.hint == "GRANT XA_RECOVER_ADMIN ON *.* TO 'run'@'%'"


@pytest.mark.parametrize(("seconds", "duration"), [("3600", "1 hour"), ("5400", "1.5 hours"), ("7200", "2 hours")])
def test_a_short_retention_is_a_warning(seconds: str, duration: str) -> None:
    facts = replace(MYSQL, settings={**SETTINGS, "binlog_expire_logs_seconds": seconds})
    [warning] = [finding for finding in server.findings(facts) if finding.status != "ok"]
    assert (warning.status, warning.message) == ("warn", f"the server deletes its binary log after {duration}")


def test_a_version_that_no_server_prints_is_refused() -> None:
    with pytest.raises(ChangelogError) as caught:
        ServerVersion.parse("unknown")
    assert caught.value.kind is Kind.PRECONDITION


ORDER = Entity(
    name="order",
    table=("shop", "orders"),
    key=("id",),
    partition_by=("id",),
    partitions=1,
    masks={},
    default_stamp=Stamp(api_version="", service_name="shop", identifier=""),
)
OLD = "time(3) /* mariadb-5.3 */"
TABLE = Table(
    schema="shop",
    name="orders",
    engine="InnoDB",
    versioned=False,
    columns=(
        TableColumn(name="id", not_null=True, declared="int"),
        TableColumn(name="code", not_null=True, declared=""),
    ),
    unique_indexes=(
        UniqueIndex(name="codes", columns=("code",), prefix=True),
        UniqueIndex(name="PRIMARY", columns=("id",), prefix=False),
    ),
    cascades=(),
    rows_estimate=0,
    nbytes=0,
)


@pytest.mark.parametrize(
    ("table", "version", "message"),
    [
        (
            replace(TABLE, engine="MyISAM"),
            MYSQL.version,
            "the table shop.orders is stored in MyISAM, whose changes cannot be rolled back",
        ),
        (
            replace(TABLE, versioned=True),
            MARIADB.version,
            (
                "the table shop.orders has system versioning: "
                "the log shows old versions of a row as further rows with its key"
            ),
        ),
        (
            replace(TABLE, columns=(*TABLE.columns, TableColumn(name="at", not_null=True, declared=OLD))),
            MARIADB.version,
            "column at of the table shop.orders has an old layout that hides the size of values",
        ),
        (
            replace(TABLE, cascades=("fk_guest",)),
            MYSQL.version,
            "MySQL 8.0.36 does not log what the foreign key fk_guest changes in shop.orders",
        ),
    ],
)
def test_a_table_that_the_log_does_not_cover_is_refused(table: Table, version: ServerVersion, message: str) -> None:
    [failure] = tables.findings(ORDER, table, version)
    assert (failure.status, failure.message) == ("fail", message)


def test_mysql_logs_cascades_from_9_6_on() -> None:
    table = replace(TABLE, cascades=("fk_guest",))
    assert [finding.status for finding in tables.findings(ORDER, table, ServerVersion.parse("9.6.0"))] == ["ok"]
    assert [finding.status for finding in tables.findings(ORDER, table, ServerVersion.parse("9.5.9"))] == ["fail"]


def test_a_key_needs_a_unique_index_that_covers_its_columns() -> None:
    assert TABLE.usable_key() == ("id",)
    assert TABLE.key_problem(("code",)) == (
        "the unique index codes of the table shop.orders covers only prefixes of columns; create another on (code)"
    )
    assert TABLE.key_problem(("id", "code")) == (
        "the table shop.orders has no unique index on (id, code); create one, or choose another key"
    )
    assert TABLE.key_problem(("nothing",)) == "the table shop.orders has no column nothing"
    nullable = replace(TABLE, columns=(TableColumn(name="id", not_null=False, declared="int"),))
    assert nullable.key_problem(("id",)) == "column id of the table shop.orders may be null; make it NOT NULL"
    assert replace(TABLE, unique_indexes=TABLE.unique_indexes[:1]).usable_key() is None


def test_versions_of_servers_derived_from_mysql_and_mariadb_are_parsed() -> None:
    assert ServerVersion.parse("8.0.35-27").flavour is Flavour.MYSQL
    assert str(ServerVersion.parse("10.11.19-MariaDB-0+deb12u1-log")) == "MariaDB 10.11.19"
