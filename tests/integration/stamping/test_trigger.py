"""Tests the trigger that `changelog init --stamps` prints. The trigger stamps changes: it notes who made them. It must
never make a change fail.
"""

import json
from collections.abc import Iterator

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from changelog.connectors.servers.postgres import PostgresServer
from changelog.envelope.stamp import StampKind, kind_of, parse
from tests.integration.stamping.logged import STAMP, StampedDatabase, stamped_database
from tests.servers import VERSIONS, fresh_database, server_name

SET = "SELECT set_config('changelog.provenance', %s, true)"


@pytest.fixture(params=VERSIONS)
def any_version(request: pytest.FixtureRequest, starts_servers: None) -> Iterator[StampedDatabase]:
    server: PostgresServer = request.getfixturevalue(server_name(request.param))
    with fresh_database(server) as dsn, stamped_database(dsn, "stamps_versions") as stamped:
        yield stamped


def test_each_version_stamps_by_the_setting_or_by_the_session(any_version: StampedDatabase) -> None:
    with psycopg.connect(any_version.dsn, application_name="nightly") as connection:
        connection.execute(SET, [STAMP])
        connection.execute("INSERT INTO t VALUES (1), (2)")
        connection.commit()
        connection.execute("UPDATE t SET v = 'x' WHERE id = 1")
        connection.execute("DELETE FROM t WHERE id = 2")
        connection.commit()
        [[user]] = connection.execute("SELECT session_user").fetchall()
    changes = any_version.changes()
    assert [(change.op, change.service) for change in changes] == [
        ("INSERT", "shop"),
        ("INSERT", "shop"),
        ("UPDATE", "nightly"),
        ("DELETE", "nightly"),
    ]
    session = {"serviceName": "nightly", "context": {"session": {"user": user, "application": "nightly"}}}
    assert changes[-1].stamp == session
    written = parse(json.dumps(session).encode())
    assert (written.stamp and kind_of(written.stamp), written.problem) == (StampKind.SESSION, None)


def test_a_session_without_an_application_name_has_the_name_of_its_role(stamped: StampedDatabase) -> None:
    stamped.admin.execute("SET application_name = ''")
    stamped.admin.execute("INSERT INTO t VALUES (1)")
    [[user]] = stamped.admin.execute("SELECT session_user").fetchall()
    assert stamped.services() == [user]


def test_a_transaction_has_one_message_for_each_stamp(stamped: StampedDatabase) -> None:
    with stamped.admin.transaction():
        stamped.admin.execute(SET, [STAMP])
        for key in range(3):
            stamped.admin.execute("INSERT INTO t VALUES (%s)", [key])
        stamped.admin.execute(SET, ['{"serviceName": "second"}'])
        stamped.admin.execute("INSERT INTO t SELECT 3 ON CONFLICT (id) DO UPDATE SET v = 'x'")
    lines = [line.split()[0] for line in stamped.messages_and_changes()]
    assert lines == ["BEGIN", "message:", "table", "table", "table", "message:", "table", "COMMIT"]


def test_the_trigger_does_not_replace_stamps_that_the_application_emits(stamped: StampedDatabase) -> None:
    def emit(service: str) -> None:
        content = json.dumps({"serviceName": service})
        stamped.admin.execute("SELECT pg_logical_emit_message(true, 'provenance', %s)", [content])

    with stamped.admin.transaction():
        emit("direct")
        stamped.admin.execute("INSERT INTO t VALUES (1)")
        stamped.admin.execute("SET LOCAL application_name = 'renamed'")
        stamped.admin.execute("INSERT INTO t VALUES (2)")
    with stamped.admin.transaction():
        stamped.admin.execute("INSERT INTO t VALUES (3)")
        with stamped.admin.transaction(force_rollback=True):
            emit("undone")
            stamped.admin.execute("INSERT INTO t VALUES (4)")
        stamped.admin.execute("INSERT INTO t VALUES (5)")
        emit("direct")
        stamped.admin.execute("INSERT INTO t VALUES (6)")
    assert stamped.services() == ["direct", "direct", "admin", "admin", "direct"]


def test_a_transaction_that_only_reads_writes_nothing(stamped: StampedDatabase) -> None:
    with stamped.admin.transaction():
        stamped.admin.execute(SET, [STAMP])
        stamped.admin.execute("SELECT count(*) FROM t")
        assert stamped.admin.execute("SELECT pg_current_xact_id_if_assigned()").fetchone() == (None,)
    assert stamped.messages_and_changes() == []


