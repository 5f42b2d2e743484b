"""Tests a service with a `[state]`: a store from which the service takes each row as it was before a change.

The service publishes to Kafka. After a restart, the store must still have its rows. If the folder of the store was
lost, the service must fill the store again from the topics.
"""

import shutil
from pathlib import Path

import pytest

from changelog.connectors.servers.kafka import Broker
from changelog.envelope.model import MISSING, Op, Record, position_of
from tests.integration.kafka.site import Site
from tests.patience import until
from tests.servers.registry import Registry

TABLES = """
CREATE TABLE guest (id int PRIMARY KEY, name text, body text, meta jsonb);
ALTER TABLE guest ALTER COLUMN body SET STORAGE EXTERNAL;
INSERT INTO guest SELECT n, 'name ' || n, repeat('long ', 2000), 'null' FROM generate_series(1, 40) AS n;
"""


@pytest.fixture(params=["json", "avro"])
def site(request: pytest.FixtureRequest, database: str, broker: Broker, tmp_path: Path) -> Site:
    registry: Registry | None = request.getfixturevalue("registry") if request.param == "avro" else None
    rest = f'[state]\npath = "{tmp_path / "state"}"\n'
    return Site(database, broker, tmp_path, tables={"guest": 3}, registry=registry, rest=rest)


def problems_of(records: list[Record]) -> list[str]:
    """Returns a description of each change that lacks a value or whose original is not the key's last row."""
    last_rows: dict[str, object] = {}
    problems = []
    for record in sorted(records, key=position_of):
        envelope, key = record.envelope, record.place.key
        source = envelope.provenance.source
        if source.unavailable or source.unavailable_original:
            problems.append(f"{position_of(record)} lacks values")
        if source.op in (Op.UPDATE, Op.DELETE) and (
            envelope.original is MISSING or bytes(envelope.original or b"") != last_rows.get(key)
        ):
            problems.append(f"{position_of(record)} has another original")
        last_rows[key] = None if envelope.current is None else bytes(envelope.current)
    return problems


def has_row_with(site: Site, text: bytes) -> bool:
    return any(text in bytes(record.envelope.current or b"") for record in site.records("guest"))


def test_originals_come_from_the_state(site: Site, tmp_path: Path) -> None:
    site.sql(TABLES)
    with site.running():
        until(site.is_read, "the table is not read")
    for number, folder_is_lost in enumerate((False, True, False)):
        text = b"AGAIN %d" % number
        with site.running():
            site.sql(
                f"UPDATE guest SET name = 'again {number}' WHERE id % 2 = 0",
                f"DELETE FROM guest WHERE id = {number * 2 + 1}",
                f"UPDATE guest SET id = id + {100 * (number + 1)} WHERE id BETWEEN 10 AND 12",
                "UPDATE guest SET name = upper(name)",
            )
            until(lambda text=text: has_row_with(site, text), "the last update is not published")  # type: ignore[misc]
        if folder_is_lost:
            shutil.rmtree(tmp_path / "state")
    records = site.records("guest")
    assert len([record for record in records if record.envelope.provenance.source.op is Op.UPDATE]) > 100
    assert problems_of(records) == []
