"""Tests how the service finds out what a statement in the log does to tables and transactions."""

import re
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog.connectors.sources.mysql.decode.events.events import XaId
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
    Unsure,
    Verb,
)
from changelog.connectors.sources.mysql.decode.statements.statement_reader import TOKENS_MAX
from changelog.connectors.sources.mysql.decode.statements.statements import effects


def of(
    sql: str | bytes, *, ansi_quotes: bool = False, no_backslash_escapes: bool = False, lower_case: int = 0
) -> list[Effect]:
    """Returns the effects of a statement that was executed in the database `d`."""
    return list(
        effects(
            sql if isinstance(sql, bytes) else sql.encode(),
            "d",
            ansi_quotes=ansi_quotes,
            no_backslash_escapes=no_backslash_escapes,
            lower_case_table_names=lower_case,
        )
    )


def named(text: str) -> TableName:
    schema, _, table = text.rpartition(".")
    return TableName(schema or "d", table)


T, U, V = named("t"), named("u"), named("v")
OTHER = named("e.t")
ALTERED = Altered(table=T)
XA_ID = XaId(format_id=7, gtrid=b"ab", bqual=b"c")
BEGIN = Transactional(verb=Verb.BEGIN)
ANY = Dml(tables=None)


def dml(*tables: TableName) -> Dml:
    return Dml(tables=frozenset(tables))


