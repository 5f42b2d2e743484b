"""The program in docs/how-to/debezium-engine.md prints the changes of a table."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psycopg

from changelog.connectors.debezium.jars import CONNECTORS, default_folder
from tests.integration.debezium.site import create_table
from tests.patience import PATIENCE_S, until
from tests.servers import engine_jars

PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "debezium-engine.md").read_text("utf-8")


def test_the_program_prints_changes(database: str, starts_servers: None, tmp_path: Path) -> None:
    create_table(database, 1)
    [program] = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    parameters = psycopg.conninfo.conninfo_to_dict(database)
    for name, value in (
        ("hostname", parameters["host"]),
        ("port", parameters["port"]),
        ("dbname", parameters["dbname"]),
    ):
        program, count = re.subn(rf'("database.{name}": )[^,]+', rf'\g<1>"{value}"', program)
        assert count == 1
    environment = {**os.environ, "XDG_DATA_HOME": str(tmp_path / "data"), "PYTHONUNBUFFERED": "1"}
    folder = default_folder(CONNECTORS["postgres"], environment)
    folder.parent.mkdir(parents=True)
    folder.symlink_to(engine_jars("postgres"))
    output = tmp_path / "output"
    with output.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-c", program], cwd=tmp_path, env=environment, stdout=stream, stderr=stream
        )
    try:
        until(lambda: b"'op': 'r'" in output.read_bytes() or process.poll() is not None, "no row of the table")
        with psycopg.connect(database) as connection:
            connection.execute("UPDATE orders SET status = 'PAID'")
        until(lambda: b"'op': 'u'" in output.read_bytes() or process.poll() is not None, "no update")
        assert process.poll() is None, output.read_text("utf-8")
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE_S)
    [read, update] = re.findall(r"^shop\.public\.orders .*$", output.read_text("utf-8"), re.MULTILINE)
    assert read.startswith("shop.public.orders {'id': 1} {'before': None, 'after': {'id': 1, 'status': 'NEW'")
    assert "'after': {'id': 1, 'status': 'PAID'" in update
