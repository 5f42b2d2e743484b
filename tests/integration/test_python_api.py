"""Tests that the Python API returns the rows that a PostgreSQL table has now, or had at an earlier position."""

import json
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

import changelog
from changelog.envelope.model import position_of
from tests.integration.site import Site
from tests.patience import PATIENCE_S

TYPES = {
    "id": "bigint PRIMARY KEY",
    "flag": "boolean",
    "small": "smallint",
    "ratio": "double precision",
    "amount": "numeric(12,2)",
    "name": "text",
    "blob": "bytea",
    "code": "uuid",
    "day": "date",
    "clock": "time",
    "at": "timestamp",
    "at_zone": "timestamptz",
    "doc": "jsonb",
    "numbers": "int[]",
    '"odd ""name"': "text",
    "large": "text",
}
"""Columns of a table, and their types. The values of `large` are stored outside the row, so the log lacks them if an
UPDATE does not change them.
"""

FILL = """
    INSERT INTO things SELECT n, n % 2 = 0, n, n / 3.0, n * 1.25, 'é "' || n, int8send(n), gen_random_uuid(),
      DATE '2026-11-21' + n::int, TIME '03:10:02.5', TIMESTAMP '2026-11-21 03:10' + n * INTERVAL '1 s',
      TIMESTAMPTZ '2026-11-21 03:10Z' + n * INTERVAL '1 s', jsonb_build_object('n', n, 'tags', array[n, NULL]),
      ARRAY[n, NULL]::int[], NULL, repeat(md5(n::text), 400)
    FROM generate_series(1, 30) AS n
"""
STEPS = (
    "UPDATE things SET amount = 0 WHERE id % 3 = 0",
    "DELETE FROM things WHERE id % 5 = 0",
    "UPDATE things SET id = id + 100, name = 'moved' WHERE id % 7 = 0",
    "INSERT INTO things (id, name) VALUES (5, 'again')",
    "TRUNCATE things",
    FILL,
    'UPDATE things SET "odd ""name" = \'x\' WHERE id < 9',
)


@pytest.fixture
def site(database: str, tmp_path: Path) -> Site:
    site = Site(database, tmp_path)
    columns = ", ".join(f"{name} {type_}" for name, type_ in TYPES.items())
    site.sql(f"CREATE TABLE things ({columns})", "ALTER TABLE things ALTER large SET STORAGE EXTERNAL", FILL)
    site.sql("CREATE TABLE mark (id int PRIMARY KEY)")
    site.configure(
        '[entities.mark]\ntable = "public.mark"\n[entities.things]\ntable = "public.things"\non_truncate = "publish"\n'
    )
    return site


def rows_of_server(site: Site) -> list[dict[str, Any]]:
    """Returns the rows that the server has now. Values of types that Arrow lacks are converted to text."""
    with psycopg.connect(site.dsn) as connection:
        connection.execute("SET TIME ZONE 'UTC'")
        cursor = connection.cursor(row_factory=psycopg.rows.dict_row)
        rows = cursor.execute("SELECT * FROM things ORDER BY id").fetchall()
    return [
        row
        | {
            "code": row["code"] and str(row["code"]),
            "clock": row["clock"] and row["clock"].isoformat().rstrip("0"),
        }
        for row in rows
    ]


def assert_equal(table: pa.Table, expected: list[dict[str, Any]]) -> None:
    """Checks that `table` has the expected rows. A row that an UPDATE moved to another key lacks `large`, because the
    log did not repeat this value.
    """
    rows = table.sort_by("id").to_pylist()
    assert [row["id"] for row in rows] == [row["id"] for row in expected]
    for row, server_row in zip(rows, expected, strict=True):
        unavailable = row["_unavailable"]
        assert unavailable == (["large"] if row["name"] == "moved" else [])
        values = {name: row[name] for name in server_row} | {"doc": row["doc"] and json.loads(row["doc"])}
        assert values == server_row | dict.fromkeys(unavailable)


def test_tables_have_the_rows_of_the_server(site: Site) -> None:
    snapshots: list[tuple[changelog.Position, list[dict[str, Any]]]] = []
    with site.running() as service:
        service.until(site.is_read)
        log = changelog.open(site.config)
        marks = log.follow("mark", timeout=PATIENCE_S)
        for number, step in enumerate(["SELECT 1", *STEPS]):
            site.sql(step, f"INSERT INTO mark VALUES ({number})")
            position = position_of(next(marks))
            snapshots.append((position, rows_of_server(site)))
    assert_equal(log.table("things"), snapshots[-1][1])
    for position, expected in snapshots:
        assert_equal(log.table("things", as_of=position), expected)
    assert sum(len(expected) for _, expected in snapshots) > 100
