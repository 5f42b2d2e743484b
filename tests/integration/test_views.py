"""Tests that `changelog views serve` answers with the rows that PostgreSQL has, while the service publishes changes of
these rows.
"""

import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any

import psycopg
import pytest

from changelog.connectors import config
from tests.integration.site import Site
from tests.unit.views.running import Api, running

TABLES = """
[entities.thing]
table = "public.thing"
on_truncate = "publish"
[entities.part]
table = "public.part"
"""


@pytest.fixture
def site(database: str, tmp_path: Path) -> Site:
    site = Site(database, tmp_path)
    site.sql(
        "CREATE TABLE thing (id bigint PRIMARY KEY, name text, amount numeric, large text)",
        "ALTER TABLE thing ALTER large SET STORAGE EXTERNAL",
        "CREATE TABLE part (thing_id bigint, place text, PRIMARY KEY (thing_id, place))",
        "INSERT INTO thing SELECT n, 'read', 12345678901234567890.5, repeat('x', 9000) FROM generate_series(1, 20) n",
    )
    site.configure(f"{TABLES}\n[serve]\nport = 0")
    return site


def run(site: Site, *statements: str) -> str:
    """Runs statements. Returns the position at which the database's log ends after them. A client that sends this
    position as `min_position` reads its own writes.
    """
    [(lsn,)] = site.sql(*statements, "SELECT pg_current_wal_insert_lsn()::text")
    return str(lsn)


def rows(api: Api, target: str) -> dict[str, Any]:
    return {row["key"]: row["current"] for row in api.rows(target)}


def test_a_writer_reads_its_own_writes(site: Site) -> None:
    with site.running() as service:
        service.until(site.is_read)
        with running(config.load(site.config, {}), wait_s=120) as api:

            def read_after(*statements: str, target: str = "/thing/7") -> Any:
                answer = api.get(f"{target}?min_position={run(site, *statements)}")
                assert answer.status in (200, 404)
                return None if answer.status == 404 else answer.json

            row = read_after("SELECT 1")
            assert (row["current"]["name"], row["current"]["amount"]) == ("read", "12345678901234567890.5")
            row = read_after("UPDATE thing SET name = 'changed' WHERE id = 7")
            assert (row["current"]["name"], row["current"]["large"], row["unavailable"]) == ("changed", "x" * 9000, [])
            assert read_after("DELETE FROM thing WHERE id = 7") is None
            assert read_after("INSERT INTO thing (id, name) VALUES (7, 'again')")["current"]["name"] == "again"
            assert read_after("UPDATE thing SET id = 70 WHERE id = 7") is None
            assert read_after("SELECT 1", target="/thing/70")["current"]["id"] == 70
            row = read_after("INSERT INTO part VALUES (1, 'a/b ü')", target="/part/1/a%2Fb%20%C3%BC")
            assert json.loads(row["key"]) == ["1", "a/b ü"]
            assert read_after("TRUNCATE thing", target="/thing/1") is None
            assert rows(api, "/thing") == {}
            assert read_after("INSERT INTO thing (id) VALUES (1)", target="/thing/1")["current"]["name"] is None


def test_pages_of_rows_can_be_read_while_rows_change(site: Site) -> None:
    with site.running() as service:
        service.until(site.is_read)
        with running(config.load(site.config, {}), wait_s=120) as api:
            position = run(site, "SELECT 1")
            first = api.get(f"/thing?limit=5&min_position={position}").json
            assert [row["key"] for row in first["rows"]] == ["1", "10", "11", "12", "13"]
            position = run(
                site,
                "DELETE FROM thing WHERE id IN (12, 14)",
                "UPDATE thing SET name = 'later' WHERE id = 15",
                "INSERT INTO thing (id, name) VALUES (100, 'before the page'), (160, 'in the page')",
            )
            second = api.get(f"{first['next']}&min_position={position}").json
            assert [(row["key"], row["current"]["name"]) for row in second["rows"]] == [
                ("15", "later"),
                ("16", "read"),
                ("160", "in the page"),
                ("17", "read"),
                ("18", "read"),
            ]
            keys = {str(id_) for (id_,) in site.sql("SELECT id FROM thing")}
            assert rows(api, "/thing?limit=3").keys() == keys


def test_the_code_in_the_documentation_reads_its_own_write(site: Site) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "serve-views.md").read_text("utf-8")
    block = re.compile(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", re.DOTALL | re.MULTILINE)
    _, (code, output) = block.findall(page)
    site.sql("CREATE TABLE orders (id int PRIMARY KEY, status text)", "INSERT INTO orders VALUES (42, 'PAID')")
    site.configure('[tables]\ninclude = ["public.orders"]\n[serve]\nport = 0')
    with site.running() as service:
        service.until(site.is_read)
        with (
            running(config.load(site.config, {}), wait_s=120) as api,
            psycopg.connect(site.dsn) as connection,
            contextlib.redirect_stdout(io.StringIO()) as stdout,
        ):
            exec(code, {"API": api.address, "connection": connection})
    assert stdout.getvalue() == output
