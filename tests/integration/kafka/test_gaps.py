"""Tests that a service that publishes to Kafka can continue after a gap.

There is a gap if the replication slot, a topic or the checkpoint was lost, because changes may then be missing. A
consumer that reads the messages before and after the gap must end up with the rows of the table.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest
from confluent_kafka import Producer

from changelog.connectors import cli
from changelog.connectors.kafka.client import Client
from changelog.connectors.servers.kafka import Broker
from changelog.connectors.sinks.kafka.admin.names import gaps_topic, positions_topic, topic
from changelog.connectors.sources.postgres.crossing import FAIL_POINTS
from changelog.connectors.sources.postgres.values.lsn import through_lsn
from changelog.connectors.wiring.sinks import read_gaps
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.errors import ChangelogError
from changelog.envelope.gap import Gap
from tests.campaigns._consumer import TABLE, Consumer, Writer, check_order, table
from tests.campaigns._service import Service, is_read
from tests.integration.kafka.site import Site
from tests.integration.kafka.topics import delete
from tests.patience import PATIENCE_S
from tests.servers.registry import Registry


class World:
    """A service that publishes one table, a writer of this table, and a consumer that has read all messages before the
    gap.
    """

    def __init__(self, dsn: str, broker: Broker, folder: Path, seed: int, registry: Registry | None) -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(TABLE)
            connection.execute("ALTER TABLE guest REPLICA IDENTITY FULL")
        self.client = Client(bootstrap_servers=broker.bootstrap_servers, options={})
        self.site = Site(dsn, broker, folder, tables={"guest": 3}, registry=registry)
        self.name = self.site.settings.name
        self.service = Service(self.site.config)
        self.writer, self.consumer = Writer(dsn, seed), Consumer()
        self.writer.write(20)
        with self.site.running() as running:
            running.until(self.site.is_read)
            self.writer.write(10)
            running.until(self._consume)

    def _rows(self) -> Iterator[pa.RecordBatch]:
        """Returns the rows ordered by position. A consumer of several partitions must handle the rows in this order."""
        rows = pa.Table.from_batches(list(self.site.log.read(entity="guest")))
        return iter(rows.sort_by("position").to_batches())

    def _consume(self) -> bool:
        """Lets the consumer read all messages. Returns whether it then has the rows of the table."""
        self.consumer.take(self._rows())
        return self.consumer.states == table(self.site.dsn)

    def sql(self, statement: str) -> None:
        with psycopg.connect(self.site.dsn, autocommit=True) as connection:
            connection.execute(statement.encode())

    def cross_gap(self, *fail_points: str) -> Gap:
        """Continues over the gap while the writer writes, and returns the gap.

        The command `run --over-gap --yes` is started once for each of `fail_points`, and crashes there. Then it is
        started without a fail point, unless it has already stored the gap. At the end, the service runs normally.
        """
        self.writer.start()
        try:
            for point in fail_points:
                self.service.start(point, "--over-gap", "--yes")
                assert self.service.wait(PATIENCE_S), f"{point} was not reached: {self.service.said()[-2000:]}"
            if "gap:stored" not in fail_points:
                self.service.start(None, "--over-gap", "--yes")
                self.service.until_stored(self._checkpoint, lambda stored: stored.epoch > 1, PATIENCE_S)
                self.service.kill()
            self.service.start()
            self.service.until_stored(self._checkpoint, _is_repaired, PATIENCE_S)
        finally:
            self.writer.stop()
        return self._judge()

    def _judge(self) -> Gap:
        with psycopg.connect(self.site.dsn) as connection:
            [(end,)] = connection.execute("SELECT (pg_current_wal_insert_lsn() - '0/0')::int8").fetchall()
        self.sql("INSERT INTO guest VALUES (-1, 'last', 0)")
        self.service.until_stored(self._checkpoint, lambda stored: through_lsn(stored) > end, PATIENCE_S)
        self.service.stop()
        expected_rows = table(self.site.dsn)
        self.consumer.take(self._rows())
        assert self.consumer.states == expected_rows
        check_order(rows for rows in self._rows())
        new_consumer = Consumer()
        new_consumer.take(self._rows())
        assert new_consumer.states == expected_rows
        return Gap.parse(read_gaps(self.site.log)[-1].envelope.current or b"")

    def _checkpoint(self) -> Checkpoint | None:
        with suppress(ChangelogError):
            return self.site.checkpoint
        return None


def _is_repaired(checkpoint: Checkpoint) -> bool:
    return is_read(checkpoint) and not checkpoint.repairs.get("open")


@pytest.fixture
def world(
    database: str, broker: Broker, registry: Registry, tmp_path: Path, seed: int, request: pytest.FixtureRequest
) -> Iterator[World]:
    new_world = World(database, broker, tmp_path, seed, registry if request.param == "avro" else None)
    yield new_world
    new_world.service.kill()
    new_world.writer.stop()


def drop_slot(world: World) -> None:
    world.sql(f"SELECT pg_drop_replication_slot('{world.name}')")


def delete_topic(world: World) -> None:
    delete(world.client, topic(world.name, "guest"))


def delete_checkpoint(world: World) -> None:
    delete(world.client, positions_topic(world.name))


def drop_slot_and_checkpoint(world: World) -> None:
    drop_slot(world)
    assert cli.main(["drop", "--config", str(world.site.config), "--positions", "--yes"]) == 0


def overwrite_checkpoint(world: World) -> None:
    producer = Producer(world.client.config())
    producer.produce(positions_topic(world.name), b"{", world.name.encode(), 0)
    assert producer.flush(PATIENCE_S) == 0


def run(world: World, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = cli.main(["run", "--config", str(world.site.config), *words])
    captured = capsys.readouterr()
    return code, captured.out + captured.err


@pytest.mark.parametrize(
    ("world", "damage", "reason", "points"),
    [
        ("json", drop_slot, "no longer exists, although the changelog was begun with it", FAIL_POINTS[2:4]),
        ("avro", delete_topic, "no longer exists, although the changelog was begun with it", ("gap:taken-over",)),
        ("json", delete_checkpoint, "has no checkpoint of", ("kafka:positioned",)),
        ("json", overwrite_checkpoint, "is not a checkpoint", FAIL_POINTS[3:4]),
        ("json", drop_slot_and_checkpoint, "has no checkpoint of", ("gap:stored",)),
    ],
    indirect=["world"],
)
def test_the_service_continues_after_each_kind_of_damage(
    world: World,
    capsys: pytest.CaptureFixture[str],
    damage: Callable[[World], None],
    reason: str,
    points: tuple[str, ...],
) -> None:
    damage(world)
    world.writer.write(10)
    capsys.readouterr()
    code, output = run(world, capsys)
    assert code == 3
    assert reason in output
    assert "`changelog run --over-gap`" in output
    code, output = run(world, capsys, "--over-gap")
    assert (code, reason in output) == (1, True)
    gap = world.cross_gap(*points)
    assert gap.after.epoch > gap.before.epoch
    assert gaps_topic(world.name) in world.client.admin().topics()
    assert run(world, capsys, "--over-gap")[0] == 0
