"""`changelog schemas plan`: what a migration would do, tried on a real database and rolled back."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import psycopg
import pytest
import structlog

from connectors.embedded import Server
from connectors.sources.postgres.catalog import Table, read_tables
from connectors.sources.postgres.connection import connect
from connectors.sources.postgres.recreate import Definition, definitions, recreate
from connectors.sources.postgres.values import SETTINGS
from tests.integration.site import Site
from tests.servers import VERSIONS, fresh_database, server_name

CHECKOUT = Path(__file__).parents[2]

TABLES = (
    "CREATE TYPE status AS ENUM ('new', 'paid')",
    "CREATE TYPE money_of AS (amount numeric(10, 2), currency text)",
    """CREATE TABLE orders (id int PRIMARY KEY, guest_id int NOT NULL, nights int, amount numeric(10, 2), note text,
    status status, price money_of, made_at timestamp)""",
    "ALTER TABLE orders REPLICA IDENTITY FULL",
    "INSERT INTO orders VALUES (1, 7, 3, 10.5, 'a', 'new', '(1,EUR)', '2026-11-21 10:00:00.5')",
    "CREATE TABLE log (id int PRIMARY KEY, note text) PARTITION BY RANGE (id)",
    "CREATE TABLE log_1 PARTITION OF log FOR VALUES FROM (0) TO (10)",
    "CREATE TABLE guest (id bigserial PRIMARY KEY, name text)",
)
PUBLICATION = (
    "CREATE PUBLICATION {} FOR TABLE ONLY orders, ONLY log, ONLY guest WITH (publish_via_partition_root = true)"
)
CONFIG = '[tables]\ninclude = ["public.*"]\n[entities.orders]\nkey = ["id"]\n'


@pytest.fixture(autouse=True)
def own_logs() -> Iterator[None]:
    yield
    structlog.reset_defaults()


@pytest.fixture
def site(database: str, tmp_path: Path) -> Site:
    """Three tables, one of them partitioned, and their publication."""
    made = Site(database, tmp_path)
    made.sql(*TABLES, PUBLICATION.format(made.name))
    made.configure(CONFIG)
    return made


class Planner:
    """Tries scripts, and gives what is said of them."""

    def __init__(self, site: Site, capsys: pytest.CaptureFixture[str]) -> None:
        self._site, self._capsys = site, capsys
        self.file = site.folder / "migration.sql"

    def said(self, script: str, *options: str) -> tuple[int, str]:
        """The exit code, and what was printed."""
        self.file.write_text(script.replace("PUBLICATION_NAME", self._site.name), "utf-8")
        self._capsys.readouterr()
        code, lines = self._site.call("schemas", "plan", str(self.file), *options)
        assert code in (0, 1), lines
        return code, self._capsys.readouterr().out

    def tried(self, script: str, *options: str) -> dict[str, Any]:
        """All that is said of it; the exit code fits the verdict."""
        code, text = self.said(script, "--json", *options)
        found: dict[str, Any] = json.loads(text)
        assert code == (found["verdict"] != "ok")
        return found

    def entity(self, script: str, *options: str, name: str = "orders") -> dict[str, Any]:
        """What is said of one entity; nothing happens to the others."""
        tried = self.tried(script, *options)
        others = [each for each in tried["entities"] if each["entity"] != name]
        assert not any(each["alterations"] or each["troubles"] or each["reads_again"] for each in others)
        [found] = [each for each in tried["entities"] if each["entity"] == name]
        assert isinstance(found, dict)
        return found

    def refused(self, script: str, *options: str, code: int = 3) -> str:
        """The last line with which it fails, without the file's name before the line's number."""
        self.file.write_text(script, "utf-8")
        return self.last_line(code, str(self.file), *options)

    def last_line(self, code: int, *words: str) -> str:
        """Of `changelog schemas plan WORDS`, which fails with this code."""
        found, lines = self._site.call("schemas", "plan", *words)
        assert found == code, lines
        assert self._capsys.readouterr().out == ""
        return lines[-1].strip().removeprefix("changelog: ").removeprefix(f"{self.file}:")


@pytest.fixture
def planner(site: Site, capsys: pytest.CaptureFixture[str]) -> Planner:
    return Planner(site, capsys)


def alterations(entity: dict[str, Any]) -> list[str]:
    return [
        " ".join(filter(None, [f"{each['line']}:", each["kind"], each["name"], each["before"], each["after"]]))
        for each in entity["alterations"]
    ]


def rules(entity: dict[str, Any]) -> list[str]:
    return [f"{each['line']}: {each['rule']} {each['path']}" for each in entity["troubles"]]


def summary(entity: dict[str, Any]) -> tuple[list[str], list[str], list[str], int]:
    """What changes, what breaks, what is read again, and how much happens unseen; a trouble stops the service here."""
    assert entity["stops"] == bool(entity["troubles"])
    return alterations(entity), rules(entity), entity["reads_again"], len(entity["unseen"])


# Columns

COLUMNS: dict[str, tuple[str, list[str], list[str], list[str], int]] = {
    "added": ("ALTER TABLE orders ADD extra text", ["1: column added extra text"], [], [], 0),
    "added not null with a default": (
        "ALTER TABLE orders\n  ADD extra int NOT NULL DEFAULT 5",
        ["1: column added extra integer NOT NULL DEFAULT 5"],
        [],
        ["extra"],
        0,
    ),
    "added with a default that is gone again": (
        "ALTER TABLE orders ADD extra int DEFAULT 5;\nALTER TABLE orders ALTER extra DROP DEFAULT;",
        ["1: column added extra integer"],
        [],
        ["extra"],
        0,
    ),
    "added with a volatile default": (
        "ALTER TABLE orders ADD extra uuid DEFAULT gen_random_uuid()",
        ["1: column added extra uuid DEFAULT gen_random_uuid()", "1: table rewritten"],
        [],
        ["extra"],
        0,
    ),
    "dropped": ("-- why\nALTER TABLE orders DROP note", ["2: column dropped note text"], [], [], 0),
    "renamed": (
        "ALTER TABLE orders RENAME note TO remark",
        ["1: column renamed remark note remark"],
        ["1: FIELD_RENAMED /fields/remark"],
        ["remark"],
        0,
    ),
    "wider": (
        "ALTER TABLE orders ALTER nights TYPE bigint",
        ["1: type nights integer bigint", "1: table rewritten"],
        ["1: BRANCH_MISSING /fields/nights"],
        [],
        0,
    ),
    "computed anew": (
        "ALTER TABLE orders ALTER nights TYPE int USING nights + 1",
        ["1: table rewritten"],
        [],
        [],
        1,
    ),
    "rounded, which no message shows": (
        "ALTER TABLE orders ALTER made_at TYPE timestamp(0)",
        ["1: type made_at timestamp without time zone timestamp(0) without time zone", "1: table rewritten"],
        [],
        [],
        1,
    ),
    "longer, and the same text": (
        "ALTER TABLE orders ALTER note TYPE varchar",
        ["1: type note text character varying"],
        [],
        [],
        0,
    ),
    "not null, and a default for rows to come": (
        "ALTER TABLE orders ALTER note SET NOT NULL;\nALTER TABLE orders ALTER nights SET DEFAULT 3",
        ["1: null note NULL NOT NULL", "2: default nights none 3"],
        [],
        [],
        0,
    ),
    "added and dropped": ("ALTER TABLE orders ADD extra int; ALTER TABLE orders DROP extra", [], [], [], 0),
    "a new label": ("ALTER TYPE status ADD VALUE 'gone'", [], [], [], 0),
    "inside a composite": (
        "SELECT 1;\nALTER TYPE money_of ADD ATTRIBUTE at date",
        ["2: type price its type altered"],
        [],
        ["price"],
        0,
    ),
    "data alone": ("UPDATE orders SET nights = 2; INSERT INTO orders (id, guest_id) VALUES (2, 2)", [], [], [], 0),
}


@pytest.mark.parametrize("case", COLUMNS)
def test_columns(planner: Planner, case: str) -> None:
    script, *expected = COLUMNS[case]
    assert list(summary(planner.entity(script))) == expected


def test_a_type_that_no_reader_follows(planner: Planner) -> None:
    found = planner.entity("SELECT 1;\n\nALTER TABLE orders ALTER amount TYPE text;")
    assert alterations(found) == ["3: type amount numeric(10,2) text", "3: table rewritten"]
    assert {rule.partition(" /")[0] for rule in rules(found)} == {"3: LOGICAL_TYPE", "3: PROMOTION_LOSSY"}
    assert {trouble["breaks"] for trouble in found["troubles"]} == {"new readers"}
    assert found["reads_again"] == ["amount"]


def test_a_column_that_is_not_published_is_of_no_interest(site: Site, planner: Planner) -> None:
    site.configure(CONFIG + 'exclude_columns = ["note"]\n')
    found = planner.entity("ALTER TABLE orders ALTER note TYPE bytea USING note::bytea")
    assert (rules(found), found["reads_again"], found["unseen"]) == ([], [], [])


# Keys, identities, tables

TABLE_CASES: dict[str, tuple[str, list[str], str]] = {
    "key dropped": ("ALTER TABLE orders DROP id", ["1: ENTITY /"], "has no column id"),
    "key renamed": ("ALTER TABLE orders RENAME id TO order_id", ["1: ENTITY /"], "has no column id"),
    "key without its index": (
        "SELECT 1;\nALTER TABLE orders DROP CONSTRAINT orders_pkey",
        ["2: ENTITY /"],
        "has no unique index on (id)",
    ),
    "dropped": ("\nDROP TABLE orders", ["2: TABLE_DROPPED /"], "public.orders is dropped"),
    "unlogged": ("ALTER TABLE orders SET UNLOGGED", ["1: TABLE /"], "is unlogged"),
    "not published": (
        "ALTER PUBLICATION PUBLICATION_NAME DROP TABLE orders",
        ["1: PUBLICATION /"],
        "lacks table public.orders",
    ),
    "truncated": ("\nTRUNCATE orders", ["2: TRUNCATE /"], "not published"),
}


@pytest.mark.parametrize("case", TABLE_CASES)
def test_what_stops_the_service(planner: Planner, case: str) -> None:
    script, expected, text = TABLE_CASES[case]
    if case == "unlogged":
        script = "ALTER PUBLICATION PUBLICATION_NAME DROP TABLE orders;" + script  # the server wants it so
        expected = ["1: PUBLICATION /", *expected]
    found = planner.entity(script)
    assert rules(found) == expected
    assert text in found["troubles"][-1]["text"]
    assert {trouble["breaks"] for trouble in found["troubles"]} == {"the service"}
    assert found["stops"]


def test_a_key_that_follows_the_primary_key_may_not_move(planner: Planner) -> None:
    script = "ALTER TABLE guest RENAME id TO guest_id"
    found = planner.entity(script, name="guest")
    assert {"1: KEY_CHANGED /", "1: PARTITION_CHANGED /"} <= set(rules(found))
    assert found["stops"]


def test_a_table_of_another_name(planner: Planner) -> None:
    tried = planner.tried("ALTER TABLE orders\nRENAME TO bookings;")
    by_name = {each["entity"]: each for each in tried["entities"]}
    assert rules(by_name["orders"]) == ["1: TABLE_RENAMED /"]
    assert by_name["bookings"]["is_new"]


def test_a_table_that_takes_the_place_of_another_is_read_again_if_it_is_published(site: Site, planner: Planner) -> None:
    swap = "CREATE TABLE next (LIKE orders INCLUDING ALL);\nDROP TABLE orders;\nALTER TABLE next RENAME TO orders;\n"
    found = planner.entity(swap + "ALTER TABLE orders REPLICA IDENTITY FULL;")
    assert alterations(found) == ["2: table dropped public.orders", "3: table replaced public.orders"]
    assert rules(found) == ["2: PUBLICATION /"]
    found = planner.entity(
        swap + "ALTER TABLE orders REPLICA IDENTITY FULL; ALTER TABLE orders DROP note;\n"
        "ALTER PUBLICATION PUBLICATION_NAME ADD TABLE ONLY orders;"
    )
    assert rules(found) == []
    assert alterations(found)[-1] == "3: column dropped note string"
    assert found["reads_again"] == ["id", "guest_id", "nights", "amount", "status", "price", "made_at"]


def test_replica_identities(planner: Planner) -> None:
    found = planner.entity("ALTER TABLE orders REPLICA IDENTITY DEFAULT")
    assert summary(found) == (["1: replica identity FULL DEFAULT (id)"], [], [], 0)
    [note] = found["notes"]
    assert "originals are not known" in note
    found = planner.entity("ALTER TABLE orders REPLICA IDENTITY NOTHING")
    assert rules(found) == ["1: TABLE /"]
    assert "lacks id" in found["troubles"][0]["text"]


def test_a_publication_that_sends_less_is_told_of_every_entity(planner: Planner) -> None:
    tried = planner.tried("SELECT 1;\nALTER PUBLICATION PUBLICATION_NAME SET (publish = 'insert')")
    assert [rules(each) for each in tried["entities"]] == [["2: PUBLICATION /"]] * 3


def test_a_truncate_that_is_published_stops_nobody(site: Site, planner: Planner) -> None:
    site.configure(CONFIG + 'on_truncate = "publish"\n')
    found = planner.entity("TRUNCATE orders")
    assert summary(found) == (["1: table truncated"], [], [], 0)


def test_partitions_bring_and_take_rows_that_no_message_tells(site: Site, planner: Planner) -> None:
    site.sql("CREATE TABLE filled (LIKE log INCLUDING ALL)")
    site.configure(CONFIG + '[entities.filled]\ntable = "public.filled"\n')
    site.sql(f"ALTER PUBLICATION {site.name} ADD TABLE ONLY filled")
    tried = planner.tried(
        "CREATE TABLE log_2 PARTITION OF log FOR VALUES FROM (10) TO (20);\n"
        "ALTER TABLE log ATTACH PARTITION filled FOR VALUES FROM (20) TO (30);\nDROP TABLE log_1;"
    )
    [log] = [each for each in tried["entities"] if each["entity"] == "log"]
    assert alterations(log) == [
        "1: partition added public.log_2",
        "2: partition added public.filled",
        "3: partition removed public.log_1",
    ]
    assert [text.split()[3] for text in log["unseen"]] == ["public.filled", "public.log_1"]


def test_new_tables_that_are_entities(planner: Planner) -> None:
    tried = planner.tried(
        "CREATE TABLE added (id int PRIMARY KEY);\nCREATE TABLE keyless (id int);\nCREATE SCHEMA other;"
        "CREATE TABLE other.left_out (id int)"
    )
    new = {each["entity"]: each for each in tried["entities"] if each["is_new"]}
    assert new.keys() == {"added", "keyless"}
    assert rules(new["added"]) == ["1: PUBLICATION /"]
    assert rules(new["keyless"]) == ["2: ENTITY /"]


# What is compatible is a matter of agreement


def test_the_mode_is_the_configuration_s_and_the_file_s(site: Site, planner: Planner) -> None:
    wider = "ALTER TABLE orders ALTER nights TYPE bigint"
    site.configure('schemas = { compatibility = "BACKWARD_TRANSITIVE" }\n' + CONFIG)
    assert summary(planner.entity(wider))[1] == []
    assert site.call("schemas", "generate", "--out", str(site.folder / "schemas"))[0] == 0
    file = site.folder / "schemas" / "orders.avsc"
    file.write_text(json.dumps({**json.loads(file.read_text()), "compatibility": "FULL"}))
    found = planner.entity(wider)
    assert rules(found) == ["1: BRANCH_MISSING /fields/nights"]
    assert not found["stops"]
    assert planner.said(wider)[1].endswith("rolled back: readers would break (orders)\n")


def test_a_service_that_publishes_the_incompatible_breaks_readers(site: Site, planner: Planner) -> None:
    site.configure('schemas = { on_incompatible = "publish", on_restated = "ask" }\n' + CONFIG)
    found = planner.entity("ALTER TABLE orders RENAME note TO remark")
    assert (rules(found), found["stops"], found["asks"]) == (["1: FIELD_RENAMED /fields/remark"], False, True)
    assert planner.entity("ALTER TABLE guest RENAME id TO guest_id", name="guest")["stops"]


def test_every_version_that_the_changelog_holds_counts(site: Site, planner: Planner) -> None:
    with site.running() as service:
        service.until(lambda: site.state("orders").keys() == {"1"})
        site.sql("ALTER TABLE orders DROP note", "UPDATE orders SET nights = 4")
        service.until(lambda: len(site.messages("schemas")) == 2)
    found = planner.entity("ALTER TABLE orders ADD note int")
    assert {(trouble["path"], trouble["against"]) for trouble in found["troubles"]} == {("/fields/note", "version 1")}
    assert found["stops"]


SEEN_BY_THE_SERVICE = [
    "ALTER TABLE orders ADD extra text",
    "ALTER TABLE orders ADD extra text DEFAULT 'x', DROP note",
    "ALTER TABLE orders RENAME note TO remark",
    "ALTER TABLE orders ALTER nights TYPE bigint",
    "ALTER TABLE orders ALTER note TYPE varchar",
    "ALTER TABLE orders RENAME id TO order_id",
    "ALTER TABLE orders DROP note; ALTER TABLE orders ADD note int",
]


@pytest.mark.parametrize("script", SEEN_BY_THE_SERVICE)
def test_the_service_does_as_planned(site: Site, planner: Planner, script: str) -> None:
    with site.running() as service:
        service.until(lambda: site.state("orders").keys() == {"1"})
        planned = planner.entity(script)
        site.sql(script, "INSERT INTO orders VALUES (2, 7, 3)")
        if planned["stops"]:
            service.ended()
            return
        service.until(lambda: "2" in site.state("orders"))
        versions = [each["value"]["current"] for each in site.messages("schemas") if each["key"] == "orders"]
        assert versions[-1]["restated"] == planned["reads_again"]


# Bad input

BAD = {
    "1: syntax": ("ALTER TABEL orders;", 3, '1: syntax error at or near "TABEL"'),
    "2: in the second line": ("ALTER TABLE orders\n  ADD x txt;", 3, '2: type "txt" does not exist'),
    "3: unknown table": ("SELECT 1;\n\nALTER TABLE bookings ADD x int", 3, '3: relation "bookings" does not exist'),
    "4: after what came before": (
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
        "2: COMMIT would end the transaction in which the migration is tried; leave it out",
    ),
    "9: commit inside": (
        "DO $$ BEGIN COMMIT; END $$",
        2,
        "1: invalid transaction termination; leave out what ends the transaction in which the migration is tried",
    ),
    "10: concurrently": (
        "\nCREATE INDEX CONCURRENTLY ON orders (note)",
        2,
        "2: CREATE INDEX CONCURRENTLY cannot run in a transaction, so it cannot be tried; leave it out",
    ),
    "11: what only the server knows": (
        "SELECT 1;\nCREATE SUBSCRIPTION s CONNECTION 'dbname=x' PUBLICATION p",
        2,
        "2: CREATE SUBSCRIPTION ... WITH (create_slot = true) cannot run inside a transaction block; leave it out",
    ),
    "12: psql": ("\\i other.sql\n", 2, r"1: \i is for psql alone; write plain SQL"),
    "13: psql's data": ("COPY orders FROM stdin;\n1\n\\.\n", 2, "1: COPY is for psql alone; write plain SQL"),
    "14: what no rollback undoes": (
        "SELECT setval('guest_id_seq', 9)",
        2,
        "1: setval does what no rollback undoes; try it with --embedded, or leave it out",
    ),
    "15: NUL": ("SELECT 1;\n\0COMMIT", 2, "2: holds a NUL"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_scripts(planner: Planner, case: str) -> None:
    script, code, said = BAD[case]
    assert planner.refused(script, code=code) == said


def test_a_connection_that_is_lost_in_the_middle(planner: Planner) -> None:
    dies = "DO $$ BEGIN EXECUTE 'SELECT pg_terminate' || '_backend(pg_backend_pid())'; END $$"
    said = planner.refused(f"SELECT 1;\n{dies}")
    assert re.match("2: (the connection to PostgreSQL broke|terminating connection)", said)


def test_every_statement_that_cannot_be_tried_is_told_at_once(site: Site, planner: Planner) -> None:
    planner.file.write_text("BEGIN;\nSELECT 1;\nCOMMIT;", "utf-8")
    code, lines = site.call("schemas", "plan", str(planner.file))
    assert (code, [line.split(":")[-1].split()[0] for line in lines]) == (2, ["BEGIN", "COMMIT"])


def test_bad_files(site: Site, planner: Planner) -> None:
    missing = site.folder / "missing.sql"
    assert planner.last_line(2, str(missing)) == f"{missing}: cannot be read (No such file or directory)"
    assert planner.last_line(2, str(site.folder)) == f"{site.folder}: cannot be read (Is a directory)"
    missing.write_bytes(b"SELECT '\xff'")
    assert planner.last_line(2, str(missing)) == f"{missing}: is not UTF-8 at byte 8"


def test_a_script_without_a_statement_does_nothing(planner: Planner) -> None:
    assert planner.said("-- nothing\n")[0] == 0
    assert planner.tried("/* nothing */ ;; ")["statements"] == 0


def test_bad_options(planner: Planner) -> None:
    planner.file.write_text("SELECT 1")
    for option in ("--lock-timeout", "--statement-timeout"):
        for value in ("0", "-1", "nan", "x", "1e9"):
            assert option in planner.last_line(2, str(planner.file), option, value)
    assert "--format" in planner.last_line(2, str(planner.file), "--format", "xml")


def test_a_database_out_of_reach(site: Site, planner: Planner) -> None:
    site.configure(CONFIG, dsn="host=127.0.0.1 port=1")
    assert planner.refused("SELECT 1").startswith("cannot connect to PostgreSQL")


def test_a_configuration_that_does_not_fit_the_database(site: Site, planner: Planner) -> None:
    site.configure('[entities.gone]\ntable = "public.gone"\n')
    assert "the database has no table public.gone" in planner.refused("SELECT 1", code=2)


def test_a_role_that_may_not_alter_the_table(site: Site, planner: Planner) -> None:
    role = f"reader_{site.name}"
    site.sql(f"CREATE ROLE {role} LOGIN", f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")
    try:
        site.configure(CONFIG, dsn=psycopg.conninfo.make_conninfo(site.dsn, user=role))
        said = planner.refused("ALTER TABLE orders DROP note")
        assert said.startswith("1: must be owner of table orders; connect as the role that migrates")
        assert planner.entity("ALTER TABLE orders DROP note", "--embedded")["alterations"]
    finally:
        site.sql(f"DROP OWNED BY {role}", f"DROP ROLE {role}")


# Nothing is left behind


@pytest.mark.parametrize(
    "statement", ["ALTER TABLE orders DROP note", "SET lock_timeout = 0; ALTER TABLE orders DROP note"]
)
def test_a_lock_is_not_waited_for(site: Site, planner: Planner, statement: str) -> None:
    with psycopg.connect(site.dsn) as other:
        other.execute("SELECT count(*) FROM orders")
        said = planner.refused(statement, "--lock-timeout", "0.05")
        assert said == (
            "1: canceling statement due to lock timeout; try again, give --lock-timeout more, or use --embedded"
        )
        other.execute("UPDATE orders SET nights = 4")
        assert planner.entity("ALTER TABLE orders DROP note", "--embedded")["alterations"]


@pytest.mark.parametrize("before", ["", "SET statement_timeout = 0;", "RESET ALL; "])
def test_a_statement_does_not_run_for_long(planner: Planner, before: str) -> None:
    said = planner.refused(f"{before}\nSELECT pg_sleep(60)", "--statement-timeout", "0.2")
    assert said.partition(": ")[2].startswith("canceling statement due to statement timeout; give --statement-timeout")


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


@pytest.mark.parametrize("last", ["", "SELECT 1 / 0;", "COMIT;"])
def test_nothing_is_left_behind(site: Site, planner: Planner, last: str) -> None:
    site.sql(f"SELECT pg_create_logical_replication_slot('{site.name}', 'pgoutput')")
    before = site.sql(CATALOGUE)
    if last:
        planner.refused(EVERYTHING.replace("PUBLICATION_NAME", site.name) + last)
    else:
        assert planner.tried(EVERYTHING)["verdict"] == "stops"
    assert site.sql(CATALOGUE) == before
    delivered = site.sql(
        f"SELECT data FROM pg_logical_slot_peek_binary_changes('{site.name}', NULL, NULL, 'proto_version', '2',"
        f" 'publication_names', '{site.name}', 'messages', 'true')"
    )
    assert delivered == []


# A copy


@pytest.mark.parametrize("case", ["added with a volatile default", "renamed", "wider", "inside a composite", "dropped"])
def test_a_copy_says_the_same(planner: Planner, case: str) -> None:
    script, *expected = COLUMNS[case]
    found = planner.tried(script, "--embedded")
    [orders] = [each for each in found["entities"] if each["entity"] == "orders"]
    assert list(summary(orders)) == expected
    assert found["lost"] == []
    assert found["tried_on"] == "an embedded PostgreSQL 18"


@pytest.mark.parametrize("version", VERSIONS)
def test_every_supported_server(
    version: int, request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with fresh_database(request.getfixturevalue(server_name(version))) as dsn:
        site = Site(dsn, tmp_path)
        site.sql(*TABLES, PUBLICATION.format(site.name))
        site.configure(CONFIG)
        planner = Planner(site, capsys)
        script, *expected = COLUMNS["added not null with a default"]
        for options in ((), ("--embedded",)):
            tried = planner.tried(script, *options)
            [orders] = [each for each in tried["entities"] if each["entity"] == "orders"]
            assert list(summary(orders)) == expected
            assert tried["lost"] == []
        told = "" if version == 18 else f" (the live one is {version})"
        assert tried["tried_on"] == f"an embedded PostgreSQL 18{told}"


def test_a_copy_may_do_what_no_rollback_undoes(site: Site, planner: Planner) -> None:
    site.sql("INSERT INTO guest (name) VALUES ('a')")
    assert planner.tried("SELECT setval('guest_id_seq', 90); TRUNCATE log", "--embedded")["statements"] == 2
    assert site.sql("SELECT last_value FROM guest_id_seq") == [(1,)]


RICH = r"""
CREATE SCHEMA "Odd One";
CREATE EXTENSION citext;
CREATE EXTENSION hstore SCHEMA "Odd One";
CREATE TYPE label AS ENUM ('a', 'b''c');
CREATE DOMAIN pos AS numeric(10, 2) DEFAULT 1 NOT NULL CHECK (VALUE > 0);
CREATE TYPE pair AS (a int, "B b" label);
CREATE TYPE frange AS RANGE (SUBTYPE = float8);
CREATE FUNCTION next_id() RETURNS int LANGUAGE plpgsql AS $$ BEGIN RETURN 5; END $$;
CREATE FUNCTION plus(x int) RETURNS int LANGUAGE sql IMMUTABLE BEGIN ATOMIC SELECT x + 1; END;
CREATE TABLE t (id serial PRIMARY KEY, gone int, l label NOT NULL, p pos, r pair, f frange, c citext,
  h "Odd One".hstore, n int DEFAULT next_id(),
  g int GENERATED ALWAYS AS (plus(5)) STORED, i int GENERATED BY DEFAULT AS IDENTITY,
  ls label[], v varchar(10));
