"""Runs the campaign `audit` with Kafka. In addition, the broker and the link to it fail, and two instances of the
service compete with each other.

An ordinary consumer reads the committed messages of every partition for the judge.
"""

import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from changelog.connectors.servers.kafka import Broker, find_lib
from changelog.connectors.servers.postgres import PostgresServer, temporary_server
from changelog.connectors.servers.unprivileged import reachable, temporary_folder
from changelog.connectors.sinks.kafka.sink import FAIL_POINTS
from changelog.connectors.sources.postgres.values.lsn import through_lsn
from changelog.envelope.checkpoint import Checkpoint
from tests.campaigns._audit.block import Block
from tests.campaigns._audit.history import place
from tests.campaigns._audit.rows import Gap, Row
from tests.campaigns._audit.site import CATCH_UP_S, NAME, POSTGRES
from tests.campaigns._audit.tables import crowd, entity_of
from tests.campaigns._audit.topics import gaps_of_topics, of_topics
from tests.campaigns._pieces import Campaign, Figures, Piece
from tests.campaigns._service import Service
from tests.campaigns._topics import Positions
from tests.campaigns.kafka import BROKER, KEEP, TOOK_OVER
from tests.proxy import Proxy
from tests.servers.disks import fill, make_room, small_disk

ROUNDS = 10
CROWD, CROWDED_EVERY, CROWDED_AT = 1_000, 100, 50
"""Once in every 100 rounds, a block also has a thousand small tables: the block that begins with round 50, 150 …"""
DISK_MIB = 700
FULL_S = (2.0, 8.0)
_SILENT = logging.getLogger("tests.campaigns.audit_kafka")
_SILENT.setLevel(logging.CRITICAL)
SINK = """kind = "kafka"
bootstrap_servers = "{broker}"
transaction_timeout_seconds = 10
commit_seconds = 0.05
[sink.client]
"socket.timeout.ms" = "3000"
"socket.connection.setup.timeout.ms" = "2000"
"reconnect.backoff.max.ms" = "500"
"""


def campaign() -> Campaign:
    """Each round makes one fault. ROUNDS rounds share the database, the broker and the threads that write."""
    return Campaign(site=lambda: nullcontext(_block), rounds=ROUNDS)


class Topics:
    """The changelog in the topics of a broker. The service reaches the broker through `link`. If a fault deletes a
    topic, this object keeps the rows that the topic had.
    """

    fail_points = FAIL_POINTS

    def __init__(self, broker: Broker, link: Proxy) -> None:
        self.section, self.link = SINK.format(broker=link.address), link
        self._servers = broker.direct_servers
        self._kept: list[Row] = []
        self._positions = Positions(self._servers, NAME, NAME)

    def stored(self) -> Checkpoint | None:
        return self._positions.newest()

    def rows(self, entities: Sequence[str]) -> Iterator[Row]:
        yield from self._kept
        yield from of_topics(self._servers, NAME, entities)

    def gaps(self) -> list[Gap]:
        return gaps_of_topics(self._servers, NAME)

    def keep(self, name: str) -> None:
        """Keeps the rows that the topic of an entity has now. The caller then deletes the topic."""
        self._kept += of_topics(self._servers, NAME, [name])

    def lose(self, name: str, partitions: int) -> None:
        """Deletes a topic. If `partitions` is not 0, creates the topic again with this number of partitions."""
        topic, admin = f"{NAME}.{name}", AdminClient({"bootstrap.servers": self._servers}, logger=_SILENT)
        _repeat_until_done(lambda: admin.delete_topics([topic]), KafkaError.UNKNOWN_TOPIC_OR_PART)
        if partitions:
            _repeat_until_done(
                lambda: admin.create_topics([NewTopic(topic, partitions, 1)]), KafkaError.TOPIC_ALREADY_EXISTS
            )

    def reopen(self) -> None:
        """Reads the topic of the checkpoints from its start, because this topic was deleted."""
        self._positions.close()
        self._positions = Positions(self._servers, NAME, NAME)

    def close(self) -> None:
        """Closes the consumer that follows the checkpoints."""
        self._positions.close()


def _repeat_until_done(ask: Callable[[], dict[str, Future[None]]], done_code: int) -> None:
    """Repeats a request until the broker answers with `done_code`. This code must mean that the broker has already done
    what was requested.
    """
    deadline, code = time.monotonic() + CATCH_UP_S, 0
    while code != done_code:
        assert time.monotonic() < deadline, f"the broker answers the request with error code {code} again and again"
        [future] = ask().values()
        error = future.exception()
        code = error.args[0].code() if isinstance(error, KafkaException) else 0
        time.sleep(0.1)


