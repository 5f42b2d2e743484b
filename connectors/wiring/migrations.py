"""Opens what `changelog schemas plan` needs to try a migration and roll it back. So far, only PostgreSQL is supported.

Only that command imports this module. So the service does not import `connectors.servers`, which this module needs.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from changelog.connectors.config import Config
from changelog.connectors.servers.postgres import temporary_server
from changelog.connectors.sources.migrations import Migrations
from changelog.connectors.sources.postgres.planning import PostgresMigrations
from changelog.connectors.wiring.sources import postgres_settings


def migrations(config: Config) -> Migrations:
    """Returns an object that tries migrations on the database that the configuration names. Does not connect yet.

    Raises ChangelogError (USAGE) if the database is not PostgreSQL.
    """
    return PostgresMigrations(postgres_settings(config))


@contextmanager
def empty_server() -> Iterator[str]:
    """Starts an empty PostgreSQL server, yields its connection string, and deletes the server afterwards."""
    with temporary_server(settings={"fsync": "off"}) as server:
        yield server.dsn()
