"""Tests a service that runs as two instances. While the first instance has no connection to the database, the second
one publishes. When the first instance continues, it must not report lost changes: the second instance has published
them.
"""

from contextlib import closing
from pathlib import Path

import psycopg
from psycopg.conninfo import make_conninfo

from changelog.connectors.servers.kafka import Broker
from changelog.connectors.servers.postgres import PostgresServer
from tests.integration.kafka.site import Site
from tests.patience import until
from tests.proxy import Proxy

ACTIVE_SLOT = "SELECT 1 FROM pg_replication_slots WHERE database = current_database() AND active"


def _sites(database: str, proxy: Proxy, broker: Broker, folder: Path) -> tuple[Site, Site]:
    """Returns two instances of one service, each with its own folder. Only the first one connects through the proxy."""
    sites = []
    for name, dsn in (("first", make_conninfo(database, host="127.0.0.1", port=proxy.port)), ("second", database)):
        (folder / name).mkdir()
        sites.append(Site(dsn, broker, folder / name, tables={"item": 2}))
    return sites[0], sites[1]


def test_changes_that_another_instance_published_are_not_a_gap(
    server: PostgresServer, database: str, broker: Broker, tmp_path: Path
) -> None:
    with psycopg.connect(database, autocommit=True) as sql, closing(Proxy("127.0.0.1", server.port)) as proxy:
        sql.execute("CREATE TABLE item (id int PRIMARY KEY, name text)")
        first, second = _sites(database, proxy, broker, tmp_path)
        with first.running() as first_service:
            first_service.until(first.is_read)
            proxy.stop()
            until(lambda: sql.execute(ACTIVE_SLOT).fetchone() is None, "the first instance still reads the slot")
            sql.execute("INSERT INTO item VALUES (1, 'while the first is away')")
            with second.running() as second_service:
                second_service.until(lambda: len(second.records("item")) == 1)
                sql.execute("ALTER TABLE item ADD weight int")
                sql.execute("INSERT INTO item VALUES (2, 'with a new version of the columns', 5)")
                second_service.until(lambda: len(second.records("item")) == 2)
            proxy.resume()
            sql.execute("INSERT INTO item VALUES (3, 'the first goes on', 7)")
            first_service.until(lambda: len(second.records("item")) == 3)
        assert second.state("item") == second.table("item") | {"1": {"id": 1, "name": "while the first is away"}}
        versions = [version.place.key for version in second.records("schemas")]
        assert versions == ["item", "item"], "the first instance announced the same version as the second one"
