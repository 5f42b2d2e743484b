"""Configures and runs a service that publishes a PostgreSQL database to Kafka, and reads its changelog."""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import psycopg
from msgspec import Raw
from psycopg.rows import dict_row

from changelog.connectors import config
from changelog.connectors.capture.tables.repairs import Repairs
from changelog.connectors.kafka.client import Client
from changelog.connectors.servers.kafka import Broker
from changelog.connectors.service.service import Service
from changelog.connectors.sinks import Log
from changelog.connectors.sources.postgres.admin.catalog import read_tables
from changelog.connectors.sources.postgres.session.connection import connect
from changelog.connectors.wiring import entities
from changelog.connectors.wiring.sinks import open_log, open_sink, read_versions
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.columnar import batch
from changelog.envelope.key import partition
from changelog.envelope.model import MISSING, Envelope, Op, Place, Record
from changelog.envelope.position import Position
from tests.campaigns._plant import tokens_of
from tests.campaigns._service import is_read
from tests.integration.kafka.topics import settled
from tests.integration.site import Running
from tests.servers.registry import Registry


class Site:
    """A database at `dsn`, and a service that publishes its `tables`, each as the entity of the same name.

    `tables` maps each table to the number of its topic's partitions. The configuration is in `folder`, and ends with
    `rest`. If there is a registry, messages are in Avro. If `name` is None, the service has the name of its database,
    followed by `suffix`. Its slot has this name, too, and no two slots of a server may have the same name. So several
    services over one database need different suffixes.
    """

    def __init__(
        self,
        dsn: str,
        broker: Broker,
        folder: Path,
        *,
        tables: Mapping[str, int],
        registry: Registry | None = None,
        suffix: str = "",
        name: str | None = None,
        rest: str = "",
        envelope: str = "changelog",
    ) -> None:
        self.dsn = dsn
        self.config = folder / f"changelog{suffix}.toml"
        codec = f'codec = "avro"\nregistry = "{registry.url}"\nauto_register = true\n' if registry else ""
        entity_sections = "".join(
            f'[entities.{name}]\ntable = "public.{name}"\npartitions = {partitions}\n'
            for name, partitions in tables.items()
        )
        self.config.write_text(
            f"name = {json.dumps(name or str(psycopg.conninfo.conninfo_to_dict(dsn)['dbname']) + suffix)}\n"
            f'source = {{ kind = "postgres", dsn = {json.dumps(dsn)} }}\n'
            'service = { listen = "127.0.0.1:0" }\n'
            f'[sink]\nkind = "kafka"\nbootstrap_servers = "{broker.bootstrap_servers}"\ncommit_seconds = 0.1\n'
            f'envelope = "{envelope}"\n' + codec + entity_sections + rest,
            "utf-8",
        )
        self.settings = config.load(self.config, os.environ)
        self._client = Client(bootstrap_servers=broker.bootstrap_servers)

    def sql(self, *statements: str) -> None:
        """Runs each statement in a transaction of its own."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    @contextlib.contextmanager
    def running(self, *, accept: bool = False, accept_cluster: bool = False) -> Iterator[Running]:
        """Yields the service, which runs in a thread. At the end, stops it, raises its error if there is one, and waits
        until readers see all messages.
        """
        service = Running(Service(self.settings, accept_settings=accept, accept_cluster=accept_cluster))
        try:
            yield service
        finally:
            service.stop()
        service.check()
        self._settled()

    @cached_property
    def log(self) -> Log:
        """The reader of the changelog. All reads use this one reader, because a test that waits for a checkpoint reads
        very often, and each new reader would load the system's certificates again.
        """
        return open_log(self.settings)

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The checkpoint that is stored in the changelog."""
        return self.log.checkpoint()

    def is_read(self) -> bool:
        """Returns whether all tables are completely read."""
        return is_read(self.checkpoint)

    def ended(self, signal: str) -> bool:
        """Returns whether the service has done what the signal with the id `signal` asks."""
        checkpoint = self.checkpoint
        return checkpoint is not None and signal in Repairs.parse(checkpoint.repairs).ended

    def records(self, entity: str) -> list[Record]:
        """Returns the records of an entity, ordered by position."""
        records = [record for rows in self.log.read(entity=entity) for record in batch.records(rows)]
        return sorted(records, key=lambda record: record.envelope.provenance.source.position)

    def state(self, entity: str) -> dict[str, Any]:
        """Returns the rows that result from the entity's messages, by key."""
        alive: dict[str, Any] = {}
        for record in self.records(entity):
            alive.pop(record.place.key, None)
            if record.envelope.current is not None:
                alive[record.place.key] = json.loads(bytes(record.envelope.current))
        return alive

    def table(self, entity: str) -> dict[str, Any]:
        """Returns the rows of the table by their `id` as text. A row is the JSON that the database prints."""
        with psycopg.connect(self.dsn, row_factory=dict_row) as connection:
            rows = connection.execute(f"SELECT to_json(t) AS row FROM {entity} AS t".encode()).fetchall()
        return {str(row["row"]["id"]): row["row"] for row in rows}

    def plant(self, entity: str, changes: Mapping[str, Mapping[str, str] | None]) -> None:
        """Appends false changes to the changelog: changes that the table never had.

        The service must be stopped. `changes` maps keys to changes. A change maps columns to values as JSON text; None
        is a delete. Everything else in a false change is copied from the row that the key has now. If the key has none,
        it is copied from the row of another key. A key that ever had a row stays in its partition.
        """
        last_records = {record.place.key: record for record in self.records(entity)}
        alive = {key: record for key, record in last_records.items() if record.envelope.current is not None}
        example = next(iter(alive.values()))
        [version] = [version for version in read_versions(self.log) if version.entity == entity][-1:]
        with connect(self.dsn) as connection:
            resolved = entities.resolve(self.settings, read_tables(connection))
        partitions = self.settings.entities[entity].partitions
        with closing(open_sink(self.settings)) as sink:
            sink.prepare(resolved)
            checkpoint = sink.recover()
            assert checkpoint is not None
            assert checkpoint.position is not None
            position, forged_records = checkpoint.position, []
            for key, change in changes.items():
                position = Position(position.epoch, position.commit, position.ordinal + 2)
                new_place = Place(key=key, partition=partition(key.encode(), partitions))
                place = last_records[key].place if key in last_records else new_place
                forged_records.append(replace(_forged(alive.get(key, example), change, position), place=place))
            sink.add([batch.with_shapes(batch.from_records(forged_records), {entity: version.columns})])
            sink.commit(replace(checkpoint, position=position))
        self._settled()

    def _settled(self) -> None:
        prefix = f"{self.settings.name}."
        topics = self._client.admin().topics()
        parts = [(name, number) for name in topics if name.startswith(prefix) for number in topics[name].partitions]
        settled(self._client, parts)


def _forged(example: Record, change: Mapping[str, str] | None, position: Position) -> Record:
    provenance = example.envelope.provenance
    source = replace(provenance.source, op=Op.DELETE if change is None else Op.UPDATE, position=position)
    current = None
    if change is not None:
        assert example.envelope.current is not None
        tokens = tokens_of(bytes(example.envelope.current).decode())
        current = Raw(msgspec.json.encode(tokens | {name: Raw(text.encode()) for name, text in change.items()}))
    return replace(
        example, envelope=Envelope(provenance=replace(provenance, source=source), current=current, original=MISSING)
    )