STATEMENTS: dict[str, list[Effect]] = {
    "TRUNCATE t": [Truncated(table=T)],
    "TRUNCATE TABLE e . t WAIT 5": [Truncated(table=OTHER)],
    "TRUNCATE TABLE `table`": [Truncated(table=named("table"))],
    "CREATE TABLE t ( a INT )": [Created(table=T)],
    "CREATE TABLE IF NOT EXISTS t LIKE u": [Created(table=T, if_missing=True)],
    "CREATE OR REPLACE TABLE t ( a INT )": [Dropped(table=T), Created(table=T)],
    "CREATE TABLE t ( a INT ) START TRANSACTION": [Created(table=T)],
    "CREATE TEMPORARY TABLE t ( a INT )": [],
    "CREATE OR REPLACE TEMPORARY TABLE t ( a INT )": [],
    "DROP TABLE t": [Dropped(table=T)],
    "DROP TABLE IF EXISTS `t` , e.t , `a.b` RESTRICT": [
        Dropped(table=name) for name in (T, OTHER, TableName("d", "a.b"))
    ],
    "DROP TABLES t , u": [Dropped(table=T), Dropped(table=U)],
    "DROP TEMPORARY TABLE IF EXISTS t": [],
    "DROP DATABASE IF EXISTS `e`": [DatabaseDropped(schema="e")],
    "DROP SCHEMA d": [DatabaseDropped(schema="d")],
    "RENAME TABLE t TO u": [Renamed(table=T, new=U)],
    "RENAME TABLES IF EXISTS t WAIT 3 TO v , u TO e.t , v NOWAIT TO u": [
        Renamed(table=T, new=V),
        Renamed(table=U, new=OTHER),
        Renamed(table=V, new=U),
    ],
    "RENAME USER t TO u": [],
    "ALTER TABLE t ADD COLUMN `rename` INT": [ALTERED],
    "ALTER ONLINE IGNORE TABLE IF EXISTS t NOWAIT DROP COLUMN a , ENGINE = InnoDB": [ALTERED],
    "ALTER TABLE t RENAME TO u": [ALTERED, Renamed(table=T, new=U)],
    "ALTER TABLE t RENAME = e.t , ADD a INT": [ALTERED, Renamed(table=T, new=OTHER)],
    "ALTER TABLE t RENAME u": [ALTERED, Renamed(table=T, new=U)],
    "ALTER TABLE t RENAME AS `index` , RENAME COLUMN a TO b , RENAME INDEX i TO j , RENAME KEY k TO l": [
        ALTERED,
        Renamed(table=T, new=named("index")),
    ],
    "ALTER TABLE t CONVERT TO CHARACTER SET utf8mb4": [ALTERED],
    "ALTER TABLE t TRUNCATE PARTITION p0 , p1": [ALTERED, PartitionTruncated(table=T)],
    "ALTER TABLE t ALGORITHM = INPLACE , DROP PARTITION IF EXISTS p0": [ALTERED, PartitionTruncated(table=T)],
    "ALTER TABLE t EXCHANGE PARTITION p WITH TABLE u WITHOUT VALIDATION": [
        ALTERED,
        PartitionExchanged(table=T, other=U),
    ],
    "ALTER TABLE t CONVERT PARTITION p TO TABLE e.t": [ALTERED, PartitionExchanged(table=T, other=OTHER)],
    "ALTER TABLE t CONVERT TABLE u TO PARTITION p VALUES LESS THAN ( 5 )": [
        ALTERED,
        PartitionExchanged(table=T, other=U),
    ],
    "ALTER TABLE t DISCARD TABLESPACE": [ALTERED, TablespaceReplaced(table=T)],
    "ALTER TABLE t DROP tablespace": [ALTERED],
    "ALTER TABLE t DROP discard , DROP tablespace , DROP PARTITION p": [ALTERED, PartitionTruncated(table=T)],
    "ALTER TABLE t IMPORT PARTITION p TABLESPACE": [ALTERED, TablespaceReplaced(table=T)],
    "ALTER TABLE t EXCHANGE PARTITION p": [Unsure(table=None)],
    "ALTER DATABASE d CHARACTER SET latin1": [],
    "ALTER DEFINER = `TABLE` @ `INDEX` SQL SECURITY INVOKER VIEW t AS SELECT 1": [],
    "CREATE UNIQUE INDEX `on` USING BTREE ON t ( a )": [ALTERED],
    "CREATE OR REPLACE INDEX i ON t ( a )": [ALTERED],
    "DROP INDEX IF EXISTS i ON e.t": [Altered(table=OTHER)],
    "CREATE SPATIAL REFERENCE SYSTEM 4120 NAME 'x' DEFINITION 'y'": [],
    "CREATE DEFINER = `r` @ `%` TRIGGER t BEFORE INSERT ON u FOR EACH ROW DELETE FROM v": [],
    "CREATE AGGREGATE FUNCTION f RETURNS INT SONAME 's'": [],
    "CREATE USER u": [],
    "CREATE SOMETHING t": [Unsure(table=None)],
    "DROP VIEW t": [],
    "INSERT INTO t VALUES ( 1 )": [dml(T)],
    "INSERT LOW_PRIORITY IGNORE e.t SET a = 1": [dml(OTHER)],
    "REPLACE DELAYED t SELECT * FROM u": [dml(T)],
    "LOAD DATA LOCAL INFILE 'f' REPLACE INTO TABLE t FIELDS TERMINATED BY ','": [dml(T)],
    "LOAD INDEX INTO CACHE t": [],
    "UPDATE t SET a = u": [dml(T)],
    "UPDATE t JOIN e.t x SET t.a = 1": [dml(T, OTHER, named("JOIN"), named("x"))],
    "DELETE FROM t WHERE u = 1": [dml(T, named("FROM"))],
    "DELETE t FROM ( SELECT * FROM u WHERE ')' ) `x` , v WHERE w": [
        dml(T, U, V, *map(named, ("FROM", "SELECT", "WHERE", "x")))
    ],
    "WITH t AS ( SELECT 1 ) DELETE FROM u": [dml(T, U, *map(named, ("AS", "SELECT", "1", "DELETE", "FROM")))],
    "SELECT `d` . `f` ( 1 )": [ANY],
    "DO f ( )": [ANY],
    "ANALYZE TABLE t": [],
    "ANALYZE FORMAT = JSON UPDATE t SET a = 1": [ANY],
    "INSERT INTO": [ANY],
    "SET STATEMENT max_statement_time = 1 , sql_mode = 'x' FOR DROP TABLE t": [Dropped(table=T)],
    "BEGIN": [BEGIN],
    "begin work": [BEGIN],
    "START TRANSACTION READ WRITE": [BEGIN],
    "START SLAVE": [],
    "COMMIT": [Transactional(verb=Verb.COMMIT)],
    "COMMIT WORK": [Transactional(verb=Verb.COMMIT)],
    "ROLLBACK": [Transactional(verb=Verb.ROLLBACK)],
    "ROLLBACK WORK TO SAVEPOINT `a b`": [Transactional(verb=Verb.ROLLBACK_TO, savepoint="a b")],
    "ROLLBACK TO savepoint": [Transactional(verb=Verb.ROLLBACK_TO, savepoint="savepoint")],
    "SAVEPOINT `s`": [Transactional(verb=Verb.SAVEPOINT, savepoint="s")],
    "RELEASE SAVEPOINT s": [Transactional(verb=Verb.RELEASE, savepoint="s")],
    "XA START X'6162',X'63',7": [Transactional(verb=Verb.XA_START, xa_id=XA_ID)],
    "XA BEGIN 'ab' , 'c' , 7": [Transactional(verb=Verb.XA_START, xa_id=XA_ID)],
    "XA END 0x6162,X'63',7": [Transactional(verb=Verb.XA_END, xa_id=XA_ID)],
    "XA PREPARE 'ab'": [Transactional(verb=Verb.XA_PREPARE, xa_id=XaId(format_id=1, gtrid=b"ab", bqual=b""))],
    "XA COMMIT X'6162',X'63',7 ONE PHASE": [Transactional(verb=Verb.XA_COMMIT, xa_id=XA_ID)],
    "XA ROLLBACK X'6162',X'63',7": [Transactional(verb=Verb.XA_ROLLBACK, xa_id=XA_ID)],
    "XA RECOVER": [],
    "XA END X'6'": [Unsure(table=None)],
    "XA END 6": [Unsure(table=None)],
    "XA END 'a' , 'b' , 'c'": [Unsure(table=None)],
    "GRANT ALL ON t TO u": [],
    "FLUSH TABLES t": [],
    "SET PASSWORD = 'x'": [],
    "": [],
    "FROBNICATE t": [Unsure(table=None)],
    "( SELECT 1 )": [Unsure(table=None)],
    "DROP TABLE": [Unsure(table=None)],
    "DROP TABLE 't'": [Unsure(table=None)],
    "RENAME TABLE t": [Unsure(table=None)],
    "CREATE INDEX i": [Unsure(table=None)],
}


