"""Writes events of random transactions as Debezium does, and lists the changes that must be published for them."""

from collections import Counter
from collections.abc import Iterable, Iterator
from random import Random
from typing import Any

from changelog.connectors.sources.debezium.decode.events import SourceRecord
from tests.unit.debezium.change_events import boundary, event, key_header, tombstone

TABLES = ("item", "sale")
PARTITIONS = 3
KEYS = 20

Expected = tuple[str, str, str, Any, Any]
"""A change: its part (the partition of a topic), its op, its key, the state after it, and the state before it."""


class Writer:
    """Writes random transactions as Debezium does. Each changed row has an event in the partition of its key.

    The first transaction commits about `begun_ms` milliseconds after STARTED_MS. With `boundaries`, the topic
    app.transaction has events that say where each transaction begins and ends.
    """

    def __init__(self, random: Random, begun_ms: int = 0, *, boundaries: bool = False) -> None:
        self._random, self._begun_ms, self._boundaries = random, begun_ms, boundaries
        self._rows: dict[tuple[str, int], dict[str, Any]] = {}
        self._number = 0
        self.parts: dict[str, list[SourceRecord]] = {
            f"app.public.{table}/{number}": [] for table in TABLES for number in range(PARTITIONS)
        }
        self.expected: dict[str, list[Expected]] = {part: [] for part in self.parts}
        if boundaries:
            self.parts["app.transaction/0"] = []
        self.order: dict[int, list[tuple[str, str]]] = {}
        """The op and the key of each event, by the number of its transaction, in the order of the database."""

    def write(self, transactions: int) -> None:
        for _ in range(transactions):
            self._number += 1
            self.order[self._number] = []
            self._counts = Counter[str]()
            if self._boundaries:
                self.parts["app.transaction/0"].append(boundary(self._number))
            for _ in range(self._random.choice([1, 1, 2, 6])):
                self._change(self._number)
            if self._boundaries:
                self.parts["app.transaction/0"].append(boundary(self._number, self._counts))

    def _change(self, transaction: int) -> None:
        random, table, key = self._random, self._random.choice(TABLES), self._random.randrange(KEYS)
        before = self._rows.get((table, key))
        self._value = f'{transaction} "\\é{random.randrange(99)}'
        if before is None:
            self._put(transaction, "c", table, None, {"id": key, "status": self._value})
        elif random.random() < 0.25:
            self._put(transaction, "d", table, before, None)
        elif random.random() < 0.2 and (table, key + 100) not in self._rows:
            self._move(transaction, table, before, {"id": key + 100, "status": self._value})
        else:
            self._put(transaction, "u", table, before, {"id": key, "status": self._value})

    def _move(self, transaction: int, table: str, before: dict[str, Any], after: dict[str, Any]) -> None:
        old, new = {"id": before["id"]}, {"id": after["id"]}
        self._put(transaction, "d", table, before, None, headers=[key_header("newkey", new)])
        self._put(transaction, "c", table, None, after, headers=[key_header("oldkey", old)])

    def _put(self, transaction: int, op: str, table: str, before: Any, after: Any, **more: Any) -> None:
        row = after or before
        part = f"app.public.{table}/{row['id'] % PARTITIONS}"
        name, at = ("public", table), self._begun_ms + transaction
        self._counts[f"public.{table}"] += 1
        order = self._counts.total() if self._boundaries else None
        self.parts[part].append(event(op, name, before, after, transaction=transaction, at=at, order=order, **more))
        if op == "d":
            self.parts[part].append(tombstone(name, {"id": row["id"]}))
            del self._rows[table, row["id"]]
        else:
            self._rows[table, row["id"]] = row
        words = {"c": "create", "u": "update", "d": "delete"}
        self.order[transaction].append((words[op], str(row["id"])))
        self.expected[part].append((part, words[op], str(row["id"]), after, before if op == "u" else None))


def changes(messages: Iterable[dict[str, Any]]) -> Iterator[Expected]:
    """Yields the changes in these messages, in their order. Leaves out the originals of deletes, because they may be
    unknown.
    """
    for message in messages:
        if message["entity"] in TABLES:
            source, key = message["value"]["provenance"]["source"], message["key"]
            original = message["value"].get("original") if source["op"] == "update" else None
            part = f"app.{source['table']}/{int(key) % PARTITIONS}"
            yield part, source["op"], key, message["value"]["current"], original
