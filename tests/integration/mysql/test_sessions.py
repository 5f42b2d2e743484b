"""Sessions of the source on servers whose accounts and settings are not the usual ones."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

from changelog.connectors.servers.mysql import Server
from changelog.connectors.sources.mysql.session.address import Address
from changelog.connectors.sources.mysql.session.connection import Connection
from tests.integration.mysql.site import MysqlSite
from tests.servers.mysql import EVERY_VERSION


@pytest.fixture
def site(mysql_server: Server, mysql_database: str, tmp_path: Path) -> MysqlSite:
    return MysqlSite(mysql_server, mysql_database, tmp_path)


def plugins(site: MysqlSite) -> list[str]:
    """Returns the usual ways in which the server stores passwords."""
    names = "'mysql_native_password', 'caching_sha2_password'"
    return [
        name
        for (name,) in site.sql(
            "SELECT PLUGIN_NAME FROM information_schema.PLUGINS"
            f" WHERE PLUGIN_NAME IN ({names}) AND PLUGIN_STATUS = 'ACTIVE'"
        )
    ]


@contextmanager
def account(site: MysqlSite, plugin: str, password: str) -> Iterator[str]:
    """Yields the name of an account."""
    name = f"u_{site.database[5:]}"
    secret = f"USING PASSWORD('{password}')" if site.server.flavour == "mariadb" else f"BY '{password}'"
    site.sql(f"CREATE USER {name} IDENTIFIED WITH {plugin} {secret}", f"GRANT ALL ON {site.database}.* TO {name}")
    try:
        yield name
    finally:
        site.sql(f"DROP USER {name}")


@EVERY_VERSION
@pytest.mark.parametrize("password", ["Grüße", "5 €", "пароль", "😀", "plain"])
def test_a_password_may_have_any_characters(site: MysqlSite, password: str) -> None:
    assert plugins(site)
    for plugin in plugins(site):
        with account(site, plugin, password) as user:
            for _ in range(2):  # the server then knows the password, and asks for less
                with Connection(Address.parse(site.url(user, quote(password)))) as connection:
                    assert connection.query("SELECT DATABASE()") == [(site.database,)]
