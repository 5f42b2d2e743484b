"""Reads a changelog from a broker, with ordinary consumers instead of the product's reader, and checks its order.

Each partition is checked in the order of its offsets. Then the rows of all partitions are merged by position, in the
form that `_judge` compares.
"""

import heapq
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
from confluent_kafka import Consumer, Message, TopicPartition

from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.key import key_text, partition
from tests.campaigns._audit.topics import messages
from tests.campaigns._judge import Row, Verdict
from tests.campaigns._oracle import TABLES, TRUNCATE_KEY

POLL_S = 0.02
HEADERS = {"op", "position", "transaction", "serviceName"}
_SILENT = logging.getLogger("tests.campaigns.kafka")
_SILENT.setLevel(logging.CRITICAL)


class Positions:
    """Follows the checkpoints of the source `name` in the topic `<prefix>.positions`. Survives restarts of the broker.

    The checkpoints are messages with the source's name as their key.
    """

    def __init__(self, servers: str, prefix: str, name: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": "judge",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 20,
                "reconnect.backoff.max.ms": 500,
                "logger": _SILENT,
            }
        )
        self._consumer.assign([TopicPartition(f"{prefix}.positions", 0, 0)])
        self._name = name.encode()
        self._newest: Checkpoint | None = None

    def newest(self) -> Checkpoint | None:
        """The last committed checkpoint that this consumer has received."""
        while (message := self._consumer.poll(POLL_S)) is not None:
            if message.error() is None and message.key() == self._name:
                self._newest = Checkpoint.from_json(message.value() or b"")
        return self._newest

    def close(self) -> None:
        """Closes the consumer."""
        self._consumer.close()


@dataclass(slots=True)
class Read:
    """How many messages the broker has: `committed` counts those of committed transactions, and `stored` counts all."""

    committed: int = 0
    stored: int = 0

    @property
    def aborted(self) -> int:
        """The number of messages in aborted transactions. A consumer of committed messages must not see them."""
        return self.stored - self.committed


def rows(servers: str, prefix: str, verdict: Verdict, counts: Read) -> Iterator[Row]:
    """Yields the rows of all partitions of all entities, merged by position. Adds faults to `verdict`, and the numbers
    of messages to `counts`. Both are complete only after all rows have been yielded.
    """
    partitions = [
        _Partition(servers, prefix, entity, number, verdict, counts).rows()
        for entity, table in TABLES.items()
        for number in range(table.partitions)
    ]
    yield from _moves(heapq.merge(*partitions, key=lambda row: row.position), verdict)
    counts.stored = sum(
        sum(1 for _ in messages(servers, [(f"{prefix}.{entity}", number)], "read_uncommitted"))
        for entity, table in TABLES.items()
        for number in range(table.partitions)
    )


class _Envelope(msgspec.Struct, forbid_unknown_fields=True):
    provenance: dict[str, object]
    current: msgspec.Raw = msgspec.Raw(b"null")
    original: msgspec.Raw = msgspec.Raw(b"null")


_decoder = msgspec.json.Decoder(_Envelope)


