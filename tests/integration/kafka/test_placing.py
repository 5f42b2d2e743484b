"""Tests an entity whose partitions are chosen by another column than before. The older rows stay in their partitions,
and readers must still find them.
"""

from collections.abc import Sequence
from pathlib import Path

import psycopg
import pytest

from changelog.connectors.servers.kafka import Broker
from changelog.connectors.sinks.kafka.reading.log import KafkaLog
from changelog.connectors.sources.postgres.admin.signals import send
from changelog.envelope.columnar import batch
from changelog.envelope.key import partition
from changelog.envelope.model import Record
from changelog.envelope.signal import Signal
from tests.integration.kafka.site import Site

ROWS, PARTITIONS = 12, 3

KEY, DELETED_KEY = [
    str(number)
    for number in range(1, ROWS + 1)
    if partition(str(number).encode(), PARTITIONS) != partition(b"0", PARTITIONS)
][:2]
"""Two keys whose hashes choose other partitions than the hash of shelf 0 does. While rows are partitioned by shelf, all
rows are in the partition of shelf 0, including the rows of these two keys.
"""


@pytest.fixture
def dsn(database: str) -> str:
    """A database in which all items are on shelf 0."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE item (id int PRIMARY KEY, shelf int NOT NULL DEFAULT 0, name text)")
        connection.execute("ALTER TABLE item REPLICA IDENTITY FULL")
        connection.execute(f"INSERT INTO item (id, name) SELECT n, 'new' FROM generate_series(1, {ROWS}) AS n".encode())
    return database


def site_of(dsn: str, broker: Broker, folder: Path, rest: str = "") -> Site:
    return Site(dsn, broker, folder, tables={"item": PARTITIONS}, rest=rest)


def read(site: Site, key: str) -> Sequence[Record]:
    return [record for rows in site.log.read(entity="item", key=key) for record in batch.records(rows)]


def follow(site: Site, key: str) -> Sequence[Record]:
    batches = site.log.follow(entity="item", key=key, last=ROWS, wait=lambda: False)
    return [record for rows in batches for record in batch.records(rows)]


def test_only_one_partition_is_read_if_the_key_always_chose_the_partition(
    dsn: str, broker: Broker, tmp_path: Path
) -> None:
    site = site_of(dsn, broker, tmp_path)
    with site.running() as service:
        service.until(site.is_read)
    log = site.log
    assert isinstance(log, KafkaLog)
    assert log._parts("item", KEY) == [(f"{site.settings.name}.item", partition(KEY.encode(), PARTITIONS))]
    assert [record.place.key for record in read(site, KEY)] == [KEY]


def test_rows_are_found_by_key_after_another_column_chose_their_partition(
    dsn: str, broker: Broker, tmp_path: Path
) -> None:
    old_site = site_of(dsn, broker, tmp_path, 'partition_by = ["shelf"]\n')
    with old_site.running() as service:
        service.until(old_site.is_read)
        old_site.sql(f"DELETE FROM item WHERE id = {DELETED_KEY}")
        service.until(lambda: DELETED_KEY not in old_site.state("item"))
    old_site.plant("item", {DELETED_KEY: {"id": DELETED_KEY, "name": '"forged"'}})
    site = site_of(dsn, broker, tmp_path)
    with site.running(accept=True) as service:
        site.sql(f"UPDATE item SET name = 'changed' WHERE id = {KEY}")
        service.until(lambda: site.state("item")[KEY]["name"] == "changed")
        for records in (read(site, KEY), follow(site, KEY)):
            ops = [record.envelope.provenance.source.op.value for record in records]
            assert ops == ["read", "update"]
        with psycopg.connect(site.dsn, autocommit=True) as connection:
            send(connection, Signal(do="republish", id="k", entity="item", keys=(DELETED_KEY,)), None)
        service.until(lambda: site.ended("k"))
    assert site.state("item") == site.table("item")
