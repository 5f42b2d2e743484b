"""The MySQL and MariaDB servers that integration tests run against, and fresh databases in them."""

import contextlib
import uuid
from collections.abc import Iterator, Mapping
from typing import Final

from changelog.connectors.servers.mysql import Flavour, Server, temporary_server
from tests.servers import fetched

FLAVOURS: Final[tuple[Flavour, ...]] = ("mariadb", "mysql")

SETTINGS: Final = {"innodb_flush_method": "nosync", "performance_schema": "OFF", "sync_binlog": "0"}
"""No test cuts the machine's power, so nothing must be synced. Without the performance schema, MySQL needs 100 MB of
memory instead of 380 MB.
"""


@contextlib.contextmanager
def mysql_server(flavour: Flavour, settings: Mapping[str, str] | None = None) -> Iterator[Server]:
    """Runs a server of its own for a test that restarts it, removes its log or changes global settings.

    `settings` are added to SETTINGS. Skips or fails the test if the server was not fetched.
    """
    home = fetched(flavour)
    own_settings = {**SETTINGS, **(settings or {})}
    with temporary_server(flavour, home, settings=own_settings, templates=home / "templates") as server:
        yield server


@contextlib.contextmanager
def fresh_mysql_database(server: Server) -> Iterator[str]:
    """Yields the name of a new, empty database. Drops it afterwards."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    with server.connect() as connection, connection.cursor() as admin:
        admin.execute(f"CREATE DATABASE {name}")
    yield name
    server.start()
    with server.connect() as connection, connection.cursor() as admin:
        admin.execute(f"DROP DATABASE {name}")
