"""Starts the MySQL and MariaDB servers that integration tests run against, and creates fresh databases in them."""

import contextlib
import uuid
from collections.abc import Iterator, Mapping
from typing import Final

import pytest

from changelog.connectors.servers.mysql import Flavour, MysqlServer, temporary_server
from tests.servers import fetched

FLAVOURS: Final[tuple[Flavour, ...]] = ("mariadb", "mysql")

OTHER_VERSIONS: Final = ("mariadb-10.11", "mariadb-11.8", "mysql-9")


def on_versions(*versions: str) -> pytest.MarkDecorator:
    """Returns a mark for tests that use the fixture `mysql_server`. Each of them then runs once on each version.

    All tests on one of OTHER_VERSIONS run in the same worker, so that this server is started only once.
    """
    groups = {version: [pytest.mark.xdist_group(version)] for version in OTHER_VERSIONS}
    params = [pytest.param(version, marks=groups.get(version, [])) for version in versions]
    return pytest.mark.parametrize("mysql_server", params, indirect=True)


EVERY_VERSION: Final = on_versions(*FLAVOURS, *OTHER_VERSIONS)

SETTINGS: Final = {"innodb_flush_method": "nosync", "performance_schema": "OFF", "sync_binlog": "0"}
"""Settings that save time and memory. No test cuts the machine's power, so nothing needs to be synced to disk. Without
the performance schema, MySQL needs 100 MB of memory instead of 380 MB.
"""


@contextlib.contextmanager
def mysql_server(version: str, settings: Mapping[str, str] | None = None) -> Iterator[MysqlServer]:
    """Yields a running server of this version, and stops it afterwards. Skips or fails the test if it was not fetched.

    `version` is one of FLAVOURS or OTHER_VERSIONS. `settings` are added to SETTINGS.
    """
    home = fetched(version)
    flavour: Flavour = "mariadb" if version.startswith("mariadb") else "mysql"
    own_settings = {**SETTINGS, **(settings or {})}
    with temporary_server(flavour, home, settings=own_settings, templates=home / "templates") as server:
        yield server


@contextlib.contextmanager
def fresh_mysql_database(server: MysqlServer) -> Iterator[str]:
    """Yields the name of a new, empty database. Drops it afterwards."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    with server.connect() as connection, connection.cursor() as admin:
        admin.execute(f"CREATE DATABASE {name}")
    yield name
    server.start()
    with server.connect() as connection, connection.cursor() as admin:
        admin.execute(f"DROP DATABASE {name}")


def version_of(server: MysqlServer) -> tuple[int, int]:
    """Asks the server for the first two numbers of its version."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT VERSION()")
        [(version,)] = cursor.fetchall()
    major, minor, *_ = version.split(".")
    return int(major), int(minor)
