"""Tests how `changelog schemas plan` reports bad scripts, files and options, and that it never changes the database.

The command rehearses a script: it runs the script in a transaction, and rolls the transaction back.
"""

import re

import psycopg
import pytest

from changelog.connectors.sources.postgres import planning
from changelog.connectors.sources.postgres.admin.catalog import read_tables
from changelog.connectors.sources.postgres.session.connection import Connection, connect
from changelog.connectors.sources.postgres.snapshot.table_reads import bind_table
from changelog.envelope.errors import ChangelogError, Kind
from tests.integration.schemas_plan.planner import CONFIG, Planner
from tests.integration.site import Site
from tests.unit.postgres.messages import entity

BAD = {
    "1: syntax": ("ALTER TABEL orders;", 3, '1: syntax error at or near "TABEL"'),
    "2: in the second line": ("ALTER TABLE orders\n  ADD x txt;", 3, '2: type "txt" does not exist'),
    "3: unknown table": ("SELECT 1;\n\nALTER TABLE bookings ADD x int", 3, '3: relation "bookings" does not exist'),
    "4: depends on the statement before": (
        "ALTER TABLE orders DROP note;\nALTER TABLE orders DROP note",
        3,
        '2: column "note" of relation "orders" does not exist',
    ),
    "5: a value refused": ("SELECT 'opensesame'::int", 3, "1: error 22P02, InvalidTextRepresentation"),
    "6: a row refused": (
        "INSERT INTO orders (id, guest_id) VALUES (1, 1)",
        3,
        "1: error 23505, UniqueViolation of constraint orders_pkey of table orders",
    ),
    "7: a null": (
        "\nALTER TABLE orders ADD x int;\n\nALTER TABLE orders ALTER x SET NOT NULL",
        3,
        "4: error 23502, NotNullViolation of column x of table orders",
    ),
    "8: commit": (
        "ALTER TABLE orders ADD x int;\ncommit;",
        2,
        "2: COMMIT would end the transaction of the rehearsal; leave the statement out",
    ),
    "9: commit inside": (
        "DO $$ BEGIN COMMIT; END $$",
        2,
        "1: invalid transaction termination; leave out whatever ends the transaction of the rehearsal",
    ),
    "10: concurrently": (
        "\nCREATE INDEX CONCURRENTLY ON orders (note)",
        2,
        "2: CREATE INDEX CONCURRENTLY cannot run in a transaction, so it cannot be rehearsed; leave the statement out",
    ),
    "11: only the server refuses it": (
        "SELECT 1;\nCREATE SUBSCRIPTION s CONNECTION 'dbname=x' PUBLICATION p",
        2,
        (
            "2: CREATE SUBSCRIPTION ... WITH (create_slot = true) cannot run inside a transaction block; "
            "leave the statement out"
        ),
    ),
    "12: psql": ("\\i other.sql\n", 2, r"1: \i works only in psql; write plain SQL"),
    "13: psql's data": ("COPY orders FROM stdin;\n1\n\\.\n", 2, "1: COPY works only in psql; write plain SQL"),
    "14: a rollback does not undo it": (
        "SELECT setval('guest_id_seq', 9)",
        2,
        "1: setval has effects that a rollback does not undo; use --embedded, or leave it out",
    ),
    "15: NUL": ("SELECT 1;\n\0COMMIT", 2, "2: contains a NUL character"),
}


@pytest.mark.parametrize("case", BAD)
def test_the_error_of_a_bad_script_names_the_line_of_the_script(planner: Planner, case: str) -> None:
    script, code, message = BAD[case]
    assert planner.refused(script, code=code) == message


def test_a_connection_that_is_lost_in_the_middle_of_a_script_is_reported(planner: Planner) -> None:
    terminate = "DO $$ BEGIN EXECUTE 'SELECT pg_terminate' || '_backend(pg_backend_pid())'; END $$"
    error = planner.refused(f"SELECT 1;\n{terminate}")
    assert re.match("2: (the connection to PostgreSQL broke|terminating connection)", error)


