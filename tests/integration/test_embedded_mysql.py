"""Tests the embedded MariaDB and MySQL, which need no installation: they start, stop, and recover from a crash."""

import os
import shutil
import ssl
import threading
from pathlib import Path

import pymysql
import pytest

from changelog.connectors.servers.mysql import IN_USE, PROGRAMS, Flavour, MysqlServer, find_home, temporary_server
from changelog.connectors.servers.unprivileged import identity
from changelog.envelope.errors import ChangelogError, Kind
from tests.patience import PATIENCE_S, until
from tests.servers import fetched
from tests.servers.mysql import FLAVOURS, mysql_server

EACH_FLAVOUR = pytest.mark.parametrize("flavour", FLAVOURS)


def value(server: MysqlServer, expression: str, database: str | None = None) -> object:
    """Returns the value that the server selects for `expression`."""
    with server.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT {expression}")
        row = cursor.fetchone()
    assert row is not None
    return row[0]


def test_a_server_writes_the_log_that_a_changelog_needs(mysql_server: MysqlServer, mysql_database: str) -> None:
    assert value(mysql_server, "DATABASE()", mysql_database) == mysql_database
    for name in ("binlog_format", "binlog_row_image", "binlog_row_metadata"):
        assert value(mysql_server, f"@@global.{name}") == mysql_server.settings[name]
    assert value(mysql_server, "@@global.log_bin") == 1
    if mysql_server.flavour == "mysql":
        assert str(value(mysql_server, "VERSION()")).startswith("8.0.")
        assert value(mysql_server, "@@global.gtid_mode") == "ON"
    else:
        assert str(value(mysql_server, "VERSION()")).startswith("11.4.5-MariaDB")
        assert value(mysql_server, "@@global.gtid_strict_mode") == 1


def test_a_server_runs_without_the_rights_of_root(mysql_server: MysqlServer) -> None:
    user, _ = identity()
    assert Path(f"/proc/{mysql_server.pid}").stat().st_uid == (os.geteuid() if user is None else user)


def test_clients_can_verify_the_server(mysql_server: MysqlServer) -> None:
    context = ssl.create_default_context(cafile=mysql_server.ca)
    session = pymysql.connect(host="localhost", port=mysql_server.port, user="root", ssl=context)
    with session as connection, connection.cursor() as cursor:
        cursor.execute("SHOW STATUS LIKE 'Ssl_cipher'")
        assert cursor.fetchone() != ("Ssl_cipher", "")


@EACH_FLAVOUR
@pytest.mark.usefixtures("starts_servers")
def test_committed_rows_survive_a_crash_and_a_restart(flavour: Flavour) -> None:
    with mysql_server(flavour) as server:
        folder = server.data_dir.parent
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE d")
            cursor.execute("CREATE TABLE d.t (a INT PRIMARY KEY)")
            cursor.execute("INSERT INTO d.t VALUES (1)")
            pid, port = server.pid, server.port
            server.kill()
            server.start()
        assert (server.pid != pid, server.port) == (True, port)
        server.stop()
        assert not server.running
        server.start()
        assert value(server, "a FROM d.t") == 1
    assert not folder.exists()


@EACH_FLAVOUR
@pytest.mark.usefixtures("starts_servers")
def test_a_server_that_cannot_start_says_why(flavour: Flavour) -> None:
    with (
        pytest.raises(ChangelogError, match=r"did not start: .*binlog_nonsense") as raised,
        mysql_server(flavour, {"binlog_nonsense": "1"}),
    ):
        pass
    assert raised.value.kind is Kind.PRECONDITION


@EACH_FLAVOUR
@pytest.mark.usefixtures("starts_servers")
def test_the_error_of_a_data_folder_that_cannot_be_initialised_says_why(flavour: Flavour, tmp_path: Path) -> None:
    program = tmp_path / "home" / "bin" / PROGRAMS[flavour]
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho 'libaio.so.1: cannot open shared object file' >&2\nexit 127\n")
    program.chmod(0o755)
    with (
        pytest.raises(ChangelogError, match=r"cannot initialise .*/data: libaio.so.1: cannot open") as raised,
        temporary_server(flavour, tmp_path / "home"),
    ):
        pass
    assert raised.value.kind is Kind.PRECONDITION


@EACH_FLAVOUR
@pytest.mark.usefixtures("starts_servers")
def test_two_servers_of_one_template_have_ids_of_their_own(flavour: Flavour) -> None:
    identifier = "@@global.server_uid" if flavour == "mariadb" else "@@global.server_uuid"
    with mysql_server(flavour) as one, mysql_server(flavour) as other:
        assert value(one, identifier) != value(other, identifier)


@EACH_FLAVOUR
@pytest.mark.usefixtures("starts_servers")
def test_a_server_waits_while_another_server_has_its_port(flavour: Flavour) -> None:
    with mysql_server(flavour) as one, mysql_server(flavour) as other:
        other.stop()
        other.port = one.port
        start = threading.Thread(target=other.start)
        start.start()
        until(
            lambda: IN_USE in other.log.read_text("utf-8", "replace"), "the server does not see that its port is used"
        )
        one.stop()
        start.join(PATIENCE_S)
        assert value(other, "@@port") == one.port


@EACH_FLAVOUR
@pytest.mark.usefixtures("starts_servers")
def test_the_start_of_a_server_keeps_the_temporary_tables_of_other_servers(flavour: Flavour) -> None:
    with mysql_server(flavour) as server, server.connect("mysql") as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TEMPORARY TABLE scratch ENGINE = MyISAM AS SELECT 7")
        with mysql_server(flavour):
            cursor.execute("ALTER TABLE scratch ADD COLUMN more INT")
        assert cursor.execute("SELECT * FROM scratch") == 1
        cursor.execute("SHOW DATABASES")
        assert {name for (name,) in cursor.fetchall()} == {"information_schema", "mysql", "performance_schema", "sys"}


@pytest.mark.usefixtures("starts_servers")
@pytest.mark.skipif(os.geteuid() != 0, reason="the server runs as another user only if root runs the tests")
def test_a_server_starts_although_its_programs_are_in_a_private_folder(tmp_path: Path) -> None:
    home = tmp_path / "mariadb"
    shutil.copytree(fetched("mariadb"), home, copy_function=os.link)
    tmp_path.chmod(0o700)
    with pytest.raises(ChangelogError, match="cannot read") as raised:
        MysqlServer("mariadb", home, tmp_path / "data").start()
    assert raised.value.kind is Kind.ACCESS
    with temporary_server("mariadb", home) as server:
        assert not server.home.is_relative_to(tmp_path)


@EACH_FLAVOUR
def test_the_error_for_missing_programs_names_the_variable(
    flavour: Flavour, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable = f"CHANGELOG_{flavour.upper()}_HOME"
    monkeypatch.setenv(variable, str(tmp_path))
    with pytest.raises(ChangelogError, match=rf"no bin/m\w+d in {tmp_path}; .*{variable}"):
        find_home(flavour)
