"""Tests that Debezium's JDBC sink, in a real Kafka Connect, can read our topics of Debezium's events and of flat rows.

The sink writes a table from each topic, and these tables must equal those that our service publishes.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from changelog.connectors.servers.kafka import Broker
from changelog.connectors.servers.postgres import PostgresServer
from changelog.connectors.sources.postgres.admin.signals import send
from changelog.envelope.signal import Signal
from tests.integration.kafka.site import Site
from tests.patience import until
from tests.servers import fetched, fresh_database
from tests.servers.connect import Connect, temporary_connect

ENVELOPES = ("debezium", "flat")

COLUMNS = """
    id bigint, code text, name text, amount numeric(12,2), price double precision, day date, at timestamp,
    seen timestamptz, hour time, flag boolean, data bytea, tag uuid, doc jsonb, small int
"""

ROW = """
    (n, 'c' || n, 'item ''' || n || ''' é "q" \\ ' || chr(10), n / 4.0, n / 3.0, date '2026-11-21' - n * 1000,
     timestamp '2026-11-21 03:10:02.5' - n * interval '1000 days 1 second', timestamptz '2026-11-21 03:10:02.000001+02',
     time '03:10:02.25', n % 2 = 0, '\\x00ff10', md5(n::text)::uuid, jsonb_build_object('n', n, 'é', null), -n)
"""


@pytest.fixture
def target(server: PostgresServer) -> Iterator[str]:
    """The connection string of the database that the sinks write to."""
    with fresh_database(server) as dsn:
        yield dsn


def rows(dsn: str, table: str) -> list[tuple[Any, ...]]:
    """Returns the rows of a table, sorted by key, with the columns in the order of the source. Returns no rows if there
    is no such table.
    """
    with psycopg.connect(dsn, options="-c timezone=UTC") as connection:
        if connection.execute("SELECT to_regclass(%s)", [table]).fetchone() == (None,):
            return []
        names = "id, code, name, amount, price, day, at, seen, hour, flag, data, tag, doc::jsonb, small"
        return connection.execute(f"SELECT {names} FROM {table} ORDER BY id, code".encode()).fetchall()


def sink(envelope: str, topic: str, target: str) -> dict[str, str]:
    """Returns the properties of the sink that writes a topic to the table `from_ENVELOPE`."""
    parts = conninfo_to_dict(target)
    return {
        "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector",
        "topics": topic,
        "connection.url": f"jdbc:postgresql://{parts['host']}:{parts['port']}/{parts['dbname']}",
        "connection.username": str(parts["user"]),
        "connection.password": "",
        "connection.pool.min_size": "1",
        "connection.pool.max_size": "2",
        "insert.mode": "upsert",
        "delete.enabled": "true",
        "primary.key.mode": "record_key",
        "schema.evolution": "basic",
        "collection.name.format": f"from_{envelope}",
    }


def test_the_tables_of_the_sinks_equal_their_sources(
    database: str, target: str, broker: Broker, tmp_path: Path
) -> None:
    jars = fetched("debezium-jdbc") / "lib"
    flat = Site(database, broker, tmp_path, tables={"item": 2}, suffix="_flat", envelope="flat")
    source = Site(
        database,
        broker,
        tmp_path,
        tables={"item": 2, "note": 1},
        suffix="_debezium",
        envelope="debezium",
        rest='on_truncate = "publish"',
    )
    sites = {"debezium": source, "flat": flat}
    source.sql(
        f"CREATE TABLE item ({COLUMNS}, PRIMARY KEY (id, code))",
        "ALTER TABLE item REPLICA IDENTITY FULL",
        f"INSERT INTO item SELECT {ROW.strip()[1:-1]} FROM generate_series(1, 40) AS n",
        "INSERT INTO item (id, code) VALUES (100, '')",
        "CREATE TABLE note (id int PRIMARY KEY, text text)",
        "INSERT INTO note VALUES (1, 'a'), (2, 'b')",
    )
    for site in sites.values():
        with site.running() as service:
            service.until(site.is_read)
    sinks = {envelope: sink(envelope, f"{site.settings.name}.item", target) for envelope, site in sites.items()}
    sinks["notes"] = {**sink("notes", f"{source.settings.name}.note", target), "truncate.enabled": "true"}
    with temporary_connect(jars, broker.bootstrap_servers, sinks) as connect:
        wait_until_equal(connect, database, target)
        source.sql(
            "UPDATE item SET name = upper(name), amount = -amount, doc = '[1, null]' WHERE id % 3 = 0",
            "UPDATE item SET id = id + 200, code = code || 'm' WHERE id BETWEEN 4 AND 9",
            "DELETE FROM item WHERE id BETWEEN 20 AND 25",
            "INSERT INTO item (id, code, name) VALUES (20, 'c20', 'again'), (500, 'new', '')",
            "UPDATE item SET small = NULL, data = '' WHERE id = 30",
            "TRUNCATE note",
            "INSERT INTO note VALUES (2, 'c')",
        )
        publish(sites)
        wait_until_equal(connect, database, target)
        with psycopg.connect(target, autocommit=True) as connection:
            for envelope in ENVELOPES:
                connection.execute(f"UPDATE from_{envelope} SET name = 'drifted' WHERE id = 31".encode())
                connection.execute(f"DELETE FROM from_{envelope} WHERE id = 32".encode())
        publish(sites, Signal(do="rebuild", id="r", entity="item"))
        wait_until_equal(connect, database, target)


def notes(dsn: str, table: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn) as connection:
        if connection.execute("SELECT to_regclass(%s)", [table]).fetchone() == (None,):
            return []
        return connection.execute(f"SELECT id, text FROM {table} ORDER BY id".encode()).fetchall()


def publish(sites: dict[str, Site], signal: Signal | None = None) -> None:
    """Sends the signal to the services. Then runs each service until it has done what the signal asks. By then, it has
    published all earlier changes. Without `signal`, the services are asked to publish one row again.
    """
    if signal is None:
        signal = Signal(do="republish", id="k", entity="item", keys=('["500","new"]',))
    with psycopg.connect(sites["debezium"].dsn, autocommit=True) as connection:
        send(connection, signal, None)
    for site in sites.values():
        with site.running() as service:
            service.until(lambda site=site: site.ended(signal.id))  # type: ignore[misc]


def wait_until_equal(connect: Connect, source: str, target: str) -> None:
    """Waits until the table of each sink equals its source."""
    until(lambda: notes(target, "from_notes") == notes(source, "note"), f"the notes differ: {connect.errors()}")
    for envelope in ENVELOPES:
        expected_rows = rows(source, "item")

        def is_equal(envelope: str = envelope, expected_rows: list[tuple[Any, ...]] = expected_rows) -> bool:
            return rows(target, f"from_{envelope}") == expected_rows

        try:
            until(is_equal, f"the table from {envelope} does not equal its source")
        except AssertionError as error:
            differences = set(map(repr, rows(target, f"from_{envelope}"))) ^ set(map(repr, expected_rows))
            raise AssertionError(f"{error}\n{connect.errors()}\n" + "\n".join(sorted(differences)[:6])) from error
