"""Tests the SQL and the psycopg code in docs/how-to/stamps.md. This code must *stamp* its transaction: the messages of
the transaction must say which service made the changes.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from changelog.connectors.sinks.files.log import read_log
from changelog.connectors.sources.postgres.candidate import PostgresCandidate
from tests.integration.site import Site
from tests.unit.envelope.strategies import HOSTILE_CONTEXTS

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "stamps.md").read_text("utf-8")
EMIT = "SELECT pg_logical_emit_message(true, 'provenance',"
CHANGE = "UPDATE orders SET amount = amount + 1"
STAMP = {"serviceName": "order-api", "apiVersion": "v2", "identifier": "req-8f1c"}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def by_sql(connection: psycopg.Connection[Any]) -> None:
    connection.execute(blocks("sql")[0].encode())


def by_psycopg(connection: psycopg.Connection[Any]) -> None:
    connection.execute(PostgresCandidate(connection.info.dsn).stamps({("public", "orders")}).encode())
    names: dict[str, Any] = {}
    exec(blocks("python")[0], names)  # this is the code that the page shows
    names["pay"](connection, 42, "req-8f1c", "u-17")


@pytest.mark.parametrize("change", [by_sql, by_psycopg])
def test_the_code_on_the_page_stamps_the_change(
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


@pytest.fixture
def shop(database: str, tmp_path: Path) -> Site:
    site = Site(database, tmp_path)
    site.sql("CREATE TABLE orders (id int PRIMARY KEY, amount int)", "INSERT INTO orders VALUES (42, 7)")
    site.configure('[entities.orders]\ntable = "public.orders"\n')
    return site


def test_a_context_is_published_as_it_was_written(shop: Site, capsys: pytest.CaptureFixture[str]) -> None:
    stamps = [f'{{"serviceName": "shop", "context": {context}}}' for context in (*HOSTILE_CONTEXTS, "[]")]
    with shop.running() as service:
        service.until(shop.is_read)
        shop.sql(blocks("sql")[1], *(f"BEGIN; {EMIT} '{stamp}'); {CHANGE}; COMMIT" for stamp in stamps), CHANGE)
        service.until(lambda: len(rows(shop)) == 4 + len(HOSTILE_CONTEXTS))
        service.until(lambda: service.said("provenance stamps not valid"))
        [warning] = [event for event in service.events() if event["event"] == "provenance stamps not valid"]
    assert (warning["why"], warning["last_transaction"]) == ("context is not an object", rows(shop)[-2]["transaction"])
    [page_context] = re.findall(r'"context": (\{.*\})\}', blocks("sql")[1])
    contexts = [None, page_context, *HOSTILE_CONTEXTS, None, None]
    assert [row["context"] for row in rows(shop)] == contexts
    capsys.readouterr()
    assert shop.call("tail", "--json", "--no-follow", "-n", "99") == (0, [])
    provenances = [json.loads(line)["value"]["provenance"] for line in capsys.readouterr().out.splitlines()]
    assert [provenance.get("context") for provenance in provenances] == [
        None if text is None else json.loads(text) for text in contexts
    ]
    services = ["unknown", "order-api", *["shop"] * (len(HOSTILE_CONTEXTS) + 1), "unknown"]
    assert [provenance["serviceName"] for provenance in provenances] == services
    assert shop.call("history", "orders", "42") == (0, [])
    history = " ".join(capsys.readouterr().out.split())  # a narrow terminal wraps the lines
    assert 'context user "u-17" reason "goodwill" ticket {"id": 5510}' in history


def rows(site: Site) -> list[dict[str, Any]]:
    return [row for batch in read_log(site.log, entity="orders") for row in batch.to_pylist()]
