"""Tests that the function `effects` tells what a statement does to tables and transactions. The statements are in the
form in which real servers log them.
"""

from collections.abc import Iterator, Sequence

from changelog.connectors.servers.mysql import MysqlServer
from changelog.connectors.sources.mysql.decode.events.event_reader import EventReader
from changelog.connectors.sources.mysql.decode.events.events import Query, XaId
from changelog.connectors.sources.mysql.decode.statements.effects import (
    Altered,
    Created,
    DatabaseDropped,
    Dml,
    Dropped,
    Effect,
    PartitionExchanged,
    PartitionTruncated,
    Renamed,
    TableName,
    TablespaceReplaced,
    Transactional,
    Truncated,
    Verb,
)
from changelog.connectors.sources.mysql.decode.statements.statements import effects
from changelog.connectors.sources.mysql.values.text.charsets import to_utf8
from tests.servers.binlog import Cursor, logged
from tests.servers.mysql import fresh_mysql_database

AGAIN = "the server logs the previous statement once more when the statement ends"
PARTITIONS = "PARTITION BY RANGE (a) (PARTITION p VALUES LESS THAN (9), PARTITION q VALUES LESS THAN (19))"


def queries(packets: Sequence[bytes]) -> Iterator[list[Effect]]:
    """Yields the effects of each logged statement."""
    reader = EventReader()
    for packet in packets:
        for event in reader.read(packet):
            if isinstance(event, Query):
                yield list(
                    effects(
                        to_utf8(event.client_collation, {})(event.sql),
                        event.database,
                        ansi_quotes=event.ansi_quotes,
                        no_backslash_escapes=event.no_backslash_escapes,
                        lower_case_table_names=0,
                    )
                )


def compare(server: MysqlServer, database: str, cases: Sequence[tuple[str | bytes, list[Effect]]]) -> None:
    """Executes the statements of `cases`. Checks that the statements in the log have the effects that `cases` expects.

    Logged statements without effects are ignored, and so is the BEGIN that the server logs before changes of rows.
    """

    def run(cursor: Cursor) -> None:
        for statement, _ in cases:
            if statement != AGAIN:
                cursor.execute(statement)

    packets = logged(server, database, run)
    ignored_effects: tuple[list[Effect], ...] = ([], [Transactional(verb=Verb.BEGIN)])
    effects_of_log = [query_effects for query_effects in queries(packets) if query_effects not in ignored_effects]
    assert effects_of_log == [expected for _, expected in cases if expected]


