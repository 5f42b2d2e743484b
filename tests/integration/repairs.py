"""Publishes a table, and adds false changes to its changelog: changes that the table never had.

Also sends signals. A signal is an operator's request, for example to repair the changelog.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
from msgspec import Raw

from changelog.connectors.capture.tables.repairs import Repairs
from changelog.connectors.sinks.files.log import read_log
from changelog.connectors.sinks.files.sink import FileSink
from changelog.connectors.sources.postgres.admin.signals import send
from changelog.envelope.columnar import batch
from changelog.envelope.model import MISSING, Envelope, Op, Record
from changelog.envelope.position import Position
from changelog.envelope.signal import Do, Signal
from tests.integration.site import Running, Site

ENTITIES = """
[entities.item]
table = "public.item"
"""

ROWS = 50


def items(dsn: str, folder: Path) -> Site:
    """Creates a table of `ROWS` rows, and writes the configuration of a service that publishes the table."""
    site = Site(dsn, folder)
    site.sql(
        "CREATE TABLE item (id int PRIMARY KEY, name text, amount int)",
        "ALTER TABLE item REPLICA IDENTITY FULL",
        f"INSERT INTO item SELECT n, 'item ' || n, n FROM generate_series(1, {ROWS}) AS n",
    )
    site.configure(ENTITIES)
    return site


def table(site: Site) -> dict[str, Any]:
    return {str(row["id"]): row for (row,) in site.sql("SELECT to_json(item) FROM item")}


def begin(site: Site) -> None:
    """Runs a service until the changelog has all rows of the table, and stops the service."""
    with site.running() as service:
        service.until(site.is_read)


def plant(site: Site, *changes: tuple[str, Any]) -> None:
    """Appends false changes to the changelog, through the file sink.

    Each change is a key and the row after the change, or a key and None for a delete.
    """
    last = [record for rows in read_log(site.log, entity="item") for record in batch.records(rows)][-1]
    sink = FileSink(site.log)
    checkpoint = sink.recover()
    assert checkpoint is not None
    assert checkpoint.position is not None
    position, forged_records = checkpoint.position, []
    for key, state in changes:
        position = Position(position.epoch, position.commit, position.ordinal + 2)
        forged_records.append(like(last, key, state, position))
    sink.add([batch.from_records(forged_records)])
    sink.commit(replace(checkpoint, position=position))
    sink.close()


def like(record: Record, key: str, state: Any, position: Position) -> Record:
    """Returns a copy of the record, but with this key, state and position."""
    provenance = record.envelope.provenance
    source = replace(provenance.source, op=Op.DELETE if state is None else Op.UPDATE, position=position)
    current = None if state is None else Raw(json.dumps(state).encode())
    envelope = Envelope(provenance=replace(provenance, source=source), current=current, original=MISSING)
    return replace(record, place=replace(record.place, key=key), envelope=envelope)


def signal(site: Site, do: Do, entity: str | None = "item", keys: tuple[str, ...] | None = None, id_: str = "s") -> str:
    with psycopg.connect(site.dsn, autocommit=True) as connection:
        send(connection, Signal(do=do, id=id_, entity=entity, keys=keys), None)
    return id_


def ended(site: Site, id_: str = "s") -> bool:
    return id_ in Repairs.parse(site.checkpoint.repairs).ended


def repair(site: Site, service: Running, do: Do, keys: tuple[str, ...] | None = None, id_: str = "s") -> None:
    """Sends a signal, and waits until the service has done what the signal requests."""
    signal(site, do, keys=keys, id_=id_)
    service.until(lambda: ended(site, id_))
