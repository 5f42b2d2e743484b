"""A changelog on Kafka is repaired: the log is looked through partition by partition, in any order."""

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
    kept_by = registry if request.param == "avro" else None
    return Site(database, broker, tmp_path, tables={"item": PARTITIONS}, registry=kept_by)


def test_keys_and_a_whole_table_are_repaired(site: Site) -> None:
    with site.running() as service:
        service.until(site.is_read)
    ghosts = [str(1000 + number) for number in range(12)]
    forged = {"name": '"forged"', "amount": '"NaN"'}
    site.plant("item", {"7": forged, "8": None, **{key: {**forged, "id": key} for key in ghosts}})
    before = len(site.records("item"))
    with site.running() as service:
        for signal in (
            Signal(do="republish", id="k", entity="item", keys=("7", "8", "1000", "2000")),
            Signal(do="rebuild", id="r", entity="item"),
        ):
            with psycopg.connect(site.dsn, autocommit=True) as connection:
                send(connection, signal, None)
            service.until(lambda asked=signal.id: site.ended(asked))  # type: ignore[misc]
    added = site.records("item")[before:]
    ops = [(each.envelope.provenance.source.op.value, each.place.key) for each in added]
    assert ops[:3] == [("read", "7"), ("read", "8"), ("delete", "1000")]
    assert sorted(ops[3:]) == sorted(
        [*(("delete", key) for key in ghosts[1:]), *(("read", str(number)) for number in range(1, ROWS + 1))]
    )
    originals = {bytes(each.envelope.original) for each in added if isinstance(each.envelope.original, Raw)}
    assert originals == {f'{{"id":{key},"name":"forged","amount":"NaN"}}'.encode() for key in ghosts}
    assert site.state("item") == {
        str(number): {"id": number, "name": f"item {number}", "amount": f"{number / 4:.2f}"}
        for number in range(1, ROWS + 1)
    }
