"""Tests how a file of SQL is split into statements, and which of these statements cannot be rehearsed.

To rehearse a statement means to run it, and then to roll it back.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from changelog.connectors.sources.migrations import Statement
from changelog.connectors.sources.postgres.migration.script import RefusedStatement, refusal, statements

PIECES = [
    "SELECT 1",
    "ALTER TABLE a ADD b text DEFAULT 'x;''y'",
    'SELECT E\'a\\\';b\', "x;""y"',
    "DO $$ BEGIN PERFORM 1; END $$",
    "DO $a$ SELECT $$;$$; $a$",
    "SELECT a$b, $1 FROM t /* ; /* ; */ ' */",
    "CREATE RULE r AS ON INSERT TO t DO (SELECT 1; SELECT 2)",
    "CREATE FUNCTION f() RETURNS int LANGUAGE sql BEGIN ATOMIC SELECT CASE WHEN true THEN 1 END; SELECT 2; END",
    "CREATE OR REPLACE PROCEDURE p(x int)\nBEGIN ATOMIC\n SELECT 1;\nEND",
    'CREATE TABLE case_end (a int, "end" int)',
]


def texts(script: str) -> list[str]:
    return [statement.text for statement in statements(script) if isinstance(statement, Statement)]


def refusals(script: str, *, lasting: bool = True) -> list[tuple[int, str]]:
    statements_ = [
        statement if isinstance(statement, RefusedStatement) else refusal(statement, lasting=lasting)
        for statement in statements(script)
    ]
    return [(statement.line, statement.what) for statement in statements_ if statement is not None]


@settings(deadline=None)
@given(
    pieces=st.lists(
        st.tuples(st.sampled_from(["", "\n", "-- it's; a $$ comment\n", " /* ' ; */\n\n"]), st.sampled_from(PIECES))
    ),
    last=st.sampled_from([";", "", ";;\n", "; -- the end; "]),
)
def test_a_script_is_split_into_statements_with_their_texts_and_lines(pieces: list[tuple[str, str]], last: str) -> None:
    script, lines = "", []
    for before, piece in pieces:
        script += before
        lines.append(script.count("\n") + 1)
        script += piece + ";"
    script = script.removesuffix(";") + last
    divided = list(statements(script))
    assert texts(script) == [piece for _, piece in pieces]
    assert [statement.line for statement in divided] == lines


@settings(deadline=None)
@given(st.text(alphabet="'\"$;ae\\E/*-\n() BEGINATOMICcase;", max_size=60))
def test_a_single_statement_is_not_split_further(script: str) -> None:
    for text in texts(script):
        assert texts(text) == [text]
        assert texts(f"SELECT 1;{text}") == ["SELECT 1", text]


def test_the_line_of_a_character_in_a_statement_is_found() -> None:
    [statement] = statements("\n\nALTER TABLE t\n  ADD a int,\n  ADD b txt;")
    assert isinstance(statement, Statement)
    assert [statement.line_at(position) for position in (1, 14, 15, 32)] == [3, 3, 4, 5]


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("begin", "BEGIN"),
        ("START  TRANSACTION ISOLATION LEVEL SERIALIZABLE", "START TRANSACTION"),
        ("COMMIT AND CHAIN", "COMMIT"),
        ("end", "END"),
        ("ROLLBACK", "ROLLBACK"),
        ("Rollback Prepared 'x'", "ROLLBACK"),
        ("ABORT", "ABORT"),
        ("PREPARE TRANSACTION 'x'", "PREPARE TRANSACTION"),
        ("VACUUM (FULL) t", "VACUUM"),
        ("CREATE DATABASE x", "CREATE DATABASE"),
        ("DROP TABLESPACE x", "DROP TABLESPACE"),
        ("ALTER SYSTEM SET a = 1", "ALTER SYSTEM"),
        ("CREATE UNIQUE INDEX /* */ CONCURRENTLY i ON t (a)", "CREATE UNIQUE INDEX CONCURRENTLY"),
        ("DROP INDEX CONCURRENTLY i", "DROP INDEX CONCURRENTLY"),
        ("REINDEX TABLE CONCURRENTLY t", "REINDEX"),
        ("ALTER TABLE t DETACH PARTITION p CONCURRENTLY", "ALTER TABLE"),
        ("COPY t FROM STDIN", "COPY"),
        ("COPY t TO PROGRAM 'x'", "PROGRAM"),
        ("SELECT setval('s', 1)", "setval"),
        ("DO $$ BEGIN PERFORM pg_catalog.setval ('s', 1); END $$", "setval"),
        ("SELECT * FROM dblink_exec('x')", "dblink_exec"),
    ],
)
def test_a_statement_that_cannot_be_rehearsed_is_reported_with_its_line(statement: str, what: str) -> None:
    assert refusals(f"SELECT 1;\n{statement};") == [(2, what)]


@pytest.mark.parametrize(
    "statement",
    [
        "ROLLBACK TO SAVEPOINT a",
        "ROLLBACK WORK TO a",
        "SAVEPOINT a",
        "PREPARE p AS SELECT 1",
        "CREATE INDEX concurrently_made ON t (a)",
        "COPY t FROM '/tmp/x'",
        "SELECT 'setval(' AS \"COMMIT\"",
        "CREATE FUNCTION f() RETURNS int LANGUAGE sql AS $$ SELECT setval('s', 1) $$",
        "ALTER TYPE e ADD VALUE 'x'",
    ],
)
def test_other_statements_can_be_rehearsed(statement: str) -> None:
    assert refusals(f"{statement};") == []


def test_a_temporary_server_refuses_only_statements_that_act_outside_the_server() -> None:
    assert refusals("SELECT setval('s', 1)", lasting=False) == []
    assert refusals("SELECT dblink_exec('host=elsewhere', 'DROP TABLE t')", lasting=False) == [(1, "dblink_exec")]
    assert refusals("COPY t TO PROGRAM 'rm'", lasting=False) == [(1, "PROGRAM")]


def test_commands_of_psql_end_the_script() -> None:
    assert refusals("SELECT 1;\n\\i other.sql\n'") == [(2, "\\i")]
    assert refusals("COPY t (a) FROM stdin;\n1\t'\n\\.\nSELECT 1;") == [(1, "COPY")]
    assert refusals("SELECT 1 \\gset") == [(1, "\\gset")]