def test_all_statements_that_cannot_be_rehearsed_are_reported_together(site: Site, planner: Planner) -> None:
    planner.file.write_text("BEGIN;\nSELECT 1;\nCOMMIT;", "utf-8")
    code, lines = site.call("schemas", "plan", str(planner.file))
    assert (code, [line.split(":")[-1].split()[0] for line in lines]) == (2, ["BEGIN", "COMMIT"])


def test_files_that_cannot_be_read_are_reported(site: Site, planner: Planner) -> None:
    missing = site.folder / "missing.sql"
    assert planner.last_line(2, str(missing)) == f"{missing}: cannot be read (No such file or directory)"
    assert planner.last_line(2, str(site.folder)) == f"{site.folder}: cannot be read (Is a directory)"
    missing.write_bytes(b"SELECT '\xff'")
    assert planner.last_line(2, str(missing)) == f"{missing}: is not UTF-8 at byte 8"


def test_a_script_without_a_statement_does_nothing(planner: Planner) -> None:
    assert planner.run("-- nothing\n")[0] == 0
    assert planner.plan("/* nothing */ ;; ")["statements"] == 0


def test_bad_options_are_refused(planner: Planner) -> None:
    planner.file.write_text("SELECT 1")
    for option in ("--lock-timeout", "--statement-timeout"):
        for value in ("0", "-1", "nan", "x", "1e9"):
            line = planner.last_line(2, str(planner.file), option, value)
            assert f"argument {option}: {value}: must be a number of seconds, from 0.001 to 3600" in line
    assert "--format" in planner.last_line(2, str(planner.file), "--format", "xml")


def test_an_unreachable_database_is_reported(site: Site, planner: Planner) -> None:
    site.configure(CONFIG, dsn="host=127.0.0.1 port=1")
    assert planner.refused("SELECT 1").startswith("cannot connect to PostgreSQL")


def test_a_configuration_that_does_not_fit_the_database_is_refused(site: Site, planner: Planner) -> None:
    site.configure('[entities.gone]\ntable = "public.gone"\n')
    assert "the database has no table public.gone" in planner.refused("SELECT 1", code=2)


