"""Many small tables after a gap: the changelog is looked through a few times for all of them, and not for each."""

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest
from confluent_kafka import Producer

from changelog.connectors import config, gaps
from changelog.connectors.capture.tables.repairs import Repairs
from changelog.connectors.failpoints import nowhere
from changelog.connectors.servers.kafka import Broker
from changelog.connectors.sinks import Log
from changelog.connectors.wiring import sources
from changelog.connectors.wiring.sinks import open_log
from changelog.connectors.wiring.sources import StoredChangelog
from changelog.envelope.signal import Signal
from tests.campaigns._service import is_read
from tests.integration import site as of_files
from tests.integration.kafka import site as of_kafka
from tests.patience import PATIENCE_S

NAMES = [f"small_{number:02}" for number in range(40)]
LACKING = NAMES[1::7]
"""The tables that lose a row in the gap."""

Reading = tuple[Sequence[str], str | None]


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> list[Reading]:
    """Of which entities, and of which key, the service reads its changelog, each time that it does."""
    read = StoredChangelog.rows
    noted: list[Reading] = []

    def rows(self: StoredChangelog, entities: Collection[str], key: str | None) -> Iterator[pa.RecordBatch]:
        noted.append((sorted(entities), key))
        return read(self, entities, key)

    monkeypatch.setattr(StoredChangelog, "rows", rows)
    return noted


def fill(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for name in NAMES:
            connection.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, note text)".encode())
            connection.execute(f"INSERT INTO {name} VALUES (1, '{name}'), (2, NULL)".encode())


def go_over_gap(site: of_files.Site | of_kafka.Site, log: Log, repaired: Callable[[], bool]) -> None:
    """Publishes all tables; then rows are deleted where nobody sees it, and all is read again."""
    with site.running() as running:
        running.until(site.is_read)
    with psycopg.connect(site.dsn, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()"
        )
        for name in LACKING:
            connection.execute(f"DELETE FROM {name} WHERE id = 1".encode())
    settings = config.load(site.config, os.environ)
    gap = gaps.find(settings, accept_settings=False, reach=nowhere)
    assert gap is not None
    gaps.cross(settings, gap, accept_settings=False, reach=nowhere)
    with site.running() as running:
        running.until(repaired)
    again = [("read", "1"), ("read", "2")]
    for name in NAMES:
        rows = pa.Table.from_batches(log.read(entity=name)).sort_by("position")
        ops = list(zip(rows.column("op").to_pylist(), rows.column("key").to_pylist(), strict=True))
        expected = [("read", "2"), ("delete", "1")] if name in LACKING else again
        assert ops == again + expected, name


def check(readings: list[Reading]) -> None:
    """Each entity is folded in one reading, most of them in one with others; the ghosts take a few more."""
    folded = [entities for entities, _ in readings if not set(entities) <= set(LACKING)]
    assert sorted(name for entities in folded for name in entities) == NAMES
    assert max(map(len, folded)) >= len(NAMES) // 4
    assert len(readings) <= 2 * len(folded) <= 12


def test_they_are_looked_through_together_in_files(database: str, tmp_path: Path, readings: list[Reading]) -> None:
    fill(database)
    site = of_files.Site(database, tmp_path)
    site.configure("".join(f'[entities.{name}]\ntable = "public.{name}"\n' for name in NAMES))
    log = open_log(config.load(site.config, os.environ))
    go_over_gap(site, log, lambda: is_read(log.checkpoint()) and not site.checkpoint.repairs.get("open"))
    check(readings)


def test_they_are_looked_through_together_on_kafka(
    database: str, broker: Broker, tmp_path: Path, readings: list[Reading]
) -> None:
    fill(database)
    site = of_kafka.Site(database, broker, tmp_path, tables=dict.fromkeys(NAMES, 1))

    def repaired() -> bool:
        found = site.checkpoint
        return found is not None and is_read(found) and not found.repairs.get("open")

    go_over_gap(site, site.log, repaired)
    check(readings)


def test_an_entity_that_cannot_be_read_fails_alone(database: str, broker: Broker, tmp_path: Path) -> None:
    """Those that share a reading with it are read again without it."""
    names = NAMES[:5]
    fill(database)
    site = of_kafka.Site(database, broker, tmp_path, tables=dict.fromkeys(names, 1))
    with site.running() as running:
        running.until(site.is_read)
        topic = f"{site.settings.prefix}.{names[3]}"
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        producer.produce(topic, b"this is no message of a changelog", b"1", 0)
        assert producer.flush(PATIENCE_S) == 0
        service = sources.database(site.settings)
        service.send_signals([Signal(do="pause", id="first")])
        running.until(lambda: site.ended("first"))
        service.send_signals([Signal(do="rebuild", id=name, entity=name) for name in names])
        service.send_signals([Signal(do="resume", id="then")])
        running.until(lambda: all(map(site.ended, names)))
    found = site.checkpoint
    assert found is not None
    ended = Repairs.parse(found.repairs).ended
    assert {name: ended[name] for name in names} == dict.fromkeys(names, "done") | {names[3]: "failed"}
