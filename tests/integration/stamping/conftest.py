"""Fixtures for the tests of stamps: databases with a table whose changes a trigger stamps."""

from collections.abc import Iterator

import pytest
from psycopg import sql

from changelog.connectors.servers.postgres import PostgresServer
from tests.integration.stamping.logged import ROLE, StampedDatabase, Tables, stamped_database
from tests.servers import fresh_database


@pytest.fixture
def stamped(database: str, own_name: str) -> Iterator[StampedDatabase]:
    """A fresh database with a table `t`. The table has the trigger that stamps changes."""
    with stamped_database(database, own_name) as stamped:
        yield stamped


@pytest.fixture(scope="module")
def shared(server: PostgresServer) -> Iterator[StampedDatabase]:
    """A database like `stamped` that all tests of a module share.

    Each test reads all changes that it makes, so the next test finds none of them.
    """
    with fresh_database(server) as dsn, stamped_database(dsn, "stamps_shared") as stamped:
        yield stamped


@pytest.fixture(scope="module")
def tables(shared: StampedDatabase) -> Iterator[Tables]:
    """The tables of `shared`, and a role that may only insert into them."""
    shared.admin.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(ROLE)))
    try:
        yield Tables(shared)
    finally:
        shared.admin.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(sql.Identifier(ROLE)))
