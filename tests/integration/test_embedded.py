"""Tests the embedded PostgreSQL, which needs no installation: it starts, stops, and recovers from a crash."""

import os
import shutil
from pathlib import Path

import psycopg
import pytest

from changelog.connectors.servers.postgres import PostgresServer, find_bin, temporary_server
from changelog.envelope.errors import ChangelogError, Kind


def test_a_server_is_ready_for_logical_decoding(database: str) -> None:
    with psycopg.connect(database) as connection:
        assert connection.execute("SHOW wal_level").fetchone() == ("logical",)
        assert connection.info.server_version >= 180000


def test_the_older_server_is_postgresql_15(database_15: str) -> None:
    with psycopg.connect(database_15) as connection:
        assert connection.info.server_version // 10000 == 15


@pytest.mark.usefixtures("starts_servers")
def test_committed_rows_survive_a_crash_and_a_restart() -> None:
    with temporary_server() as server:
        folder = server.data_dir.parent
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute("CREATE TABLE t AS SELECT 1 AS a")
            pid, port = server.pid, server.port
            server.kill()
        server.start()
        assert (server.pid != pid, server.port) == (True, port)
        server.stop()
        assert not server.running
        server.start()
        with psycopg.connect(server.dsn()) as connection:
            assert connection.execute("SELECT a FROM t").fetchone() == (1,)
    assert not folder.exists()


@pytest.mark.usefixtures("starts_servers")
def test_a_server_that_cannot_start_says_why() -> None:
    with (
        pytest.raises(ChangelogError, match=r"did not start: .*wal_level") as raised,
        temporary_server(settings={"wal_level": "nonsense"}),
    ):
        pass
    assert raised.value.kind is Kind.PRECONDITION


def test_a_program_that_fails_says_why(server: PostgresServer) -> None:
    with pytest.raises(ChangelogError, match=r"pg_basebackup failed: .*"):
        server.run("pg_basebackup", "--nonsense")


def test_programs_come_from_the_wheel() -> None:
    assert (find_bin() / "pg_recvlogical").exists()
    assert isinstance(find_bin(), Path)


@pytest.mark.usefixtures("starts_servers")
@pytest.mark.skipif(os.geteuid() != 0, reason="the server runs as another user only if root runs the tests")
def test_a_server_starts_although_its_wheel_is_in_a_private_folder(tmp_path: Path) -> None:
    package = find_bin().parent.parent
    for name in (package.name, f"{package.name}.libs"):
        shutil.copytree(package.parent / name, tmp_path / name)
    tmp_path.chmod(0o700)
    with temporary_server(tmp_path / package.name / "pginstall" / "bin") as server:
        assert not server.bin_dir.is_relative_to(tmp_path)
