"""The campaign `audit` over Kafka: the broker and its link fail, too, and two instances of the service run at once.

A plain consumer reads the committed messages of every partition.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from pathlib import Path

from connectors.servers.kafka import Broker, find_lib
from connectors.servers.postgres import Server, temporary_server
from connectors.servers.unprivileged import reachable, temporary_folder
from connectors.sinks.kafka.sink import FAIL_POINTS
from envelope.checkpoint import Checkpoint
from tests.campaigns._audit.block import Block
from tests.campaigns._audit.rows import Gap, Row
from tests.campaigns._audit.site import CATCH_UP_S, NAME, POSTGRES
from tests.campaigns._audit.topics import gaps_of_topics, of_topics
from tests.campaigns._pieces import Campaign, Figures, Piece
from tests.campaigns._service import Service
from tests.campaigns._topics import Positions
from tests.campaigns.kafka import BROKER, KEEP, TOOK_OVER
from tests.proxy import Proxy

ROUNDS = 10
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
    """A round is a fault; ROUNDS of them under one load, on servers of their own."""
    return Campaign(site=lambda: nullcontext(_block), rounds=ROUNDS)


class Topics:
    """A broker; the service reaches it through `link`."""

    fail_points = FAIL_POINTS

    def __init__(self, broker: Broker, link: Proxy) -> None:
        self.section, self.link = SINK.format(broker=link.address), link
        self._servers = broker.direct_servers
        self._positions = Positions(self._servers, NAME, NAME)

    def stored(self) -> Checkpoint | None:
        return self._positions.newest()

    def rows(self, entities: Sequence[str]) -> Iterator[Row]:
        return of_topics(self._servers, NAME, entities)

    def gaps(self) -> list[Gap]:
        return gaps_of_topics(self._servers, NAME)

    def close(self) -> None:
        """Ends the consumer of positions."""
        self._positions.close()


class KafkaBlock(Block):
    """A block whose broker fails as well."""

    def __init__(self, server: Server, link: Proxy, folder: Path, seed: int, topics: Topics, broker: Broker) -> None:
        super().__init__(server, link, folder, seed, topics)
        self._port, self._topics, self._broker = server.port, topics, broker
        self._second: Service | None = None

    def close(self) -> None:
        if self._second is not None:
            self._second.kill()
        self._topics.close()
        super().close()

    def faults(self) -> list[Callable[[], None]]:
        return [*super().faults(), *[self._kill_broker] * 2, *[self._part_from_broker] * 2, *[self._two_instances] * 2]

    def _kill_broker(self) -> None:
        self.done["broker killed"] += 1
        self._broker.kill()
        self.loaded(self.rng.random())
        self._broker.start()

    def _part_from_broker(self) -> None:
        self.part("link to the broker", self._topics.link)

    def _two_instances(self) -> None:
        """The first cannot reach the server; a second can, publishes, and ends. Then the first goes on."""
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
        self._go_on()

    def _go_on(self) -> None:
        """The first instance, too, may learn from the broker that it was replaced, and end: then it is restarted."""
        before, deadline = self.sink.stored(), time.monotonic() + CATCH_UP_S
        while self.sink.stored() == before:
            assert time.monotonic() < deadline, f"the first instance does not go on: {self.service.said()[-2000:]}"
            time.sleep(0.05)
            if self.service.exit_code is not None:
                last = self.service.said().rstrip().rpartition("\n")[2]
                assert any(text in last for text in TOOK_OVER), f"the first instance ended: {last}"
                self.done["first instance replaced"] += 1
                self.service.start()


def _block(piece: Piece) -> Figures:
    with temporary_folder("changelog-audit-") as folder:
        try:
            with _running(folder, piece.seed) as block:
                return block.run(piece.rounds)
        except BaseException:
            if kept := os.environ.get(KEEP):
                shutil.copytree(folder, Path(kept) / f"audit_kafka-{piece.seed}", dirs_exist_ok=True)
            raise


@contextmanager
def _running(folder: Path, seed: int) -> Iterator[KafkaBlock]:
    """Servers, links, and the block between them."""
    with ExitStack() as stack:
        server = stack.enter_context(temporary_server(settings=POSTGRES))
        broker = Broker(reachable(find_lib(), folder), folder / "kafka", settings=BROKER)
        to_server = stack.enter_context(Proxy("127.0.0.1", server.port))
        to_broker = stack.enter_context(Proxy("127.0.0.1", broker.port))
        broker.advertised = to_broker.address
        stack.enter_context(broker)
        block = KafkaBlock(server, to_server, folder, seed, Topics(broker, to_broker), broker)
        stack.enter_context(closing(block))
        yield block
