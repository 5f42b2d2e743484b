"""Makes the service, the broker and the link between them fail, while a producer writes Debezium's events to topics.

The producer uses transactions, and aborts some of them. The service reads the topics, and publishes to a file log or to
other topics of the same broker. At the end of a block, the faults stop, and the service must catch up by itself. Then
the changelog must have each committed event once, and the events of each partition must be in their order.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import msgspec
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import NewTopic

from changelog.connectors import config
from changelog.connectors.commands.tail import message_line
from changelog.connectors.kafka.client import Client
from changelog.connectors.servers.kafka import Broker, find_lib
from changelog.connectors.servers.unprivileged import reachable, temporary_folder
from changelog.connectors.sinks.kafka.reading.consume import consumed
from changelog.connectors.sinks.kafka.sink import FAIL_POINTS as SINK_FAIL_POINTS
from changelog.connectors.sources.debezium.source import FAIL_POINTS as SOURCE_FAIL_POINTS
from changelog.connectors.wiring.sinks import open_log
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.columnar import batch
from changelog.envelope.errors import ChangelogError
from tests.campaigns._pieces import Campaign, Figures, Piece
from tests.campaigns._service import FAIL_POINTS as FILE_FAIL_POINTS
from tests.campaigns._service import LOOP_FAIL_POINTS, Service
from tests.proxy import Proxy
from tests.unit.debezium.change_events import STARTED_MS, event
from tests.unit.debezium.writer import PARTITIONS, TABLES, Writer, changes

BLOCK = 20
BROKER = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000"}
LOADED_S_MAX = 2.0
FAULT_S = (0.2, 3.0)
CATCH_UP_S = 180.0
REACHED_S = 20.0
ABORTED = 0.1

CLIENT = """
"socket.timeout.ms" = "3000"
"socket.connection.setup.timeout.ms" = "2000"
"reconnect.backoff.max.ms" = "500"
"""

CONFIG = """
name = "soak"
[service]
listen = "127.0.0.1:0"
[tables]
include = ["public.*"]
[source]
kind = "debezium"
connector = "postgresql"
[source.topics]
bootstrap_servers = "{broker}"
include = ["app.*"]
[source.topics.client]
{client}
[sink]
{sink}
"""

FILES = """
path = "log"
commit_seconds = 0.05
"""

KAFKA = """
kind = "kafka"
bootstrap_servers = "{broker}"
transaction_timeout_seconds = 10
commit_seconds = 0.05
[sink.client]
{client}
"""


def campaign() -> Campaign:
    """Each round makes one fault. BLOCK rounds share one broker and one producer."""
    return Campaign(site=lambda: nullcontext(_block), rounds=BLOCK)


def _block(piece: Piece) -> Figures:
    with temporary_folder("changelog-soak-debezium-") as folder, _running(folder, piece.seed) as running:
        return running.run(piece.rounds)


@contextmanager
def _running(folder: Path, seed: int) -> Iterator["_Block"]:
    with ExitStack() as stack:
        broker = Broker(reachable(find_lib(), folder), folder / "kafka", settings=BROKER)
        link = stack.enter_context(Proxy("127.0.0.1", broker.port))
        broker.advertised = link.address
        stack.enter_context(broker)
        yield stack.enter_context(closing(_Block(folder, broker, link, seed)))


class _Producer:
    """Writes random transactions in a thread, until it is stopped."""

    def __init__(self, servers: str, rng: random.Random) -> None:
        # Kafka may remove messages whose timestamps are some days old, so the timestamps must be recent.
        self.writer = Writer(rng, begun_ms=int(time.time() * 1000) - STARTED_MS)
        self._rng, self._stop = rng, threading.Event()
        self._sent = dict.fromkeys(self.writer.parts, 0)
        self.aborted = 0
        options: dict[str, Any] = {"bootstrap.servers": servers, "transactional.id": "debezium", "linger.ms": 1}
        self._producer = Producer(options)
        self._producer.init_transactions(60)
        self._thread = threading.Thread(target=self._run, name="producer")

    def start(self) -> None:
        """Starts to write."""
        self._thread.start()

    def stop(self) -> None:
        """Stops the producer, and waits until its last transaction has ended."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            if self._rng.random() < ABORTED:
                self._in_transaction(self._send_garbage, abort=True)
                self.aborted += 1
            self.writer.write(self._rng.choice([1, 1, 5, 40]))
            self._in_transaction(self._send, abort=False)
            self._sent = {part: len(messages) for part, messages in self.writer.parts.items()}
            self._stop.wait(self._rng.random() * 0.05)

    def _send(self) -> None:
        for part, messages in self.writer.parts.items():
            topic, _, number = part.rpartition("/")
            for message in messages[self._sent[part] :]:
                self._producer.produce(topic, message.value, message.key, int(number), headers=list(message.headers))

    def _send_garbage(self) -> None:
        for part in self.writer.parts:
            topic, _, number = part.rpartition("/")
            message = event("c", ("public", TABLES[0]), None, {"id": 10_000, "status": "never committed"})
            self._producer.produce(topic, message.value, message.key, int(number))

    def _in_transaction(self, send: Callable[[], None], *, abort: bool) -> None:
        """Makes a transaction that calls `send`, and commits or aborts it. After a kill, the broker may abort the
        transaction by itself. Then repeats the transaction.
        """
        while True:
            self._producer.begin_transaction()
            try:
                send()
                self._settle(self._producer.flush, 60)
                self._settle(self._producer.abort_transaction if abort else self._producer.commit_transaction, 60)
            except KafkaException as error:
                if not error.args[0].txn_requires_abort():
                    raise
                self._settle(self._producer.abort_transaction, 60)
                continue
            return

    def _settle(self, call: Callable[[float], object], timeout_s: float) -> None:
        """Calls `call`, and repeats the call as long as it fails with an error that allows a repetition."""
        deadline = time.monotonic() + CATCH_UP_S
        while True:
            try:
                call(timeout_s)
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise
            else:
                return


