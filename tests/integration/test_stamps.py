"""What the page on stamps says is what comes of it: its SQL and its psycopg are run as they stand there."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.integration.site import Site

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "stamps.md").read_text("utf-8")
STAMP = {"serviceName": "order-api", "apiVersion": "v2", "identifier": "req-8f1c"}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def by_sql(connection: psycopg.Connection[Any]) -> None:
    [example] = blocks("sql")
    connection.execute(example.encode())


def by_psycopg(connection: psycopg.Connection[Any]) -> None:
    names: dict[str, Any] = {}
    exec(blocks("python")[0], names)  # what the page shows
    names["pay"](connection, 42, "req-8f1c")


@pytest.mark.parametrize("change", [by_sql, by_psycopg])
def test_what_the_page_shows_stamps_the_change(
    database: str, tmp_path: Path, change: Callable[[psycopg.Connection[Any]], None]
) -> None:
    site = Site(database, tmp_path)
    site.sql("CREATE TABLE orders (id int PRIMARY KEY, status text)", "INSERT INTO orders VALUES (42, 'NEW')")
    site.configure('[entities.orders]\ntable = "public.orders"\n')
    with site.running() as service:
        service.until(site.is_read)
        with psycopg.connect(database, autocommit=True) as connection:
            change(connection)
        service.until(lambda: len(site.ops("orders")) == 2)
    provenance = site.messages("orders")[1]["value"]["provenance"]
    assert {name: provenance[name] for name in STAMP} == STAMP