def test_a_role_that_may_not_alter_the_table_can_plan_only_on_a_copy(site: Site, planner: Planner) -> None:
    role = f"reader_{site.name}"
    site.sql(f"CREATE ROLE {role} LOGIN", f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")
    try:
        site.configure(CONFIG, dsn=psycopg.conninfo.make_conninfo(site.dsn, user=role))
        error = planner.refused("ALTER TABLE orders DROP note")
        assert error.startswith("1: must be owner of table orders; connect as the role that runs your migrations")
        assert planner.entity("ALTER TABLE orders DROP note", "--embedded")["alterations"]
    finally:
        site.sql(f"DROP OWNED BY {role}", f"DROP ROLE {role}")


@pytest.mark.parametrize(
    "statement", ["ALTER TABLE orders DROP note", "SET lock_timeout = 0; ALTER TABLE orders DROP note"]
)
def test_the_wait_for_a_lock_has_a_timeout(site: Site, planner: Planner, statement: str) -> None:
    with psycopg.connect(site.dsn) as other:
        other.execute("SELECT count(*) FROM orders")
        error = planner.refused(statement, "--lock-timeout", "0.05")
        assert error == (
            "1: canceling statement due to lock timeout; try again, raise --lock-timeout, or use --embedded"
        )
        other.execute("UPDATE orders SET nights = 4")
        assert planner.entity("ALTER TABLE orders DROP note", "--embedded")["alterations"]


@pytest.mark.parametrize("step", ["read_tables", "bind_table", "findings", "read_states", "shared", "rehearse"])
def test_a_session_that_the_server_ends_is_reported(
    site: Site, planner: Planner, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    function = getattr(planning, step)

    def end_and_call(connection: Connection, *values: object, **named: object) -> object:
        site.sql(f"SELECT pg_terminate_backend({connection.info.backend_pid}, 60000)")
        return function(connection, *values, **named)

    monkeypatch.setattr(planning, step, end_and_call)
    assert "terminating connection due to administrator command" in planner.refused("SELECT 1")


def test_describing_a_table_in_a_session_that_has_ended_is_a_lost_connection(site: Site) -> None:
    with connect(site.dsn) as connection:
        [table] = read_tables(connection, named=("public", "orders"))
    with pytest.raises(ChangelogError, match="the connection is closed") as raised:
        bind_table(connection, entity("orders", "orders"), table, b"")
    assert raised.value.kind is Kind.CONNECTION


@pytest.mark.parametrize("before", ["", "SET statement_timeout = 0;", "RESET ALL; "])
def test_a_statement_has_a_timeout(planner: Planner, before: str) -> None:
    error = planner.refused(f"{before}\nSELECT pg_sleep(60)", "--statement-timeout", "0.2")
    expected = "canceling statement due to statement timeout; raise --statement-timeout"
    assert error.partition(": ")[2].startswith(expected)


CATALOGUE = """
SELECT md5(string_agg(t::text, E'\\n' ORDER BY t::text)) FROM (
    SELECT to_jsonb(c) - '{relfrozenxid,relminmxid,relpages,reltuples,relallvisible,relallfrozen}'::text[] AS t
    FROM pg_class AS c
    UNION ALL SELECT to_jsonb(a) - 'attmissingval' FROM pg_attribute AS a
    UNION ALL SELECT to_jsonb(d) FROM pg_attrdef AS d
    UNION ALL SELECT to_jsonb(i) FROM pg_index AS i
    UNION ALL SELECT to_jsonb(k) FROM pg_constraint AS k
    UNION ALL SELECT to_jsonb(t) FROM pg_type AS t
    UNION ALL SELECT to_jsonb(p) FROM pg_publication AS p
    UNION ALL SELECT to_jsonb(r) FROM pg_publication_rel AS r
    UNION ALL SELECT to_jsonb(f) FROM pg_proc AS f
    UNION ALL SELECT to_jsonb(s) FROM pg_sequences AS s
    UNION ALL SELECT to_jsonb(x) FROM pg_prepared_xacts AS x
    UNION ALL SELECT to_jsonb(o) FROM orders AS o
) AS all_of_it
"""
EVERYTHING = """
SAVEPOINT a;
ALTER TABLE orders DROP note, ADD extra int DEFAULT 5, ALTER nights TYPE bigint;
ROLLBACK TO SAVEPOINT a;
ALTER TABLE orders DROP note, ADD extra int DEFAULT 5, ALTER nights TYPE bigint;
UPDATE orders SET nights = 9;
SELECT pg_logical_emit_message(true, 'provenance', '{}');
TRUNCATE log;
DROP TABLE guest CASCADE;
CREATE TABLE made (id int PRIMARY KEY);
INSERT INTO made VALUES (1);
CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1';
ALTER PUBLICATION PUBLICATION_NAME ADD TABLE made;
SET search_path = pg_catalog;
SET ROLE pg_read_all_data;
RESET ROLE;
"""


@pytest.mark.parametrize("last_statement", ["", "SELECT 1 / 0;", "COMIT;"])
def test_a_rehearsal_leaves_nothing_in_the_database(site: Site, planner: Planner, last_statement: str) -> None:
    site.sql(f"SELECT pg_create_logical_replication_slot('{site.name}', 'pgoutput')")
    before = site.sql(CATALOGUE)
    if last_statement:
        planner.refused(EVERYTHING.replace("PUBLICATION_NAME", site.name) + last_statement)
    else:
        assert planner.plan(EVERYTHING)["verdict"] == "stops"
    assert site.sql(CATALOGUE) == before
    messages = site.sql(
        f"SELECT data FROM pg_logical_slot_peek_binary_changes('{site.name}', NULL, NULL, 'proto_version', '2',"
        f" 'publication_names', '{site.name}', 'messages', 'true')"
    )
    assert messages == []