class _Block:
    def __init__(self, folder: Path, broker: Broker, link: Proxy, seed: int) -> None:
        self._broker, self._link, self._rng = broker, link, random.Random(seed)
        self._is_kafka = seed % 2 == 0
        file = folder / "changelog.toml"
        sink = KAFKA.format(broker=broker.bootstrap_servers, client=CLIENT) if self._is_kafka else FILES
        file.write_text(CONFIG.format(broker=broker.bootstrap_servers, client=CLIENT, sink=sink), "utf-8")
        self._settings = config.load(file, {})
        self._service = Service(file)
        self._faults = Counter[str]()
        self._points: list[str] = []
        admin = Client(bootstrap_servers=broker.direct_servers).admin()
        topics = [NewTopic(f"app.public.{table}", PARTITIONS) for table in TABLES]
        for future in admin.create_topics(topics).values():
            future.result()
        self._producer = _Producer(broker.direct_servers, random.Random(seed + 1))

    def close(self) -> None:
        """Stops the service and the producer."""
        self._service.kill()
        self._producer.stop()

    def run(self, rounds: int) -> Figures:
        """Makes `rounds` faults, and compares the changelog with the events."""
        self._producer.start()
        self._until_events()
        self._service.start()
        for fault in self._choose_faults(rounds):
            self._advance()
            assert not self._service.wait(self._rng.random() * LOADED_S_MAX), "the service ended by itself"
            fault()
        self._producer.stop()
        return self._judge()

    def _until_events(self) -> None:
        """Waits until the producer has written an event of each table, because the service learns the columns of a
        table from its events.
        """
        parts = self._producer.writer.parts
        while not all(any(f".{table}/" in part and parts[part] for part in parts) for table in TABLES):
            time.sleep(0.05)
        time.sleep(0.5)

    def _choose_faults(self, rounds: int) -> Sequence[Callable[[], None]]:
        deck = [
            *[self._kill] * 5,
            *[self._crash] * 7,
            *[self._kill_broker] * 3,
            *[self._fail_link] * 5,
        ]
        assert len(deck) == BLOCK
        self._rng.shuffle(deck)
        return deck[:rounds]

    def _stored(self) -> Checkpoint | None:
        try:
            return open_log(self._settings).checkpoint()
        except ChangelogError:  # the broker, or the link to it, is away
            return None

    def _advance(self) -> None:
        """Waits until the service has stored a newer checkpoint."""
        before = self._stored()
        self._service.until_stored(
            self._stored, lambda stored: before is None or stored.through > before.through, CATCH_UP_S
        )

    def _kill(self) -> None:
        self._service.kill()
        self._faults["kill"] += 1
        self._service.start()

    def _crash(self) -> None:
        """Lets the service crash at a fail point. If it does not reach the fail point soon, kills it."""
        if not self._points:
            points = (*LOOP_FAIL_POINTS, *SINK_FAIL_POINTS) if self._is_kafka else FILE_FAIL_POINTS
            self._points = self._rng.sample([*points, *SOURCE_FAIL_POINTS], len(points) + len(SOURCE_FAIL_POINTS))
        point = self._points.pop()
        self._service.kill()
        self._service.start(f"{point}:{self._rng.randrange(1, 8)}")
        crashed = self._service.wait(REACHED_S if "resume" not in point and "recovered" not in point else 2.0)
        self._service.kill()
        self._faults[point if crashed else "kill"] += 1
        self._service.start()

    def _kill_broker(self) -> None:
        self._broker.kill()
        self._faults["broker killed"] += 1
        self._service.wait(self._rng.uniform(*FAULT_S))
        self._broker.start()

    def _fail_link(self) -> None:
        how = self._rng.choice(("stops", "hangs", "is mute", "resets"))
        self._faults[f"link to broker {how}"] += 1
        match how:
            case "stops":
                self._link.stop()
            case "hangs":
                self._link.hang()
            case "is mute":
                self._link.mute()
            case _:
                self._link.reset()
        self._service.wait(self._rng.uniform(*FAULT_S))
        self._link.resume()

    def _judge(self) -> Figures:
        """Waits until the service has published all events, and compares the changelog with them."""
        ends = self._check_topics()
        self._service.until_stored(
            self._stored,
            lambda stored: all(stored.source["progress"].get(part, 0) >= end for part, end in ends.items()),
            CATCH_UP_S,
        )
        self._service.stop()
        expected, published = self._producer.writer.expected, self._published()
        counts = Counter[str]()
        for part, events in expected.items():
            rows = published[part]
            differing = next((n for n, pair in enumerate(zip(rows, events, strict=False)) if pair[0] != pair[1]), None)
            assert rows == events, (
                f"{part} has {len(rows)} changes for {len(events)} events; the first that differs is number {differing}"
            )
            counts["changes"] += len(events)
        return {
            "faults": dict(sorted(self._faults.items())),
            "changes": counts["changes"],
            "aborted": self._producer.aborted,
            "lost": 0,
            "repeated": 0,
            "reordered": 0,
        }

    def _check_topics(self) -> dict[str, int]:
        """Checks that the topics have exactly what the producer wrote. Without this check, a mistake of the producer
        would look like a mistake of the service.

        Returns the offset after the last message, by partition.
        """
        client, ends = Client(bootstrap_servers=self._broker.direct_servers), {}
        for table in TABLES:
            messages = list(consumed(client, f"app.public.{table}"))
            for number in range(PARTITIONS):
                part = f"app.public.{table}/{number}"
                sent_values = [message.value for message in self._producer.writer.parts[part]]
                arrived = [message for message in messages if message.partition == number]
                assert [message.value for message in arrived] == sent_values, f"{part} has {len(arrived)} messages"
                ends[part] = max((message.offset + 1 for message in arrived), default=0)
        return ends

    def _published(self) -> dict[str, list[Any]]:
        published: dict[str, list[Any]] = {part: [] for part in self._producer.writer.parts}
        log = open_log(self._settings)
        for table in TABLES:
            messages = [
                msgspec.json.decode(message_line(record))
                for rows in log.read(entity=table)
                for record in batch.records(rows)
            ]
            messages.sort(key=lambda message: message["value"]["provenance"]["source"]["position"])
            positions = [message["value"]["provenance"]["source"]["position"] for message in messages]
            assert len(set(positions)) == len(positions), "a position occurs twice"
            for change in changes(messages):
                published[change[0]].append(change)
        return published