def test_a_writing_cte_a_copy_and_a_truncate_are_stamped(stamped: StampedDatabase) -> None:
    with stamped.admin.transaction():
        stamped.admin.execute(SET, [STAMP])
        stamped.admin.execute("WITH x AS (INSERT INTO t VALUES (1) RETURNING id) SELECT * FROM x")
    with stamped.admin.transaction():
        stamped.admin.execute(SET, [STAMP])
        with stamped.admin.cursor().copy("COPY t (id) FROM STDIN") as copy:
            copy.write_row([2])
    with stamped.admin.transaction():
        stamped.admin.execute(SET, [STAMP])
        stamped.admin.execute("TRUNCATE t")
    assert [(change.op, change.service) for change in stamped.changes()] == [
        ("INSERT", "shop"),
        ("INSERT", "shop"),
        ("TRUNCATE", "shop"),
    ]


def test_a_cascade_is_stamped_by_the_trigger_of_the_table_that_it_changes(stamped: StampedDatabase) -> None:
    stamped.admin.execute("CREATE TABLE line (id int PRIMARY KEY, t int REFERENCES t ON DELETE CASCADE)")
    stamped.install("t", "line")
    stamped.admin.execute("INSERT INTO t VALUES (1); INSERT INTO line VALUES (1, 1)")
    stamped.changes()
    with stamped.admin.transaction():
        stamped.admin.execute(SET, [STAMP])
        stamped.admin.execute("DELETE FROM t")
    assert [(change.table, change.service) for change in stamped.changes()] == [
        ("public.t", "shop"),
        ("public.line", "shop"),
    ]


def test_rows_of_partitions_are_stamped_whichever_table_the_statement_names(stamped: StampedDatabase) -> None:
    stamped.admin.execute("CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    stamped.admin.execute("CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (9) PARTITION BY RANGE (id)")
    stamped.admin.execute("CREATE TABLE p11 PARTITION OF p1 FOR VALUES FROM (0) TO (9)")
    stamped.install("p")
    stamped.install("p")  # the script may be run again
    for key, name in enumerate(("p", "p1", "p11")):
        stamped.admin.execute(f"INSERT INTO {name} VALUES ({key})".encode())
    assert stamped.services() == ["admin"] * 3
    stamped.admin.execute("CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (9) TO (99)")
    stamped.admin.execute("INSERT INTO p VALUES (9)")
    stamped.admin.execute("INSERT INTO p2 VALUES (10)")
    assert stamped.services() == ["admin", None]


NAMES = ('a"b', "a.b", "x'; DROP TABLE t; --", "é", "select", "$$", "\\")


def test_names_of_any_form_are_quoted(stamped: StampedDatabase) -> None:
    for name in NAMES:
        stamped.admin.execute(psycopg.sql.SQL("CREATE TABLE {} (id int)").format(psycopg.sql.Identifier(name)))
    stamped.install(*NAMES)
    for name in NAMES:
        stamped.admin.execute(psycopg.sql.SQL("INSERT INTO {} VALUES (1)").format(psycopg.sql.Identifier(name)))
    assert stamped.services() == ["admin"] * len(NAMES)


def test_functions_of_the_application_cannot_take_the_place_of_those_of_the_server(stamped: StampedDatabase) -> None:
    stamped.admin.execute("CREATE SCHEMA app")
    body = "LANGUAGE plpgsql AS $$ BEGIN RAISE 'called'; END $$"
    stamped.admin.execute(f"CREATE FUNCTION app.current_setting(text, boolean) RETURNS text {body}".encode())
    stamped.admin.execute(f"CREATE FUNCTION app.concatenated(text, text) RETURNS text {body}".encode())
    stamped.admin.execute("CREATE OPERATOR app.|| (LEFTARG = text, RIGHTARG = text, FUNCTION = app.concatenated)")
    stamped.admin.execute("SET search_path = app, pg_catalog, public")
    stamped.admin.execute("INSERT INTO t VALUES (1)")
    assert stamped.services() == ["admin"]


@pytest.mark.parametrize("function", ["pg_logical_emit_message(boolean, text, bytea, boolean)", "set_config"])
def test_a_role_without_rights_writes_without_a_stamp(stamped: StampedDatabase, own_name: str, function: str) -> None:
    admin = stamped.admin
    admin.execute(f"REVOKE EXECUTE ON FUNCTION {function} FROM PUBLIC".encode())
    admin.execute(f'CREATE ROLE "{own_name}"'.encode())
    try:
        admin.execute(f'GRANT INSERT ON t TO "{own_name}"'.encode())
        admin.execute(f'SET ROLE "{own_name}"'.encode())
        admin.execute("INSERT INTO t VALUES (1), (2)")
        with admin.transaction(), admin.transaction():
            admin.execute("INSERT INTO t VALUES (3)")
        admin.execute("RESET ROLE")
    finally:
        admin.execute(f'DROP OWNED BY "{own_name}"'.encode())
        admin.execute(f'DROP ROLE "{own_name}"'.encode())
    assert stamped.services() == [None] * 3


@pytest.mark.parametrize(
    ("setting", "service"),
    [
        ("", "admin"),
        ("{" * 16_384, None),
        (f'{{"serviceName": "shop", "identifier": "{"x" * 16_384}"}}', "admin"),
        ("x" * (1 << 20), "admin"),
        ('{"serviceName": "sh\\u00f6p \U0001f6d2"}', "shöp \U0001f6d2"),
    ],
)
def test_a_setting_of_any_length_and_content_lets_the_change_pass(
    stamped: StampedDatabase, setting: str, service: str | None
) -> None:
    with stamped.admin.transaction():
        stamped.admin.execute(SET, [setting])
        stamped.admin.execute("INSERT INTO t VALUES (1)")
    if service is None:  # not JSON, but the trigger emits it: only the reader of the log decides what it means
        assert [line.split()[0] for line in stamped.messages_and_changes()] == ["BEGIN", "message:", "table", "COMMIT"]
    else:
        assert stamped.services() == [service]


def test_a_database_in_another_encoding_writes_stamps_in_utf_8(server: PostgresServer) -> None:
    name = "stamps_latin1"
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0".encode())
        try:
            with stamped_database(server.dsn(name), "stamps_latin1") as stamped:
                stamped.admin.execute("SET client_encoding = 'UTF8'")
                with stamped.admin.transaction():
                    stamped.admin.execute(SET, ['{"serviceName": "shöp"}'])
                    stamped.admin.execute("INSERT INTO t VALUES (1)")
                binary = "SELECT data FROM pg_logical_slot_get_binary_changes('stamps_latin1', NULL, NULL)"
                lines = [bytes(line) for (line,) in stamped.admin.execute(binary).fetchall()]
                assert any('{"serviceName": "shöp"}'.encode() in line for line in lines)
                stamped.admin.execute("SELECT pg_drop_replication_slot('stamps_latin1')")
        finally:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("stamp"), st.sampled_from(["a", "b", ""])),
        st.tuples(st.just("write"), st.none()),
        st.tuples(st.just("savepoint"), st.none()),
        st.tuples(st.sampled_from(["rollback", "release"]), st.none()),
    ),
    max_size=14,
)


