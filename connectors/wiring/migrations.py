"""From the configuration to the planning of migrations, for the kinds of source that offer it.

Only `changelog schemas plan` comes here: the service imports neither this nor the servers that it starts.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from changelog.connectors.config import Config
from changelog.connectors.servers.postgres import temporary_server
from changelog.connectors.sources.migrations import Migrations
from changelog.connectors.sources.postgres.planning import PostgresMigrations
from changelog.connectors.wiring.sources import postgres_settings


def migrations(config: Config) -> Migrations:
    """What plans the migrations of the database that the configuration names; nothing is connected yet."""
    return PostgresMigrations(postgres_settings(config))


@contextmanager
def empty_server() -> Iterator[str]:
    """An empty server of the database's kind, as its connection string; it is gone afterwards."""
    with temporary_server(settings={"fsync": "off"}) as server:
        yield server.dsn()