class KafkaBlock(Block):
    """A block in which the broker fails as well, and topics are lost. If the broker has a small disk of its own, `disk`
    is its path, and the block also fills this disk.
    """

    def __init__(
        self,
        server: PostgresServer,
        link: Proxy,
        folder: Path,
        seed: int,
        topics: Topics,
        broker: Broker,
        disk: Path | None,
        small: Sequence[str],
    ) -> None:
        super().__init__(server, link, folder, seed, topics, small)
        self._port, self._topics, self._broker, self._disk = server.port, topics, broker, disk
        self._second: Service | None = None

    def close(self) -> None:
        if self._second is not None:
            self._second.kill()
        self._topics.close()
        super().close()

    def faults(self) -> list[Callable[[], None]]:
        full = [self._fill_disk] * 2 if self._disk else []
        return [*super().faults(), *[self._kill_broker] * 2, *[self._two_instances] * 2, *full]

    def losses(self) -> list[Callable[[], None]]:
        return [*super().losses(), *[self._lose_topic] * 2, self._lose_positions]

    def links(self) -> dict[str, Proxy]:
        return {**super().links(), "link to the broker": self._topics.link}

    def _kill_broker(self) -> None:
        self.done["broker killed"] += 1
        self._broker.kill()
        self.let_run(self.rng.random())
        self._broker.start()

    def _fill_disk(self) -> None:
        """Fills the broker's disk, which may end the broker. The service must wait. Then frees the disk, and starts the
        broker again.
        """
        self.done["broker disk full"] += 1
        assert self._disk is not None
        fill(self._disk)
        self.let_run(self.rng.uniform(*FULL_S))
        self.done["broker ended"] += not self._broker.running
        make_room(self._disk)
        self._broker.kill()
        self._broker.start()

    def _lose_topic(self) -> None:
        """Deletes a topic, while the service runs or while it is stopped. Either the campaign or the service creates
        the topic again.
        """
        name = self.rng.choice([*self.names, "schemas"])
        self.done["topic lost"] += 1
        self.service.stop()
        before = self.sink.stored()
        assert before is not None
        start = place(through_lsn(before), [restored.at for restored in self.restored])
        entity = name in self.names
        if entity:
            self._topics.keep(name)
        if running := self.rng.random() < 0.5:
            self.service.start()
            self.advance()
        self._topics.lose(name, self.rng.choice((0, entity_of(name).partitions if entity else 1)))
        if not running:
            self.service.start()
        self.go_over_gap(emptied=[name] if entity else [])
        if running and entity:
            since = self.since[name]
            self.since[name] = replace(since, hidden=(*since.hidden, (start, self.here())))

    def _lose_positions(self) -> None:
        """Deletes the topic with the checkpoints. After that, only the rows show where the changelog ends."""
        self.done["positions lost"] += 1
        self.service.stop()
        before = self.sink.stored()
        self._topics.lose("positions", 0)
        self._topics.reopen()
        self.service.start()
        self.go_over_gap(before)

    def _two_instances(self) -> None:
        """Cuts the first instance of the service off from the database. A second instance publishes instead, and ends.
        Then the first one continues.
        """
        self.done["two instances"] += 1
        self.advance()
        self.link.stop()
        config = self.folder / f"second-{self.done['two instances']}.toml"
        config.write_text(self.configuration(self._port), "utf-8")
        self._second = Service(config)
        self._second.start()
        self._second.until_said("streaming", CATCH_UP_S)
        for _ in range(self.rng.randrange(1, 4)):
            self.advance(self._second)
        self.rng.choice((self._second.stop, self._second.kill))()
        self.link.resume()
        self._wait_for_first()

    def _wait_for_first(self) -> None:
        """Waits until the first instance publishes again. If it ended because the second one had taken over, starts it
        again.
        """
        before, deadline = self.sink.stored(), time.monotonic() + CATCH_UP_S
        while self.sink.stored() == before:
            assert time.monotonic() < deadline, f"the first instance does not continue: {self.service.said()[-2000:]}"
            time.sleep(0.05)
            if self.service.exit_code is not None:
                last = self.service.said().rstrip().rpartition("\n")[2]
                assert any(text in last for text in TOOK_OVER), f"the first instance ended: {last}"
                self.done["first instance replaced"] += 1
                self.service.start()


def _block(piece: Piece) -> Figures:
    with temporary_folder("changelog-audit-") as folder:
        try:
            with _running(folder, piece) as block:
                return block.run(piece.rounds)
        except BaseException:
            if keep_folder := os.environ.get(KEEP):
                shutil.copytree(folder, Path(keep_folder) / f"audit_kafka-{piece.seed}", dirs_exist_ok=True)
            raise


@contextmanager
def _running(folder: Path, piece: Piece) -> Iterator[KafkaBlock]:
    """Starts the servers and the links, and yields the block that uses them."""
    with ExitStack() as stack:
        server = stack.enter_context(temporary_server(settings=POSTGRES))
        disk = folder / "kafka"
        mounted = stack.enter_context(small_disk(disk, DISK_MIB))
        broker = Broker(reachable(find_lib(), folder), folder / "kafka", settings=BROKER)
        to_server = stack.enter_context(Proxy("127.0.0.1", server.port))
        to_broker = stack.enter_context(Proxy("127.0.0.1", broker.port))
        broker.advertised = to_broker.address
        stack.enter_context(broker)
        topics, small = Topics(broker, to_broker), crowd(CROWD) if piece.first % CROWDED_EVERY == CROWDED_AT else []
        block = KafkaBlock(server, to_server, folder, piece.seed, topics, broker, disk if mounted else None, small)
        stack.enter_context(closing(block))
        yield block
