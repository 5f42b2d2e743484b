"""Tests that the service repairs a changelog in Kafka: it reads rows of the table again, and deletes ghosts.

A *ghost* is a row that the changelog has and the table lacks. To find the ghosts, the service reads the changelog one
partition after another. So it does not receive the rows in the order of their positions.
"""

from pathlib import Path

import psycopg
import pytest
from msgspec import Raw

from changelog.connectors.servers.kafka import Broker
from changelog.connectors.sources.postgres.admin.signals import send
from changelog.envelope.signal import Signal
from tests.integration.kafka.site import Site
from tests.servers.registry import Registry

ROWS, PARTITIONS = 40, 3


@pytest.fixture(params=["json", "avro"])
def site(database: str, broker: Broker, registry: Registry, tmp_path: Path, request: pytest.FixtureRequest) -> Site:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE item (id int PRIMARY KEY, name text, amount numeric(8,2))")
        connection.execute("ALTER TABLE item REPLICA IDENTITY FULL")
        connection.execute(
            f"INSERT INTO item SELECT n, 'item ' || n, n / 4.0 FROM generate_series(1, {ROWS}) AS n".encode()
        )
    schema_registry = registry if request.param == "avro" else None
    return Site(database, broker, tmp_path, tables={"item": PARTITIONS}, registry=schema_registry)


def test_keys_and_a_whole_table_are_repaired(site: Site) -> None:
    with site.running() as service:
        service.until(site.is_read)
    ghosts = [str(1000 + number) for number in range(12)]
    forged_columns = {"name": '"forged"', "amount": '"NaN"'}
    site.plant("item", {"7": forged_columns, "8": None, **{key: {**forged_columns, "id": key} for key in ghosts}})
    old_count = len(site.records("item"))
    with site.running() as service:
        for signal in (
            Signal(do="republish", id="k", entity="item", keys=("7", "8", "1000", "2000")),
            Signal(do="rebuild", id="r", entity="item"),
        ):
            with psycopg.connect(site.dsn, autocommit=True) as connection:
                send(connection, signal, None)
            service.until(lambda id_=signal.id: site.ended(id_))  # type: ignore[misc]
    new_records = site.records("item")[old_count:]
    ops = [(item.envelope.provenance.source.op.value, item.place.key) for item in new_records]
    assert ops[:3] == [("read", "7"), ("read", "8"), ("delete", "1000")]
    assert sorted(ops[3:]) == sorted(
        [*(("delete", key) for key in ghosts[1:]), *(("read", str(number)) for number in range(1, ROWS + 1))]
    )
    originals = {bytes(item.envelope.original) for item in new_records if isinstance(item.envelope.original, Raw)}
    assert originals == {f'{{"id":{key},"name":"forged","amount":"NaN"}}'.encode() for key in ghosts}
    assert site.state("item") == {
        str(number): {"id": number, "name": f"item {number}", "amount": f"{number / 4:.2f}"}
        for number in range(1, ROWS + 1)
    }
