"""Fixtures: a database with a table to stream, and a replication slot."""

import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.integration.stream.streams import connected, execute


@pytest.fixture(params=["18", "15"])
def dsn(request: pytest.FixtureRequest, starts_servers: None) -> str:
    """A fresh database with a table `t` and a publication `p`, on PostgreSQL 18 and on PostgreSQL 15."""
    fresh_dsn = request.getfixturevalue("database" if request.param == "18" else "database_15")
    assert isinstance(fresh_dsn, str)
    execute(fresh_dsn, "CREATE TABLE t (id int PRIMARY KEY, x text)", "CREATE PUBLICATION p FOR TABLE t")
    return fresh_dsn


@pytest.fixture
def slot(dsn: str) -> str:
    """A replication slot of the database."""
    name = f"slot_{conninfo_to_dict(dsn)['dbname']}"
    with connected(dsn) as connection:
        assert connection.create_slot(name) > 0
    return name
