"""Signals have the service read tables again: some keys, a whole table, and what the table lacks is deleted."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from msgspec import Raw

from connectors.signals import Do, Signal, send
from connectors.sinks.filelog import read_log
from connectors.sinks.files import FileSink
from connectors.sources.postgres.repairs import Repairs
from envelope import batch
from envelope.model import MISSING, Envelope, Op, Record
from envelope.position import Position
from tests.integration.site import Running, Site

ENTITIES = """
[entities.item]
table = "public.item"
"""

ROWS = 50


@pytest.fixture
def site(database: str, tmp_path: Path) -> Site:
    found = Site(database, tmp_path)
    found.sql(
        "CREATE TABLE item (id int PRIMARY KEY, name text, amount int)",
        "ALTER TABLE item REPLICA IDENTITY FULL",
        f"INSERT INTO item SELECT n, 'item ' || n, n FROM generate_series(1, {ROWS}) AS n",
    )
    found.configure(ENTITIES)
    return found


def table(site: Site) -> dict[str, Any]:
    return {str(row["id"]): row for (row,) in site.sql("SELECT to_json(item) FROM item")}


def is_read(site: Site) -> bool:
    return all(stored["complete"] for stored in site.checkpoint.windows.values())


def begun(site: Site) -> None:
    """A changelog that has the table, and no service."""
    with site.running() as service:
        service.until(lambda: bool(site.messages()) and is_read(site))


def plant(site: Site, *changes: tuple[str, Any]) -> None:
    """Rows that no source ever had, or states that it never had, at the end of the log: by the sink itself.

    A change is a key and a state, None for a delete.
    """
    last = [record for rows in read_log(site.log, entity="item") for record in batch.records(rows)][-1]
    sink = FileSink(site.log)
    checkpoint = sink.recover()
    assert checkpoint is not None
    assert checkpoint.position is not None
    position, forged = checkpoint.position, []
    for key, state in changes:
        position = Position(position.epoch, position.commit, position.ordinal + 2)
        forged.append(like(last, key, state, position))
    sink.add([batch.from_records(forged)])
    sink.commit(replace(checkpoint, position=position))
    sink.close()


def like(record: Record, key: str, state: Any, position: Position) -> Record:
    """A record as this one, of another key and state, at another position."""
    told = record.envelope.provenance
    source = replace(told.source, op=Op.DELETE if state is None else Op.UPDATE, position=position)
    current = None if state is None else Raw(json.dumps(state).encode())
    envelope = Envelope(provenance=replace(told, source=source), current=current, original=MISSING)
    return replace(record, place=replace(record.place, key=key), envelope=envelope)


def signal(site: Site, do: Do, entity: str | None = "item", keys: tuple[str, ...] | None = None, id_: str = "s") -> str:
    with psycopg.connect(site.dsn, autocommit=True) as connection:
        send(connection, Signal(do=do, id=id_, entity=entity, keys=keys), None)
    return id_


def ended(site: Site, id_: str = "s") -> bool:
    return id_ in Repairs.parse(site.checkpoint.repairs).ended


def repaired(site: Site, service: Running, do: Do, keys: tuple[str, ...] | None = None, id_: str = "s") -> None:
    signal(site, do, keys=keys, id_=id_)
    service.until(lambda: ended(site, id_))


def test_asked_keys_are_read_again_and_nothing_else(site: Site) -> None:
    begun(site)
    plant(site, ("7", {"id": 7, "name": "forged", "amount": 0}), ("8", None))
    before = len(site.messages("item"))
    with site.running() as service:
        repaired(site, service, "republish", ("7", "8", "7"))
    assert site.ops("item")[before:] == [("read", "7"), ("read", "8")]
    assert site.state("item") == table(site)


def test_asked_keys_that_the_table_lacks_are_deleted_once(site: Site) -> None:
    begun(site)
    ghost = {"id": 99, "name": "ghost", "amount": 1}
    plant(site, ("99", ghost))
    before = len(site.messages("item"))
    with site.running() as service:
        repaired(site, service, "republish", ("99", "100", "not a number", "9" * 50, "\0", ""))
        repaired(site, service, "republish", ("99", "5"), "again")
    assert site.ops("item")[before:] == [("delete", "99"), ("read", "5")]
    deleted = site.messages("item")[before]["value"]
    assert (deleted["original"], deleted["current"]) == (ghost, None)
    assert site.state("item") == table(site)


def test_a_rebuild_makes_the_changelog_equal_to_the_table(site: Site) -> None:
    begun(site)
    plant(
        site,
        ("7", {"id": 7, "name": "forged", "amount": 0}),
        ("8", None),
        *((str(1000 + number), {"id": 1000 + number, "name": "ghost", "amount": 1}) for number in range(30)),
    )
    before = len(site.messages("item"))
    with site.running() as service:
        repaired(site, service, "rebuild")
        site.sql("INSERT INTO item VALUES (1005, 'real', 2)")
        service.until(lambda: "1005" in site.state("item"))
    assert [op for op, _ in site.ops("item")[before:]] == ["read"] * ROWS + ["delete"] * 30 + ["create"]
    assert site.state("item") == table(site)


def test_a_table_published_again_keeps_what_it_lacks(site: Site) -> None:
    begun(site)
    plant(site, ("7", {"id": 7, "name": "forged", "amount": 0}), ("99", {"id": 99, "name": "ghost", "amount": 1}))
    with site.running() as service:
        repaired(site, service, "republish")
    assert site.state("item") == {**table(site), "99": {"id": 99, "name": "ghost", "amount": 1}}
