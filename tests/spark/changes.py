"""Generates a random workload with every kind of change: the records that the service would publish, and the tables
that result.
"""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from msgspec import Raw

from changelog.envelope.entity import TRUNCATE_KEY
from changelog.envelope.key import partition
from changelog.envelope.model import MISSING, Op, Place, Record
from tests.unit.records import record

PARTITIONS = 3
KEYS = 12
NOTES = ("x,", 'say "no"', "é", "{1}", "", "a/b~c")


@dataclass(slots=True)
class Workload:
    """Generates transactions over two entities. `rows` holds the resulting tables, by entity and key."""

    random: random.Random
    commit: int = 0
    rows: dict[str, dict[str, dict[str, Any]]] = field(default_factory=lambda: {"order": {}, "guest": {}})

    def transactions(self, count: int) -> Iterator[list[Record]]:
        """Yields the next `count` transactions. Each is a list of records, in the order of their positions."""
        for _ in range(count):
            self.commit += 1
            records: list[Record] = []
            for ordinal in range(0, 2 * self.random.randint(1, 4), 2):
                records += self._change(self.random.choice(list(self.rows)), ordinal)
            yield records

    def _change(self, entity: str, ordinal: int) -> list[Record]:
        """Changes a random row of the entity, and returns the records. A move has two records, and a truncate has one
        for each partition. The original row is left out in a `bare` delete and in an `unknown` update.
        """
        rows = self.rows[entity]
        key = str(self.random.randrange(KEYS))
        if key not in rows:
            rows[key] = self._row(key)
            return [self._record(entity, key, self.random.choice([Op.CREATE, Op.CREATE, Op.READ]), ordinal)]
        match self.random.choice(["update"] * 8 + ["unknown", "delete", "bare", "read", "move", "truncate"]):
            case "delete" | "bare" as how:
                old = rows.pop(key)
                return [self._record(entity, key, Op.DELETE, ordinal, old if how == "delete" else None)]
            case "read":
                return [self._record(entity, key, Op.READ, ordinal)]
            case "move":
                return self._move(entity, key, str(self.random.randrange(KEYS)), ordinal)
            case "truncate" if self.random.random() < 0.2:
                rows.clear()
                truncate = self._record(entity, TRUNCATE_KEY, Op.TRUNCATE, ordinal)
                return [replace(truncate, place=Place(key=TRUNCATE_KEY, partition=n)) for n in range(PARTITIONS)]
            case how:
                old = rows[key]
                without_long = self.random.random() < 0.3
                rows[key] = self._row(key) | ({"long": old["long"]} if without_long else {})
                unavailable = ("long",) if without_long else ()
                original = None if how == "unknown" else old
                return [self._record(entity, key, Op.UPDATE, ordinal, original, unavailable)]

    def _move(self, entity: str, key: str, to: str, ordinal: int) -> list[Record]:
        """Moves the row from `key` to the key `to`, and returns the two records of the move. If `to` already has a row,
        moves nothing, and returns a read of the row under `key`.
        """
        rows = self.rows[entity]
        if to in rows:
            return [self._record(entity, key, Op.READ, ordinal)]
        old = rows.pop(key)
        rows[to] = old | {"id": int(to)}
        places = [Place(key=k, partition=partition(k.encode(), PARTITIONS)) for k in (key, to)]
        delete = self._record(entity, key, Op.DELETE, ordinal, old)
        create = self._record(entity, to, Op.CREATE, ordinal + 1)
        return [replace(delete, moved_to=places[1]), replace(create, moved_from=places[0])]

    def _row(self, key: str) -> dict[str, Any]:
        return {
            "id": int(key),
            "status": self.random.choice(["NEW", "PAID", None]),
            "note": self.random.choice(NOTES),
            "amount": f"{self.random.randrange(1000)}.50",
            "doc": {"tags": self.random.sample(range(5), 3), "n": self.random.randrange(3)},
            "long": "l" * self.random.randrange(4),
        }

    def _record(
        self,
        entity: str,
        key: str,
        op: Op,
        ordinal: int,
        old: dict[str, Any] | None = None,
        unavailable: tuple[str, ...] = (),
    ) -> Record:
        """Returns a record with the present row of the key. Without `old`, the original row is missing."""
        row = self.rows[entity].get(key)
        current = None
        if op not in (Op.DELETE, Op.TRUNCATE):
            assert row is not None
            current = json.dumps({name: value for name, value in row.items() if name not in unavailable})
        template = record(
            op, current, commit=self.commit, ordinal=ordinal, key=key, entity=entity, unavailable=unavailable
        )
        original = None if op is Op.TRUNCATE else MISSING if old is None else Raw(json.dumps(old))
        return replace(
            template,
            place=Place(key=key, partition=partition(key.encode(), PARTITIONS)),
            envelope=replace(template.envelope, original=original),
        )
