"""A changelog on Kafka is repaired: the log is looked through partition by partition, in any order."""

import json
import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from msgspec import Raw

from connectors import config, entities
from connectors.embedded_kafka import Broker
from connectors.service import Service
from connectors.signals import Signal, send
from connectors.sources.postgres.catalog import read_tables
from connectors.sources.postgres.connection import connect
from connectors.sources.postgres.repairs import Repairs
from connectors.stores import open_log, open_sink
from envelope import batch
from envelope.checkpoint import Checkpoint
from envelope.key import partition
from envelope.model import MISSING, Envelope, Op, Place
from envelope.position import Position
from tests.integration.site import Running

ROWS, PARTITIONS = 40, 3


class Site:
    """A table, and its changelog on a broker."""

    def __init__(self, dsn: str, broker: Broker, folder: Path, codec: str) -> None:
        self.dsn = dsn
        name = str(psycopg.conninfo.conninfo_to_dict(dsn)["dbname"])
        file = folder / "changelog.toml"
        file.write_text(f"""
            name = {json.dumps(name)}
            source = {{ kind = "postgres", dsn = {json.dumps(dsn)} }}
            service = {{ listen = "127.0.0.1:0" }}
            entities.item = {{ table = "public.item", partitions = {PARTITIONS} }}
            [sink]
            kind = "kafka"
            bootstrap_servers = "{broker.bootstrap_servers}"
            {codec}
        """)
        self.settings = config.load(file, os.environ)

    @property
    def checkpoint(self) -> Checkpoint | None:
        return open_log(self.settings).checkpoint()

    def records(self) -> list[Any]:
        found = [record for rows in open_log(self.settings).read(entity="item") for record in batch.records(rows)]
        return sorted(found, key=lambda record: record.envelope.provenance.source.position)

    def state(self) -> dict[str, Any]:
        alive: dict[str, Any] = {}
        for record in self.records():
            if record.envelope.current is None:
                alive.pop(record.place.key, None)
            else:
                alive[record.place.key] = json.loads(bytes(record.envelope.current))
        return alive

    def plant(self, *keys: str) -> None:
        """Rows that the table never had, by the sink itself."""
        like = self.records()[-1]
        with connect(self.dsn) as connection:
            resolved = entities.resolve(self.settings, read_tables(connection))
        with closing(open_sink(self.settings)) as sink:
            sink.prepare(resolved)
            checkpoint = sink.recover()
            assert checkpoint is not None
            assert checkpoint.position is not None
            position, forged = checkpoint.position, []
            for key in keys:
                position = Position(position.epoch, position.commit, position.ordinal + 2)
                told = like.envelope.provenance
                source = replace(told.source, op=Op.UPDATE, position=position)
                state = Raw(json.dumps({"id": int(key), "name": "forged"}).encode())
                envelope = Envelope(provenance=replace(told, source=source), current=state, original=MISSING)
                place = Place(key=key, partition=partition(key.encode(), PARTITIONS))
                forged.append(replace(like, place=place, envelope=envelope))
            sink.add([batch.from_records(forged)])
            sink.commit(replace(checkpoint, position=position))


@pytest.fixture
def site(database: str, broker: Broker, tmp_path: Path) -> Site:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE item (id int PRIMARY KEY, name text)")
        connection.execute("ALTER TABLE item REPLICA IDENTITY FULL")
        connection.execute(f"INSERT INTO item SELECT n, 'item ' || n FROM generate_series(1, {ROWS}) AS n".encode())
    return Site(database, broker, tmp_path, "")


def is_read(site: Site) -> bool:
    found = site.checkpoint
    return found is not None and bool(found.windows) and all(stored["complete"] for stored in found.windows.values())


def test_keys_and_a_whole_table_are_repaired(site: Site) -> None:
    service = Running(Service(site.settings))
    try:
        service.until(lambda: is_read(site))
    finally:
        service.stop()
    service.check()
    ghosts = [str(1000 + number) for number in range(12)]
    site.plant("7", *ghosts)
    before = len(site.records())
    service = Running(Service(site.settings))
    try:
        for signal in (
            Signal(do="republish", id="k", entity="item", keys=("7", "1000")),
            Signal(do="rebuild", id="r", entity="item"),
        ):
            with psycopg.connect(site.dsn, autocommit=True) as connection:
                send(connection, signal, None)
            service.until(lambda asked=signal.id: _ended(site, asked))  # type: ignore[misc]
    finally:
        service.stop()
    service.check()
    added = [(each.envelope.provenance.source.op.value, each.place.key) for each in site.records()[before:]]
    assert added[:2] == [("read", "7"), ("delete", "1000")]
    assert sorted(added[2:]) == sorted(
        [*(("delete", key) for key in ghosts[1:]), *(("read", str(number)) for number in range(1, ROWS + 1))]
    )
    assert site.state() == {str(number): {"id": number, "name": f"item {number}"} for number in range(1, ROWS + 1)}


def _ended(site: Site, asked: str) -> bool:
    found = site.checkpoint
    return found is not None and asked in Repairs.parse(found.repairs).ended
