"""Tests that the default timeouts of a role, a database or the server do not apply to the service's sessions."""

from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from changelog.connectors.sinks.files.log import read_log
from changelog.connectors.sources.postgres.session.connection import connect
from changelog.connectors.sources.postgres.stream.replication import ReplicationConnection
from changelog.connectors.sources.postgres.values.text_to_json import SETTINGS
from tests.integration.site import Site
from tests.servers import VERSIONS, fresh_database, server_name

TIMEOUTS = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "idle_session_timeout")
ROWS = 100_000
ITEM = """
[entities.item]
table = "public.item"
"""


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.usefixtures("starts_servers")
def test_the_services_sessions_have_no_timeouts(version: int, request: pytest.FixtureRequest) -> None:
    timeouts = (*TIMEOUTS, "transaction_timeout") if version >= 17 else TIMEOUTS
    with fresh_database(request.getfixturevalue(server_name(version))) as dsn:
        dsn_with_timeouts = make_conninfo(dsn, options=" ".join(f"-c {name}=1h" for name in timeouts))
        with connect(dsn_with_timeouts, settings=SETTINGS) as connection:
            assert {connection.execute(f"SHOW {name}".encode()).fetchone() for name in timeouts} == {("0",)}
        with closing(ReplicationConnection.connect(dsn_with_timeouts, settings=SETTINGS)) as replication:
            assert {replication.query(f"SHOW {name}")[0] for name in timeouts} == {("0",)}


@pytest.mark.parametrize("version", [pytest.param(17, marks=pytest.mark.xdist_group("postgres-17")), 18])
@pytest.mark.usefixtures("starts_servers")
def test_a_transaction_that_takes_longer_than_the_transaction_timeout_is_published(
    version: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    with fresh_database(request.getfixturevalue(server_name(version))) as dsn:
        site = Site(dsn, tmp_path)
        site.sql("CREATE TABLE item (id int PRIMARY KEY)")
        site.configure(ITEM, dsn=make_conninfo(dsn, options="-c transaction_timeout=100ms"))
        with site.running() as service:
            service.until(site.is_read)
            site.sql(f"INSERT INTO item SELECT generate_series(1, {ROWS})")
            service.until(lambda: site.checkpoint.position is not None and not site.checkpoint.partial)
        assert sum(rows.num_rows for rows in read_log(site.log, entity="item")) == ROWS


def test_the_creation_of_a_slot_waits_longer_than_the_lock_timeout(database: str, own_name: str) -> None:
    dsn_with_timeouts = make_conninfo(database, options="-c lock_timeout=100ms")
    with psycopg.connect(database) as writer:
        writer.execute("SELECT pg_current_xact_id()")

        def commit() -> bool:  # `create_slot` calls this function after two seconds of waiting
            writer.commit()
            return True

        with closing(ReplicationConnection.connect(dsn_with_timeouts, settings=SETTINGS)) as replication:
            assert replication.create_slot(own_name, excused=commit) > 0