def test_effects_tell_what_statements_do_to_tables(mysql_server: MysqlServer, mysql_database: str) -> None:
    t, u, v, copy = (TableName(mysql_database, name) for name in ("t", "größe", "v w", "copy"))
    needless_create: list[Effect] = [Created(table=copy, if_missing=True)] if mysql_server.flavour == "mysql" else []
    with fresh_mysql_database(mysql_server) as other:
        moved = TableName(other, "t")
        cases: list[tuple[str | bytes, list[Effect]]] = [
            (f"/* it's */ CREATE TABLE t (a INT COMMENT '\\', RENAME x', b INT) {PARTITIONS}", [Created(table=t)]),
            (
                "CREATE TABLE IF NOT EXISTS `größe` (a INT COMMENT '\\', RENAME x' /*!50100 , b INT */) -- the end",
                [Created(table=u, if_missing=True)],
            ),
            ("CREATE TEMPORARY TABLE hidden (a INT)", []),
            ("DROP TEMPORARY TABLE hidden", []),
            ("INSERT INTO t VALUES (1, 2)", []),
            (
                "ALTER TABLE t EXCHANGE PARTITION p WITH TABLE `größe`",
                [Altered(table=t), PartitionExchanged(table=t, other=u)],
            ),
            ("ALTER TABLE t TRUNCATE PARTITION p", [Altered(table=t), PartitionTruncated(table=t)]),
            ("ALTER TABLE t /* , */ DROP PARTITION q", [Altered(table=t), PartitionTruncated(table=t)]),
            ("alter table t remove partitioning", [Altered(table=t)]),
            ("CREATE INDEX ```` ON `größe` (a)", [Altered(table=u)]),
            ("SET SESSION sql_mode = CONCAT(@@sql_mode, ',ANSI_QUOTES,NO_BACKSLASH_ESCAPES')", []),
            (
                'ALTER TABLE "größe" RENAME INDEX ```` TO "j""", RENAME TO "v w"',
                [Altered(table=u), Renamed(table=u, new=v)],
            ),
            ("ALTER TABLE t COMMENT '\\', ENGINE = InnoDB -- '", [Altered(table=t)]),
            ("SET SESSION sql_mode = DEFAULT", []),
            ("CREATE UNIQUE INDEX k USING BTREE ON t (a)", [Altered(table=t)]),
            ("DROP INDEX k ON t", [Altered(table=t)]),
            ("ALTER TABLE t ADD tablespace INT", [Altered(table=t)]),
            ("ALTER TABLE t DROP tablespace", [Altered(table=t)]),
            (f"RENAME TABLE t TO {other}.t, `v w` TO t", [Renamed(table=t, new=moved), Renamed(table=v, new=t)]),
            (f"TRUNCATE {other}.t", [Truncated(table=moved)]),
            ("ALTER TABLE t DISCARD TABLESPACE", [Altered(table=t), TablespaceReplaced(table=t)]),
            (f"DROP TABLE IF EXISTS t, {other}.t", [Dropped(table=t), Dropped(table=moved)]),
            ("CREATE TABLE copy (a INT)", [Created(table=copy)]),
            ("CREATE TABLE IF NOT EXISTS copy (b INT)", needless_create),
            ("CREATE VIEW seen AS SELECT a FROM copy", []),
            ("CREATE PROCEDURE p() DROP TABLE copy", []),
            ("CREATE TRIGGER tr BEFORE INSERT ON copy FOR EACH ROW SET NEW.a = 2", []),
            ("GRANT SELECT ON copy TO CURRENT_USER", []),
            ("FLUSH TABLES copy", []),
            ("OPTIMIZE TABLE copy", []),
            ("DROP VIEW seen", []),
            ("CALL p()", [Dropped(table=copy)]),
            (f"DROP DATABASE {other}", [DatabaseDropped(schema=other)]),
            (f"CREATE DATABASE {other}", []),
        ]
        compare(mysql_server, mysql_database, cases)


def test_effects_read_statements_in_other_character_sets(mysql_server: MysqlServer, mysql_database: str) -> None:
    t, u = (TableName(mysql_database, name) for name in ("größe", "表"))
    cases: list[tuple[str | bytes, list[Effect]]] = [
        ("SET NAMES latin1", []),
        ("CREATE TABLE größe (a INT)".encode("latin-1"), [Created(table=t)]),
        ("SET NAMES sjis", []),
        ("CREATE TABLE 表 (a INT COMMENT '表')".encode("shift-jis"), [Created(table=u)]),
        ("ALTER TABLE 表 COMMENT '表', ENGINE = InnoDB, COMMENT ', RENAME t'".encode("shift-jis"), [Altered(table=u)]),
        ("DROP TABLE `表`".encode("shift-jis"), [Dropped(table=u)]),
    ]
    compare(mysql_server, mysql_database, cases)


def test_effects_read_statements_that_only_mariadb_has(mariadb: MysqlServer) -> None:
    with fresh_mysql_database(mariadb) as database:
        t, u = (TableName(database, name) for name in ("t", "u"))
        cases: list[tuple[str | bytes, list[Effect]]] = [
            ("CREATE OR REPLACE TABLE t (a INT)", [Dropped(table=t), Created(table=t)]),
            ("SET STATEMENT max_statement_time = 9 FOR ALTER TABLE t ADD b INT", [Altered(table=t)]),
            ("ALTER ONLINE TABLE IF EXISTS t WAIT 5 DROP COLUMN b", [Altered(table=t)]),
            (f"ALTER TABLE t /*M!100100 {PARTITIONS} */", [Altered(table=t)]),
            ("ALTER TABLE t CONVERT PARTITION p TO TABLE u", [Altered(table=t), PartitionExchanged(table=t, other=u)]),
            ("CREATE OR REPLACE INDEX i ON t (a)", [Altered(table=t)]),
            ("RENAME TABLE IF EXISTS t NOWAIT TO copy", [Renamed(table=t, new=TableName(database, "copy"))]),
            ("DROP TABLES IF EXISTS u WAIT 5", [Dropped(table=u)]),
            ("CREATE TABLE u SELECT 1 AS a", [Created(table=u)]),
            ("CREATE SEQUENCE s", []),
            ("DROP SEQUENCE s", []),
            ("SET SESSION binlog_alter_two_phase = ON", []),
            ("ALTER TABLE copy ADD b INT", [Altered(table=TableName(database, "copy"))]),
            (AGAIN, [Altered(table=TableName(database, "copy"))]),
        ]
        compare(mariadb, database, cases)