class _Partition:
    """Reads one partition in the order of its offsets. Positions must grow, and each delete must be followed by a
    tombstone.
    """

    def __init__(self, servers: str, prefix: str, entity: str, number: int, verdict: Verdict, counts: Read) -> None:
        self._servers, self._topic = servers, f"{prefix}.{entity}"
        self._entity, self._number, self._verdict, self._counts = entity, number, verdict, counts
        self._last = ""
        self._deleted: Message | None = None

    def rows(self) -> Iterator[Row]:
        """Yields the rows of the partition, without tombstones."""
        for _, message in messages(self._servers, [(self._topic, self._number)]):
            self._counts.committed += 1
            if message.value() is None:
                self._tombstone(message)
                continue
            self._check_no_tombstone_due()
            row = self._row(message)
            self._check_order(row)
            if row.op == "delete":
                self._deleted = message
            yield row
        self._check_no_tombstone_due()

    def _wrong(self, fault: str, subject: object) -> None:
        self._verdict.wrong += 1
        self._verdict.note(f"{self._topic}[{self._number}]: {fault}", subject)

    def _tombstone(self, message: Message) -> None:
        deleted, self._deleted = self._deleted, None
        if deleted is None or (deleted.key(), deleted.headers()) != (message.key(), message.headers()):
            self._wrong("a tombstone that does not belong to the delete before it", (message.key(), message.headers()))

    def _check_no_tombstone_due(self) -> None:
        if self._deleted is not None:
            self._wrong("a delete without its tombstone", (self._deleted.key(), self._deleted.headers()))
            self._deleted = None

    def _check_order(self, row: Row) -> None:
        if row.position == self._last:
            self._verdict.repeated += 1
            self._verdict.note("repeated position", row)
        elif row.position < self._last:
            self._verdict.reordered += 1
            self._verdict.note(f"position after {self._last}", row)
        self._last = row.position

    def _row(self, message: Message) -> Row:
        pairs: Any = message.headers() or []  # consumers get pairs; only producers may use a mapping
        headers = {name: value.decode() for name, value in pairs}
        moved = {name: json.loads(headers.pop(name)) for name in ("movedTo", "movedFrom") if name in headers}
        envelope = _decoder.decode(message.value() or b"")
        row = Row(
            entity=self._entity,
            partition=self._number,
            key=(message.key() or b"").decode(),
            op=headers.get("op", ""),
            position=headers.get("position", ""),
            transaction=headers.get("transaction", ""),
            identifier=str(envelope.provenance.get("identifier", "")),
            current=_text(envelope.current),
            original=_text(envelope.original),
            moved=json.dumps(moved) if moved else None,
        )
        self._check_headers(row, headers, envelope.provenance, message.timestamp()[1])
        if row.key != TRUNCATE_KEY:
            self._check_partition(row)
        return row

    def _check_headers(
        self, row: Row, headers: dict[str, str], provenance: dict[str, object], timestamp_ms: int
    ) -> None:
        """Checks that the headers and the timestamp of a message agree with its envelope."""
        source = provenance["source"]
        assert isinstance(source, dict)
        expected = {
            **{name: str(source[name]) for name in ("op", "position", "transaction")},
            "serviceName": str(provenance["serviceName"]),
        }
        committed_ms = int(datetime.fromisoformat(source["committedAt"]).timestamp() * 1000)
        if headers != expected or timestamp_ms != committed_ms:
            self._wrong(f"headers {headers} at {timestamp_ms}, but the envelope says {expected} at {committed_ms}", row)

    def _check_partition(self, row: Row) -> None:
        """Checks that the row's values belong to this partition. The key is checked in `_judge`."""
        values = json.loads(row.current or row.original or "{}")
        table = TABLES[self._entity]
        text = key_text([str(values[column]) for column in table.partition_by])
        if partition(text.encode(), table.partitions) != self._number:
            self._wrong("in the wrong partition", row)


def _text(raw: msgspec.Raw) -> str | None:
    text = bytes(raw)
    return None if text == b"null" else text.decode()


def _moves(merged: Iterator[Row], verdict: Verdict) -> Iterator[Row]:
    """Yields the rows of `merged`. Checks that the delete and the create of each move are adjacent, and that each of
    the two names the key and the partition of the other.
    """
    delete: Row | None = None
    for row in merged:
        moved = json.loads(row.moved) if row.moved else {}
        is_create = "movedFrom" in moved
        if is_create != (delete is not None) or (delete is not None and not _halves(delete, row)):
            verdict.wrong += 1
            verdict.note("a move without its other half", (delete, row))
        delete = row if "movedTo" in moved else None
        yield row


def _halves(delete: Row, create: Row) -> bool:
    to, back = json.loads(delete.moved or "{}")["movedTo"], json.loads(create.moved or "{}")["movedFrom"]
    return (
        (delete.entity, delete.op, create.op) == (create.entity, "delete", "create")
        and (delete.place[0], delete.place[1] + 1) == create.place
        and (to["key"], to["partition"]) == (create.key, create.partition)
        and (back["key"], back["partition"]) == (delete.key, delete.partition)
    )
