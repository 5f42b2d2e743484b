"""Tests signals with keys that no row can have. The service must continue, and find the rows of the signal's other
keys.

A *signal* is an operator's request, written into the database's log. `republish` requests that some rows are read
again.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path

import psycopg
import pytest

from changelog.connectors.capture.rows.row_records import Origin
from changelog.connectors.capture.tables.chunk_rows import KeyedRows
from changelog.connectors.capture.tables.key_lookup import LookupKeys
from changelog.connectors.capture.tables.repairs import Repair, Repairs
from changelog.connectors.sinks.files.sink import FileSink
from changelog.connectors.sources.postgres.admin.signals import send
from changelog.connectors.sources.postgres.session.connection import connect
from changelog.connectors.sources.postgres.snapshot.key_rows import read_keys
from changelog.connectors.sources.postgres.snapshot.table_reads import read_table
from changelog.connectors.sources.postgres.values.text_to_json import SETTINGS
from changelog.envelope.signal import Signal
from tests.integration.site import Running, Site
from tests.unit.postgres.messages import entity as make_entity

EXTENSIONS = ("citext", "ltree", "hstore", "isn", "seg", "cube")

OWN_TYPES = """
CREATE TYPE mood AS ENUM ('so so', 'it''s');
CREATE DOMAIN even AS int CHECK (VALUE % 2 = 0);
CREATE TYPE pair AS (a int, b text)
"""

TYPES = """
SELECT format_type(t.oid, -1) FROM pg_type AS t
WHERE t.typtype IN ('b', 'e', 'd', 'r', 'm') AND t.typcategory <> 'A'
    AND t.typnamespace <> 'information_schema'::regnamespace
ORDER BY 1
"""
"""All types except arrays and composite types. The fixture `kinds` adds a few arrays and a composite type."""

VALUES = (
    "2", "a", "pg_class", "so so", "2026-01-02", "12:00", "1 day", "10.0.0.1", "08:00:2b:01:02:03",
    "08:00:2b:01:02:03:04:05", "0fa0eb1e-5ce8-4b1e-9a0c-6a2f5a0f6ad1", "f", "101", "0/1", "1:1:", "[1,5)",
    "[2026-01-01,2026-01-02)", "{[1,5)}", "{[2026-01-01,2026-01-02)}", "{1,2}", "(1,b)", "1~2", "(1,2)", "int4",
    "english", "simple", "postgres", "now()", "pg_catalog", "+(integer,integer)", "abs(integer)", "a=>1",
    "978-0-11-000222-4", "9790060115615", "1436-4522", "036000291452", "9771436452006", "\\x00",
)  # fmt: skip
"""The key of each table's only row is the first of these values that the type accepts. Some types accept none."""

HOSTILE = (
    "", " ", "garbage", "no_such", "'", '"', '""', '"a', "\\", "\0", "a\0b", "a.b.c.d.e", "public.no_such", "no.such",
    "&", "a b !", "(((", "{", "}", "[]", '["x"]', "NULL", "-", "99999999999999999999", "1e999999", "é",
    "'); DROP TABLE t0; --",
)  # fmt: skip

HOSTILE_SAMPLE = ("", "no_such", "'", "\0", "a.b.c.d.e", "(((", "99999999999999999999")
"""A sample of HOSTILE. The test of a whole service uses only these keys, because the service needs several queries for
each key of each table.
"""

HUGE = ("x" * (1 << 20), "(" * 100_000, "[" * 100_000, "1" * 100_000, "a & " * 25_000)

LOOKUPS = (HOSTILE, ("no_such", HUGE[0]), ("no_such", *HUGE[1:]))
"""Groups of keys that are looked up together. To find the invalid keys of a group, the service sends the group's keys
again and again. So a group with a long key is small.
"""


@pytest.fixture
def kinds(database: str) -> dict[str, str]:
    """Creates a table for each type that a key can have, including the types of the installed extensions. Returns the
    types by table name.
    """
    type_of_table: dict[str, str] = {}
    with psycopg.connect(database, autocommit=True) as connection:
        for extension in EXTENSIONS:
            connection.execute(f"CREATE EXTENSION {extension}".encode())
        connection.execute(OWN_TYPES.encode())
        types = [kind for (kind,) in connection.execute(TYPES)]
        for kind in (*types, "int[]", "regclass[]", "text[]", "pair"):
            table = f"t{len(type_of_table)}"
            try:
                connection.execute(f"CREATE TABLE {table} (id {kind} PRIMARY KEY, name text)".encode())
            except psycopg.Error:  # the type has no order, so it cannot have an index
                continue
            type_of_table[table] = kind
            connection.execute(f"ALTER TABLE {table} REPLICA IDENTITY FULL".encode())
            for value in VALUES:
                try:
                    connection.execute(f"INSERT INTO {table} VALUES ({value!r}, 'row')".encode())
                    break
                except psycopg.Error:
                    continue
    return type_of_table