@pytest.mark.parametrize("sql", STATEMENTS)
def test_the_effects_of_a_statement_are_found(sql: str) -> None:
    assert of(sql) == STATEMENTS[sql]


SEPARATORS = [" ", "\n", "\t\r\n ", "/**/", "/* DROP TABLE x; ' */", "# it's\n", "-- `\n", "--\n", " /*+ HINT(a) */"]
PIECE = re.compile(r"'[^']*'|`[^`]*`|\w+|\S")


@given(st.sampled_from(sorted(STATEMENTS)), st.randoms(use_true_random=False))
def test_comments_and_white_space_change_nothing(sql: str, random: Random) -> None:
    pieces = PIECE.findall(sql)
    text = random.choice(["", *SEPARATORS])
    for before, after in zip(["", *pieces], pieces, strict=False):
        adjacent = after != " " and (before, after[:1]) == ("X", "'")
        text += ("" if not before or adjacent else random.choice(SEPARATORS)) + after
    text += random.choice(["", *SEPARATORS, "-- end", "# end", "/* end"])
    assert of(text) == STATEMENTS[sql]


OPENINGS = ["/*!", "/*!50100", "/*!080021 ", "/*M!", "/*M!100100 "]


@given(st.sampled_from(sorted(STATEMENTS)), st.sampled_from(OPENINGS), st.data())
def test_executed_comments_are_part_of_the_statement(sql: str, opening: str, data: st.DataObject) -> None:
    pieces = [sql] if "X'" in sql else PIECE.findall(sql)
    start = data.draw(st.integers(0, len(pieces)))
    end = data.draw(st.integers(start, len(pieces)))
    inner = " ".join(pieces[start:end])
    text = " ".join([*pieces[:start], f"{opening} {inner} /* inner */ */", *pieces[end:]])
    assert of(text) == STATEMENTS[sql]