ALTER TABLE t DROP COLUMN gone;
ALTER TABLE t REPLICA IDENTITY FULL;
CREATE UNIQUE INDEX t_v ON t (v, lower(v)) WHERE v IS NOT NULL;
CREATE TABLE "Odd One"."T t" (a int NOT NULL, b int REFERENCES t, UNIQUE (a) DEFERRABLE);
CREATE UNIQUE INDEX tti ON "Odd One"."T t" (a);
ALTER TABLE "Odd One"."T t" REPLICA IDENTITY USING INDEX tti;
CREATE TABLE part (id int, d date, PRIMARY KEY (id, d)) PARTITION BY RANGE (d);
CREATE TABLE part_1 PARTITION OF part FOR VALUES FROM ('2020-01-01') TO ('2021-01-01');
CREATE TABLE part_d PARTITION OF part DEFAULT PARTITION BY HASH (id);
CREATE TABLE part_d0 PARTITION OF part_d FOR VALUES WITH (MODULUS 1, REMAINDER 0);
ALTER TABLE part_1 REPLICA IDENTITY FULL;
CREATE TABLE base (id int PRIMARY KEY, x text);
CREATE TABLE child (y text) INHERITS (base);
CREATE UNLOGGED TABLE unlogged (a int);
CREATE VIEW w AS SELECT id, l FROM t;
CREATE MATERIALIZED VIEW m AS SELECT * FROM w;
CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$;
CREATE TRIGGER tr BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION touch();
CREATE PUBLICATION p FOR TABLE ONLY t WHERE (id > 0 AND v <> 'x%s'), part WITH (publish_via_partition_root = true)
"""


@pytest.mark.parametrize("version", ["server", "server_15"])
def test_a_copy_has_what_the_database_has(version: str, request: pytest.FixtureRequest, server: Server) -> None:
    with fresh_database(request.getfixturevalue(version)) as live, fresh_database(server) as copy:
        with psycopg.connect(live, autocommit=True) as connection:
            connection.execute(RICH.encode())
        with connect(live, settings=SETTINGS) as source, connect(copy) as connection:
            wanted = [each for each in definitions(source, "p") if not each.what.startswith("role ")]
            assert recreate(connection, wanted) == []
            with connect(copy, settings=SETTINGS) as target:
                made = {each.what: each.statement for each in definitions(target, "p")}
                for each in wanted:
                    if not each.what.startswith("view"):  # newer servers write some of them otherwise
                        assert made[each.what] == each.statement
                assert {each.what for each in wanted} <= made.keys()
                assert [shape(table) for table in read_tables(target)] == [shape(each) for each in read_tables(source)]


def shape(table: Table) -> tuple[object, ...]:
    """All of a table but its numbers."""
    columns = [(each.name, each.typmod, each.not_null, each.generated) for each in table.columns]
    leaves = [(each.schema, each.name, each.identity) for each in table.leaves]
    return (table.schema, table.name, table.kind, table.replica_identity, columns, table.indexes, leaves)


def test_what_a_copy_lacks_is_told(database: str) -> None:
    wanted = [
        Definition(
            what="extension nowhere", statement="CREATE EXTENSION nowhere", instead="CREATE DOMAIN public.far AS text"
        ),
        Definition(
            what="table t",
            statement="CREATE TABLE public.t (a public.far(4), b int)",
            instead="CREATE TABLE public.t (a public.far, b int)",
        ),
        Definition(what="default of t.b", statement="ALTER TABLE public.t ALTER b SET DEFAULT public.f()"),
        Definition(what="index i", statement="CREATE INDEX i ON public.t (b)"),
    ]
    with connect(database) as connection:
        lost = recreate(connection, wanted)
        assert [(each.what, each.stands_in) for each in lost] == [
            ("extension nowhere", True),
            ("table t", True),
            ("default of t.b", False),
        ]
        assert "public.f() does not exist" in lost[-1].why
        columns = connection.execute(
            "SELECT attname FROM pg_attribute WHERE attrelid = 'public.t'::regclass"
        ).fetchall()
        assert {("a",), ("b",)} <= set(columns)


# Formats


def test_text(planner: Planner) -> None:
    code, text = planner.said("ALTER TABLE orders ADD a int DEFAULT 1;\nALTER TABLE orders\nRENAME note TO remark;")
    lines = text.replace(f"{planner.file}", "M").splitlines()
    assert code == 1
    assert lines[:3] == [
        "orders (public.orders)",
        "  M:1: + column a integer DEFAULT 1",
        "  M:2: ~ column note → remark",
    ]
    assert lines[3].startswith("  M:2: ERROR FIELD_RENAMED /fields/remark: new readers break: ")
    assert lines[4:7] == [
        "  note: the service stops at the first row behind that, until `changelog schemas accept orders POSITION`",
        "  note: the service reads the table again, for no row event tells what older rows hold in remark, a",
        "no change: guest, log",
    ]
    assert lines[-1].startswith("2 statements tried on database ")
    assert lines[-1].endswith("and rolled back: the service would stop (orders)")


def test_the_try_on_a_live_database_is_told_before(site: Site, planner: Planner) -> None:
    planner.file.write_text("SELECT 1")
    code, [line] = site.call("schemas", "plan", str(planner.file))
    assert code == 0
    assert "holds the locks" in line
    assert site.call("schemas", "plan", str(planner.file), "--embedded") == (0, [])


def test_github_and_junit(planner: Planner) -> None:
    script = "SELECT 1;\nALTER TABLE orders ALTER nights TYPE bigint;\nALTER TABLE guest ADD a int DEFAULT 1"
    code, text = planner.said(script, "--format", "github")
    assert code == 1
    errors = [line for line in text.splitlines() if line.startswith("::error ")]
    assert [line.partition("::old")[0] for line in errors] == [
        f"::error file={planner.file},line=2,title=BRANCH_MISSING /fields/nights"
    ]
    assert "::notice::guest: the service reads the table again" in text
    code, text = planner.said(script, "--format", "junit")
    suites = ElementTree.fromstring(text)
    assert (code, suites.get("tests"), suites.get("failures")) == (1, "3", "1")
    assert [case.get("classname") for case in suites.iter("testcase") if len(case)] == ["orders"]


BOOKING = (
    """CREATE TABLE orders (id bigint PRIMARY KEY, guest_id bigint NOT NULL, room text, arrival date, nights int,
    amount numeric(10, 2), status text, note text)""",
    "ALTER TABLE orders REPLICA IDENTITY FULL",
    "CREATE TABLE guests (id bigint PRIMARY KEY, name text)",
    "CREATE TABLE sessions (id bigint PRIMARY KEY, device text)",
)
BOOKED = "".join(f'[entities.{name}]\ntable = "public.{name}s"\n' for name in ("order", "guest", "session"))


def test_what_the_documentation_shows_is_what_is_printed(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    site = Site(database, tmp_path)
    site.sql(*BOOKING, f"CREATE PUBLICATION {site.name} FOR TABLE ONLY orders, ONLY guests, ONLY sessions")
    site.configure(BOOKED)
    monkeypatch.chdir(tmp_path)
    docs = (CHECKOUT / "docs" / "schemas.md").read_text("utf-8")
    Path("0042.sql").write_text(docs.split("```sql\n")[1].split("```")[0], "utf-8")
    code, told = site.call("schemas", "plan", "0042.sql")
    printed = "\n".join([*told, capsys.readouterr().out])
    server = re.compile(r"database \S+ at [0-9.]+:[0-9]+")
    shown = docs.split("$ changelog schemas plan 0042.sql\n")[1].split("```")[0]
    assert (code, server.sub("…", printed)) == (1, server.sub("…", shown))
    Path("0043.sql").write_text("SELECT 1;\n\nALTER TABLE order DROP b", "utf-8")
    code, told = site.call("schemas", "plan", "0043.sql")
    assert f"$ changelog schemas plan 0043.sql\n{told[-1]}\n" in docs
