"""Stores the demo's changelog on Kafka: on a broker of its own, or on one that already runs. Needs the extra
`kafka`.
"""

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from msgspec import Raw
from rich.console import Console
from rich.table import Table
from rich.text import Text

from changelog.connectors.java.program import find_java
from changelog.connectors.kafka.client import Client
from changelog.connectors.servers.kafka import Broker, find_lib, temporary_broker
from changelog.connectors.sinks.kafka.admin.names import topic
from changelog.connectors.sinks.kafka.admin.topics import read
from changelog.connectors.sinks.kafka.reading.consume import Consumed, consumed
from changelog.connectors.terminal import safe
from changelog.envelope.codec import json_codec
from changelog.envelope.errors import ChangelogError, Kind

SINK = """\
[sink]
kind = "kafka"
bootstrap_servers = "{servers}"
prefix = "{prefix}\""""

ENTITY = "session"
"""The demo shows the topic of this entity, because sessions change often and are deleted."""

SHOWN = 8
"""How many messages the demo shows."""

BESIDE_VALUES = 42
"""The width of the columns before a message's value (offset, key, op and service), in characters."""


class KafkaStage:
    """Keeps the changelog in topics.

    If `servers` is given, the topics are on that Kafka, under a new prefix, and stay there after the demo. Otherwise,
    they are on a broker that ends with the demo.
    """

    def __init__(self, servers: str | None) -> None:
        self._external = servers
        self._prefix = f"booking-{uuid.uuid4().hex[:6]}" if servers else "booking"
        self._servers = servers or ""

    @contextmanager
    def opened(self, lap: Callable[[str], None]) -> Iterator[str]:
        with self._broker() as broker:
            if broker is None:
                read(self._client().admin(), [])
                lap(f"Kafka answers at {self._servers}")
            else:
                self._servers = broker.bootstrap_servers
                lap(f"Kafka is up at {self._servers}, one broker with its data in a temporary folder")
            yield SINK.format(servers=self._servers, prefix=self._prefix)

    def view(self, console: Console, say: Callable[[str], None], states: Mapping[str, Mapping[str, str]]) -> None:
        name = topic(self._prefix, ENTITY)
        messages = list(consumed(self._client(), name))
        tombstones = [message for message in messages if message.value is None]
        if _folded(messages) != states[ENTITY]:
            raise ChangelogError(Kind.DIVERGED, f"the newest values in {name} differ from the states in the changelog")
        say(
            f"A consumer of committed messages reads {name}: {len(messages):,} messages, {len(tombstones):,} of them"
            f" tombstones;\n   the newest value of each key, {len(states[ENTITY]):,} of them, equals the table:\n"
        )
        last = (tombstones or messages)[-1]
        partition = [message for message in messages if message.partition == last.partition]
        end = partition.index(last) + 1
        console.print(_table(partition[max(end - SHOWN, 0) : end], console.width - BESIDE_VALUES))
        console.print(f"\n   (partition {last.partition}, up to {'its last tombstone' if tombstones else 'its end'})\n")

    def ending(self, console: Console, folder: Path) -> bool:  # noqa: ARG002 - the changelog is not in the folder
        if self._external is None:
            console.print(
                "   (the broker is stopped and its topics are deleted; to keep them, run `make kafka` in another"
            )
            console.print("   terminal, and `changelog demo --kafka --bootstrap-servers HOST:PORT` here)")
            return False
        console.print(f"The topics {self._prefix}.* stay at {self._servers}; delete them when you are done")
        return True

    def _client(self) -> Client:
        return Client(bootstrap_servers=self._servers)

    def _broker(self) -> AbstractContextManager[Broker | None]:
        if self._external is not None:
            return nullcontext()
        try:
            find_java()
            lib = find_lib()
        except ChangelogError as error:
            hint = f"{error.hint}; or name a running Kafka with --bootstrap-servers"
            raise ChangelogError(error.kind, error.message, hint=hint) from error
        return temporary_broker(lib)


def _folded(messages: Sequence[Consumed]) -> dict[str, str]:
    """Returns the newest state of each key that is not deleted. A compacted topic still has these states."""
    newest = {message.key: message.value for message in messages}
    states = {key: json_codec.decode(value).current for key, value in newest.items() if value is not None}
    return {key: bytes(state).decode() for key, state in states.items() if state is not None}


def _table(messages: Sequence[Consumed], value_width: int) -> Table:
    table = Table(box=None, padding=(0, 1), header_style="dim")
    table.add_column("   offset", justify="right")
    for heading in ("key", "op"):
        table.add_column(heading)
    table.add_column("serviceName", style="blue")
    table.add_column("value", no_wrap=True)
    for message in messages:
        table.add_row(
            f"{message.offset:,}",
            Text(safe(message.key)),
            message.headers["op"],
            Text(safe(message.headers["serviceName"])),
            _short(message.value, value_width),
        )
    return table


def _short(value: bytes | None, width: int) -> Text:
    if value is None:
        return Text("none: a tombstone", style="dim")
    envelope = json_codec.decode(value)
    name, state = ("original", envelope.original) if envelope.current is None else ("current", envelope.current)
    text = f"{name} {bytes(state).decode()}" if isinstance(state, Raw) else name
    return Text(safe(text if len(text) <= width else text[: width - 1] + "…"))
