"""Tests the writer of docker-compose.yml: a script that changes the tables of the example database."""

import re
from pathlib import Path

import psycopg

SETUP = Path(__file__).parents[2] / "docs" / "compose"


def test_the_writer_stamps_its_changes_of_both_tables(database: str) -> None:
    """The test executes the writer's script 20 times, and reads the changes from the log."""
    script = (SETUP / "writer.sql").read_text("utf-8")
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute((SETUP / "postgres.sql").read_text("utf-8").encode())
        connection.execute("SELECT pg_create_logical_replication_slot(current_database(), 'test_decoding')")
        for _ in range(20):
            connection.execute(script.encode())
        changes = connection.execute(
            "SELECT data FROM pg_logical_slot_get_changes(current_database(), NULL, NULL)"
        ).fetchall()
    lines = [line for (line,) in changes]
    assert sum(line.startswith("message: transactional: 1 prefix: provenance") for line in lines) >= 20
    kinds = {match[1] for line in lines if (match := re.match(r"table public\.(\w+: \w+)", line))}
    assert kinds >= {"orders: INSERT", "orders: UPDATE", "orders: DELETE", "guest: UPDATE"}