def test_effects_name_the_tables_of_statements_that_are_not_logged_as_rows(
    mysql_server: MysqlServer, mysql_database: str
) -> None:
    t, u = (TableName(mysql_database, name) for name in ("t", "u"))

    def run(cursor: Cursor) -> None:
        for statement in (
            "CREATE TABLE t (a INT)",
            "CREATE TABLE u (a INT)",
            "CREATE FUNCTION f() RETURNS INT DETERMINISTIC BEGIN DELETE FROM t; RETURN 1; END",
            "SET SESSION binlog_format = 'STATEMENT'",
            "INSERT INTO t VALUES (1), (2)",
            "REPLACE u SELECT * FROM t",
            "UPDATE t JOIN u ON t.a = u.a SET t.a = 7 WHERE u.a = 1",
            "DELETE t FROM t, u AS x WHERE t.a = x.a",
            "WITH x AS (SELECT a FROM u) DELETE FROM t WHERE a IN (SELECT a FROM x)" if is_mysql else "DELETE FROM t",
            "SELECT f()",
        ):
            cursor.execute(statement)

    is_mysql = mysql_server.flavour == "mysql"
    effects_of_log = [effect for part in queries(logged(mysql_server, mysql_database, run)) for effect in part]
    changed_tables = [effect.tables for effect in effects_of_log if isinstance(effect, Dml)]
    assert changed_tables[:2] == [frozenset({t}), frozenset({u})]
    assert [t in (tables or ()) for tables in changed_tables[2:5]] == [True] * 3
    assert changed_tables[5:] == [None]


def test_effects_tell_the_steps_of_transactions(mysql_server: MysqlServer, mysql_database: str) -> None:
    xa_id = XaId(format_id=7, gtrid=f"it's {mysql_database}".encode(), bqual=b"\xff")

    is_mysql = mysql_server.flavour == "mysql"  # MySQL refuses a transaction that changes tables of two engines

    def run(cursor: Cursor) -> None:
        cursor.execute(f"CREATE TABLE t (a INT) ENGINE = {'InnoDB' if is_mysql else 'MyISAM'}")
        cursor.execute("CREATE TABLE i (a INT) ENGINE = InnoDB")
        for statement in (
            "BEGIN",
            "INSERT INTO i VALUES (1)",
            "SAVEPOINT `a b`",
            "INSERT INTO i VALUES (2)",
            "INSERT INTO t VALUES (3)",
            "ROLLBACK TO `a b`",
            "COMMIT",
        ):
            cursor.execute(statement)
        text = f"X'{xa_id.gtrid.hex()}', X'{xa_id.bqual.hex()}', 7"
        for statement in ("START", "INSERT", "END", "PREPARE", "COMMIT"):
            cursor.execute("INSERT INTO i VALUES (4)" if statement == "INSERT" else f"XA {statement} {text}")

    steps = [effect for part in queries(logged(mysql_server, mysql_database, run)) for effect in part]
    transactional = [effect for effect in steps if isinstance(effect, Transactional)]
    assert len(transactional) + 2 == len(steps)  # two tables were created
    points = {Verb.SAVEPOINT: "a b"} if is_mysql else {Verb.SAVEPOINT: "a b", Verb.ROLLBACK_TO: "a b"}
    assert {effect.verb: effect.savepoint for effect in transactional if effect.savepoint} == points
    start = {Verb.XA_START} if is_mysql else set()  # in MariaDB's log, the id is in the GTID event
    assert {effect.verb for effect in transactional if effect.xa_id == xa_id} == {*start, Verb.XA_END, Verb.XA_COMMIT}
