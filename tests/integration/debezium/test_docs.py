"""Tests the examples in our documentation about Debezium.

The first example is a program that prints the changes of a table. The second is a configuration for SQL Server. No SQL
Server runs here; the test checks only that the connector starts and tries to connect.
"""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from changelog.connectors.debezium.jars import CONNECTORS, default_folder
from changelog.connectors.servers.unprivileged import free_port
from tests.integration.debezium.site import create_table
from tests.integration.site import Site
from tests.patience import PATIENCE_S, until
from tests.servers import engine_jars

HOW_TO = Path(__file__).parents[3] / "docs" / "how-to"
ENGINE_PAGE = (HOW_TO / "debezium-engine.md").read_text("utf-8")


def install(connector: str, data: Path) -> None:
    """Makes a link to the connector's jars. If $XDG_DATA_HOME is `data`, the service looks for them at this link."""
    folder = default_folder(CONNECTORS[connector], {"XDG_DATA_HOME": str(data)})
    folder.parent.mkdir(parents=True)
    folder.symlink_to(engine_jars(connector))


def test_the_program_prints_changes(database: str, starts_servers: None, tmp_path: Path) -> None:
    create_table(database, 1)
    [program] = re.findall(r"^```python\n(.*?)^```", ENGINE_PAGE, re.DOTALL | re.MULTILINE)
    parameters = psycopg.conninfo.conninfo_to_dict(database)
    for name, value in (
        ("hostname", parameters["host"]),
        ("port", parameters["port"]),
        ("dbname", parameters["dbname"]),
    ):
        program, count = re.subn(rf'("database.{name}": )[^,]+', rf'\g<1>"{value}"', program)
        assert count == 1
    environment = {**os.environ, "XDG_DATA_HOME": str(tmp_path / "data"), "PYTHONUNBUFFERED": "1"}
    install("postgres", tmp_path / "data")
    output = tmp_path / "output"
    with output.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-c", program], cwd=tmp_path, env=environment, stdout=stream, stderr=stream
        )
    try:
        until(
            lambda: b"'op': 'r'" in output.read_bytes() or process.poll() is not None,
            "the program prints no row of the table",
        )
        with psycopg.connect(database) as connection:
            connection.execute("UPDATE orders SET status = 'PAID'")
        until(lambda: b"'op': 'u'" in output.read_bytes() or process.poll() is not None, "the program prints no update")
        assert process.poll() is None, output.read_text("utf-8")
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE_S)
    [read, update] = re.findall(r"^shop\.public\.orders .*$", output.read_text("utf-8"), re.MULTILINE)
    assert read.startswith("shop.public.orders {'id': 1} {'before': None, 'after': {'id': 1, 'status': 'NEW'")
    assert "'after': {'id': 1, 'status': 'PAID'" in update


class DocumentedSite(Site):
    """A service with the configuration for SQL Server in docs/how-to/another-database.md."""

    def __init__(self, folder: Path, port: int) -> None:
        self.config = folder / "changelog.toml"
        [text] = re.findall(
            r'^```toml\n([^`]*?connector = "sqlserver"[^`]*?\[source.properties\].*?)^```',
            (HOW_TO / "another-database.md").read_text("utf-8"),
            re.DOTALL | re.MULTILINE,
        )
        text, count = re.subn(r'"mssql-1"', f'"127.0.0.1"\n"database.port" = {port}', text)
        assert count == 1
        self.config.write_text(f'service = {{ listen = "127.0.0.1:0" }}\n{text}', "utf-8")


def test_the_connector_for_sql_server_starts_and_looks_for_its_server(
    starts_servers: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("sqlserver", tmp_path / "data")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("MSSQL_PASSWORD", "secret")
    port = free_port()
    site = DocumentedSite(tmp_path, port)
    assert site.call("check") == (0, [])
    with site.running() as service:
        service.until(lambda: service.said("connection lost"))
    [error, *_] = [event["error"] for event in service.events() if event["event"] == "connection lost"]
    assert f"The TCP/IP connection to the host 127.0.0.1, port {port} has failed" in error
    assert "\n" not in error
    assert all("secret" not in str(event) for event in service.events())