def test_a_signal_with_invalid_keys_does_not_stop_the_service(
    kinds: dict[str, str], database: str, tmp_path: Path
) -> None:
    site = Site(database, tmp_path)
    site.configure("".join(f'[entities.{table}]\ntable = "public.{table}"\n' for table in kinds))
    with site.running() as service:
        service.until(site.is_read)
        keys_of_table = {table: tuple(site.state(table)) for table in kinds}
        with psycopg.connect(site.dsn, autocommit=True) as connection:
            for table, keys in keys_of_table.items():
                send(connection, Signal(do="republish", id=table, entity=table, keys=(*HOSTILE_SAMPLE, *keys)), None)
        for table in kinds:  # waits for each table separately, because one wait for all tables would time out
            service.until(partial(_is_done, site, service, table))
        assert _with_absent_keys(service) == set(kinds)
    for table, keys in keys_of_table.items():
        assert site.ops(table) == [("read", key) for key in keys] * 2, kinds[table]
    without_rows = [kinds[table] for table, keys in keys_of_table.items() if not keys]
    assert all(kind.startswith("pg_") for kind in without_rows), without_rows  # these types accept no input


def _is_done(site: Site, service: Running, table: str) -> bool:
    return table in _with_absent_keys(service) and table not in Repairs.parse(site.checkpoint.repairs).open


def _with_absent_keys(service: Running) -> set[str]:
    """Returns the entities for which the service logged that the hostile keys have no row."""
    return {
        str(event["entity"])
        for event in service.events()
        if event["event"] == "requested keys are not in the table" and event["keys"] == len(HOSTILE_SAMPLE)
    }


def test_keys_of_any_form_and_length_are_looked_up_in_every_type(kinds: dict[str, str], database: str) -> None:
    origin = Origin(connector="postgres", name="x", database="x")
    with connect(database, settings=SETTINGS) as connection:
        for name, kind in kinds.items():
            table = read_table({name: make_entity(name, name)}, b"", connection, name)
            for keys in LOOKUPS:
                rows = read_keys(connection, origin, table, f"public.{name}", LookupKeys(keys=keys), read_at=0)
                assert isinstance(rows, KeyedRows)
                assert rows.gone.to_pylist() == [*keys], kind


def test_a_stored_repair_with_invalid_keys_is_done_at_the_next_start(site_with_repair: Site) -> None:
    with site_with_repair.running() as service:
        service.until(lambda: Repairs.parse(site_with_repair.checkpoint.repairs).ended == {"s": "done, 2 absent"})
    assert site_with_repair.ops("item") == [("read", "pg_class")] * 2


def test_repairs_are_cancelled_while_the_service_is_stopped(site_with_repair: Site) -> None:
    assert site_with_repair.call("republish", "item", "--keys", "waits_in_the_log") == (0, [])
    assert site_with_repair.call("signal", "cancel") == (0, [])
    repairs = Repairs.parse(site_with_repair.checkpoint.repairs)
    assert not repairs.open
    assert repairs.ended["s"] == "cancelled"
    with site_with_repair.running() as service:
        service.until(
            lambda: list(Repairs.parse(site_with_repair.checkpoint.repairs).ended.values()).count("cancelled") == 2
        )
    assert site_with_repair.ops("item") == [("read", "pg_class")]


@pytest.fixture
def site_with_repair(database: str, tmp_path: Path) -> Site:
    """A table whose keys are names of tables (`regclass`), and a stopped service. The checkpoint has an open repair of
    three keys, and two of these are not names of tables.
    """
    site = Site(database, tmp_path)
    site.sql("CREATE TABLE item (id regclass PRIMARY KEY)", "INSERT INTO item VALUES ('pg_class')")
    site.configure('[entities.item]\ntable = "public.item"\n')
    with site.running() as service:
        service.until(site.is_read)
    sink = FileSink(site.log)
    checkpoint = sink.recover()
    assert checkpoint is not None
    repair = Repair(ids=("s",), start=str(checkpoint.position), keys=("no_such", "pg_class", "a.b.c.d"))
    sink.commit(replace(checkpoint, repairs=Repairs(open={"item": repair}, revision=1).to_json()))
    sink.close()
    return site