@pytest.mark.parametrize(
    ("sql", "ansi_quotes", "no_backslash_escapes", "expected"),
    [
        (r"""DROP TABLE "t", `u`""", True, False, [Dropped(table=T), Dropped(table=U)]),
        (r"""DROP TABLE "t", `u`""", False, False, [Unsure(table=None)]),
        (r"""DROP TABLE "a""b\", `c``"`""", True, False, [Dropped(table=named(name)) for name in ('a"b\\', 'c`"')]),
        (r"""ALTER TABLE t COMMENT '\', RENAME u -- '""", False, False, [ALTERED]),
        (r"""ALTER TABLE t COMMENT '\', RENAME u -- '""", False, True, [ALTERED, Renamed(table=T, new=U)]),
        (r"""ALTER TABLE t COMMENT "'\"", RENAME u""", False, False, [ALTERED, Renamed(table=T, new=U)]),
        (r"""ALTER TABLE t COMMENT "/*", RENAME u /*'*/""", False, False, [ALTERED, Renamed(table=T, new=U)]),
        (r"""ALTER TABLE t COMMENT 'a'', RENAME u'""", False, False, [ALTERED]),
        (
            r"""UPDATE t JOIN (SELECT */* ' */FROM u) AS v SET a = 1""",
            False,
            False,
            [dml(T, U, V, *map(named, ("JOIN", "SELECT", "FROM", "AS")))],
        ),
    ],
)
def test_quotes_are_read_as_the_settings_of_the_server_say(
    sql: str, ansi_quotes: bool, no_backslash_escapes: bool, expected: Sequence[Effect]
) -> None:
    assert of(sql, ansi_quotes=ansi_quotes, no_backslash_escapes=no_backslash_escapes) == expected


def test_names_are_compared_as_the_server_compares_them() -> None:
    assert of("DROP TABLE T", lower_case=0) == [Dropped(table=named("T"))]
    assert of("DROP TABLE T, `E`.`Größe`", lower_case=1) == [Dropped(table=T), Dropped(table=named("e.größe"))]
    assert of("DROP DATABASE E", lower_case=2) == [DatabaseDropped(schema="e")]


def test_a_name_that_is_not_utf_8_can_be_any_table() -> None:
    assert of("DROP TABLE größe".encode("latin-1")) == [Unsure(table=None)]
    assert of("INSERT INTO größe VALUES (1)".encode("latin-1")) == [ANY]
    assert of("INSERT INTO t VALUES ('größe')".encode("latin-1")) == [dml(T)]


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("INSERT INTO t VALUES ('", [dml(T)]),
        ("UPDATE t SET a = '", [dml(T)]),
        ("DELETE FROM t JOIN '", [ANY]),
        ("DROP TABLE t '", [Unsure(table=None)]),
        ("CREATE TABLE t ('", [Created(table=T)]),
        ("'", [Unsure(table=None)]),
        ("DROP TABLE t /*! ", [Unsure(table=None)]),
        ("INSERT INTO t VALUES (1)" + ", (1)" * TOKENS_MAX, [dml(T)]),
        ("DELETE FROM t" + ", u" * TOKENS_MAX, [ANY]),
        ("DROP TABLE t" + ", u" * TOKENS_MAX, [Unsure(table=None)]),
    ],
    ids=range(10),
)
def test_a_statement_that_cannot_be_read_to_its_end_may_change_any_table(sql: str, expected: Sequence[Effect]) -> None:
    assert of(sql) == expected


FRAGMENTS = [*"`'\"/*#-.,()\\", "*/", "/*!", "t", "DROP", "TABLE", " "]


@given(st.text() | st.lists(st.sampled_from(FRAGMENTS)).map("".join))
def test_no_text_raises_an_error(sql: str) -> None:
    assert isinstance(of(sql), list)
