"""Tests the sessions that the source opens on a server: passwords, encryption, time limits, and missing answers."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest

from changelog.connectors import config
from changelog.connectors.servers.mysql import MysqlServer
from changelog.connectors.sources.mysql.session.address import Address
from changelog.connectors.sources.mysql.session.connection import Connection
from changelog.connectors.sources.mysql.session.packets import PacketPatience
from changelog.connectors.sources.mysql.session.results import read_text_rows
from changelog.connectors.sources.mysql.settings import Settings
from changelog.connectors.sources.mysql.snapshot import cut
from changelog.connectors.wiring.sources import database, read_entities
from changelog.envelope.errors import ChangelogError, Kind
from tests.integration.mysql.site import MysqlSite
from tests.patience import PATIENCE_S
from tests.servers.mysql import EVERY_VERSION

ENTITY = '[entities.item]\ntable = "item"\n'

NUMBERS = "WITH RECURSIVE n AS (SELECT 0 AS n UNION ALL SELECT n + 1 FROM n WHERE n < 199)"


@pytest.fixture
def site(mysql_server: MysqlServer, mysql_database: str, tmp_path: Path) -> MysqlSite:
    return MysqlSite(mysql_server, mysql_database, tmp_path)


def plugins(site: MysqlSite) -> list[str]:
    """Returns which of the usual authentication plugins the server has."""
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
    """Yields the name of an account with this plugin and password."""
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
            for _ in range(2):  # the second time, the server has the password in its cache, and does not ask for it
                with Connection(Address.parse(site.url(user, quote(password)))) as connection:
                    assert connection.query("SELECT DATABASE()") == [(site.database,)]


@EVERY_VERSION
@pytest.mark.parametrize("mode", ["PREFERRED", "REQUIRED"])
def test_a_session_without_verification_is_encrypted_and_loads_no_ca_certificates(site: MysqlSite, mode: str) -> None:
    with Connection(Address.parse(f"{site.dsn}?ssl-mode={mode}")) as connection:
        [(_, cipher)] = connection.query("SHOW STATUS LIKE 'Ssl_cipher'")
        assert cipher
        assert connection._link.ctx.get_ca_certs() == []


@EVERY_VERSION
@pytest.mark.parametrize("name", ["time", "max_join_size"])
def test_the_limits_of_a_server_do_not_apply_to_the_service(site: MysqlSite, name: str) -> None:
    time_limit = ("max_execution_time", "1") if site.server.flavour == "mysql" else ("max_statement_time", "0.001")
    site.sql(
        "CREATE TABLE item (id INT PRIMARY KEY, amount INT)",
        f"INSERT INTO item {NUMBERS} SELECT a.n * 200 + b.n, 1 FROM n AS a, n AS b",
    )
    site.snapshot_rows = 20_000
    site.configure(ENTITY)
    settings = config.load(site.config, {})
    with site.setting(*(time_limit if name == "time" else (name, "100"))):
        with site.running() as service:
            service.until(site.is_read)
            assert not service.said("reconnecting")
        opened = database(settings)
        with opened.fence(read_entities(settings, opened), deadline=time.monotonic() + PATIENCE_S) as fence:
            assert fence.is_of(site.checkpoint)
        with Connection(Address.parse(site.dsn)) as connection:
            assert connection.query("SELECT SLEEP(0.05)") == [(0,)]
    assert len(site.state("item")) == 200 * 200


@EVERY_VERSION
def test_a_session_outlives_the_servers_limit_for_idle_sessions(site: MysqlSite) -> None:
    settings = Settings(name=site.name, dsn=site.dsn, hmac_key=b"")
    with (
        site.setting("wait_timeout", "1"),
        settings.connect() as control,
        settings.connect_reading(settings.stopping) as reader,
    ):
        reader.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
        with site.server.connect() as other:  # this session becomes idle last, so the server ends it last
            other_id = other.thread_id()  # type: ignore[no-untyped-call]
            deadline = time.monotonic() + PATIENCE_S
            while other_id in {id_ for id_, *_ in site.sql("SHOW PROCESSLIST")}:
                assert time.monotonic() < deadline, "the server did not end an idle session"
                time.sleep(0.1)
        assert control.query("SELECT DATABASE()") == reader.query("SELECT DATABASE()") == [(site.database,)]


@EVERY_VERSION
def test_the_read_lock_of_a_lost_host_does_not_keep_writers_waiting(
    site: MysqlSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.sql("CREATE TABLE item (id INT PRIMARY KEY)")
    settings = Settings(name=site.name, dsn=site.dsn, hmac_key=b"")
    monkeypatch.setattr(cut, "LOST_S", 1)
    # The session that holds the lock sends nothing, like the session of a lost host, until the server ends it.
    with settings.connect() as control:
        with pytest.raises(ChangelogError) as raised, cut.read_lock(control):
            site.sql("SET SESSION lock_wait_timeout = 60", "INSERT INTO item VALUES (1)")
        assert raised.value.kind is Kind.CONNECTION
    with settings.connect() as control:
        [before] = control.query("SELECT @@session.wait_timeout")
        with cut.read_lock(control):
            assert control.query("SELECT @@session.wait_timeout") == [(1,)]
        assert control.query("SELECT @@session.wait_timeout") == [before]
        with pytest.raises(ZeroDivisionError), cut.read_lock(control):
            raise ZeroDivisionError
        assert control.query("SELECT @@session.wait_timeout") == [before]
        site.sql("INSERT INTO item VALUES (2)")


def test_a_read_without_an_answer_is_reported(site: MysqlSite) -> None:
    patience = PacketPatience(silence_s=0.3)
    with Connection(Address.parse(site.dsn), patience=patience) as reader:
        with pytest.raises(ChangelogError, match=r"reading a table: .*no answer for 0\.3 s") as raised:
            read_text_rows(reader, "SELECT SLEEP(60)", bytes_max=100)
        assert raised.value.kind is Kind.CONNECTION
        assert reader.closed


def test_the_service_says_that_a_table_read_got_no_answer(site: MysqlSite, monkeypatch: pytest.MonkeyPatch) -> None:
    connect_reading = Settings.connect_reading
    monkeypatch.setattr(
        Settings, "connect_reading", lambda self, stopping: connect_reading(replace(self, read_s=0.5), stopping)
    )
    site.sql("CREATE TABLE item (id INT PRIMARY KEY)", "INSERT INTO item VALUES (1)")
    site.configure(f'{ENTITY}where = "SLEEP(600) = 0"\n')
    with site.running() as service:
        service.until(lambda: any("no answer for 0.5 s" in str(event) for event in service.events()))
