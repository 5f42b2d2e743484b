"""Tests how the service repairs many small tables after a gap (changes that were lost). The service must not read its
changelog once for each table.

It compares many tables at once, so a few reads are enough.
"""

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
from tests.integration import site as file_site
from tests.integration.kafka import site as kafka_site
from tests.patience import PATIENCE_S

NAMES = [f"small_{number:02}" for number in range(40)]
NAMES_WITH_DELETES = NAMES[1::7]
"""The tables from which the test deletes a row during the gap."""

ChangelogRead = tuple[Sequence[str], str | None]


@pytest.fixture
def changelog_reads(monkeypatch: pytest.MonkeyPatch) -> list[ChangelogRead]:
    """Records each time the service reads the changelog: which entities it reads, and which key, if it reads the rows
    of a single key.
    """
    read = StoredChangelog.rows
    reads: list[ChangelogRead] = []

    def rows(self: StoredChangelog, entities: Collection[str], key: str | None) -> Iterator[pa.RecordBatch]:
        reads.append((sorted(entities), key))
        return read(self, entities, key)

    monkeypatch.setattr(StoredChangelog, "rows", rows)
    return reads


def fill(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for name in NAMES:
            connection.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, note text)".encode())
            connection.execute(f"INSERT INTO {name} VALUES (1, '{name}'), (2, NULL)".encode())


def go_over_gap(site: file_site.Site | kafka_site.Site, log: Log, is_repaired: Callable[[], bool]) -> None:
    """Publishes all tables, and deletes rows in a gap, so that the changelog lacks the deletes. Then continues over the
    gap, and checks that the changelog has the deletes.
    """
    with site.running() as running:
        running.until(site.is_read)
    with psycopg.connect(site.dsn, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()"
        )
        for name in NAMES_WITH_DELETES:
            connection.execute(f"DELETE FROM {name} WHERE id = 1".encode())
    settings = config.load(site.config, os.environ)
    gap = gaps.find(settings, accept_settings=False, reach=nowhere)
    assert gap is not None
    gaps.cross(settings, gap, accept_settings=False, reach=nowhere)
    with site.running() as running:
        running.until(is_repaired)
    both_rows = [("read", "1"), ("read", "2")]
    for name in NAMES:
        rows = pa.Table.from_batches(log.read(entity=name)).sort_by("position")
        ops = list(zip(rows.column("op").to_pylist(), rows.column("key").to_pylist(), strict=True))
        expected = [("read", "2"), ("delete", "1")] if name in NAMES_WITH_DELETES else both_rows
        assert ops == both_rows + expected, name


def check(changelog_reads: list[ChangelogRead]) -> None:
    """Checks that the service searched each entity once, and many entities in one read. It may read the entities with
    deletes again, to fetch the states of the deleted rows; `table_reads` leaves these reads out.
    """
    table_reads = [entities for entities, _ in changelog_reads if not set(entities) <= set(NAMES_WITH_DELETES)]
    assert sorted(name for entities in table_reads for name in entities) == NAMES
    assert max(map(len, table_reads)) >= len(NAMES) // 4
    assert len(changelog_reads) <= 2 * len(table_reads) <= 12


def test_many_tables_are_compared_together_in_files(
    database: str, tmp_path: Path, changelog_reads: list[ChangelogRead]
) -> None:
    fill(database)
    site = file_site.Site(database, tmp_path)
    site.configure("".join(f'[entities.{name}]\ntable = "public.{name}"\n' for name in NAMES))
    log = open_log(config.load(site.config, os.environ))
    go_over_gap(site, log, lambda: is_read(log.checkpoint()) and not site.checkpoint.repairs.get("open"))
    check(changelog_reads)


def test_many_tables_are_compared_together_on_kafka(
    database: str, broker: Broker, tmp_path: Path, changelog_reads: list[ChangelogRead]
) -> None:
    fill(database)
    site = kafka_site.Site(database, broker, tmp_path, tables=dict.fromkeys(NAMES, 1))

    def is_repaired() -> bool:
        checkpoint = site.checkpoint
        return checkpoint is not None and is_read(checkpoint) and not checkpoint.repairs.get("open")

    go_over_gap(site, site.log, is_repaired)
    check(changelog_reads)


def test_only_the_entity_that_cannot_be_read_fails(database: str, broker: Broker, tmp_path: Path) -> None:
    """The service first reads the broken entity together with the other entities. Then it reads the others again
    without the broken one.
    """
    names = NAMES[:5]
    fill(database)
    site = kafka_site.Site(database, broker, tmp_path, tables=dict.fromkeys(names, 1))
    with site.running() as running:
        running.until(site.is_read)
        topic = f"{site.settings.prefix}.{names[3]}"
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        producer.produce(topic, b"this is no message of a changelog", b"1", 0)
        assert producer.flush(PATIENCE_S) == 0
        source = sources.database(site.settings)
        source.send_signals([Signal(do="pause", id="first")])
        running.until(lambda: site.ended("first"))
        source.send_signals([Signal(do="rebuild", id=name, entity=name) for name in names])
        source.send_signals([Signal(do="resume", id="then")])
        running.until(lambda: all(map(site.ended, names)))
    checkpoint = site.checkpoint
    assert checkpoint is not None
    results = Repairs.parse(checkpoint.repairs).ended
    assert {name: results[name] for name in names} == dict.fromkeys(names, "done") | {names[3]: "failed"}