class Expected:
    """An oracle that knows the stamp and the rows of a transaction after each step."""

    def __init__(self) -> None:
        self.stamp = ""
        self.rows: list[tuple[int, str]] = []
        self._levels: list[tuple[str, list[tuple[int, str]]]] = []

    def apply(self, step: str, value: str | None, key: int) -> list[str]:
        """Applies a step. Returns its SQL statements; none if the step is impossible now."""
        depth = len(self._levels)
        if step == "stamp":
            self.stamp = value or ""
            text = json.dumps({"serviceName": value}) if value else ""
            return [f"SELECT set_config('changelog.provenance', '{text}', true)"]
        if step == "write":
            self.rows.append((key, self.stamp or "admin"))
            return [f"INSERT INTO t VALUES ({key})"]
        if step == "savepoint":
            self._levels.append((self.stamp, list(self.rows)))
            return [f"SAVEPOINT s{depth}"]
        if not depth:
            return []
        stamp, rows = self._levels.pop()
        if step == "release":
            return [f"RELEASE SAVEPOINT s{depth - 1}"]
        self.stamp, self.rows = stamp, rows
        return [f"ROLLBACK TO SAVEPOINT s{depth - 1}", f"RELEASE SAVEPOINT s{depth - 1}"]


@settings(max_examples=40)
@given(steps=STEPS)
def test_each_row_has_the_stamp_that_is_current_when_it_is_written_whatever_savepoints_do(
    shared: StampedDatabase, steps: list[tuple[str, str | None]]
) -> None:
    expected = Expected()
    with shared.admin.transaction():
        for key, (step, value) in enumerate(steps):
            for statement in expected.apply(step, value, key):
                shared.admin.execute(statement.encode())
    changes = [change for change in shared.changes() if change.op == "INSERT"]
    assert [(int(change.columns.split("id[integer]:")[1].split()[0]), change.service) for change in changes] == (
        expected.rows
    )
    shared.admin.execute("TRUNCATE t")
    shared.changes()


def test_no_stamp_is_left_for_the_next_transaction(stamped: StampedDatabase) -> None:
    def write(key: int) -> None:
        stamped.admin.execute("INSERT INTO t VALUES (%s)", [key])

    with stamped.admin.transaction():
        stamped.admin.execute(SET, [STAMP])
        write(1)
    write(2)
    with stamped.admin.transaction(force_rollback=True):
        stamped.admin.execute(SET, [STAMP])
        write(3)
    write(4)
    stamped.admin.execute("BEGIN")
    stamped.admin.execute(SET, [STAMP])
    with pytest.raises(psycopg.errors.DivisionByZero):
        stamped.admin.execute("SELECT 1 / 0")
    stamped.admin.execute("ROLLBACK")
    write(5)
    assert stamped.services() == ["shop", "admin", "admin", "admin"]
