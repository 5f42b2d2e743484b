"""Makes random changes to tables, and records each change twice.

The first record has complete rows. The second is as in a log with REPLICA IDENTITY DEFAULT. It lacks:

- the old row of an update,
- all of a deleted row but its key,
- a large value (`body`) that did not change.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from random import Random
from typing import Any

import msgspec
from msgspec import Raw

from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.entity import TRUNCATE_KEY, Entity, Evolution
from changelog.envelope.model import MISSING, Envelope, Missing, Op, Place, Provenance, Record, Source, Stamp
from changelog.envelope.position import Position, commit_text
from changelog.envelope.versions import TableColumns, Versions
from changelog.schemas.types import ColumnType, Primitive, Struct

STAMP = Stamp(api_version="v1", service_name="shop", identifier='{"unavailable": "jsonNull"}')
COLUMNS: Mapping[str, ColumnType] = {
    "id": Primitive.INT,
    "name": Primitive.STRING,
    "doc": Primitive.JSON,
    "body": Primitive.STRING,
}
JSON_NULL = object()
"""Stands for JSON's null in a json column. None stands for SQL's NULL."""

State = dict[str, Any]


def entity(name: str, **settings: Any) -> Entity:
    return Entity(
        name=name,
        table=("public", name),
        key=("id",),
        partition_by=("id",),
        partitions=1,
        masks=settings.pop("masks", {}),
        default_stamp=STAMP,
        evolution=Evolution(on_incompatible="publish"),
        **settings,
    )


ENTITIES = [entity("order"), entity("guest")]


def settings(entities: Sequence[Entity] = ENTITIES) -> dict[str, Any]:
    return {of.name: {**of.shape(), "mask_id": None} for of in entities}


@dataclass(slots=True)
class Shop:
    """Makes changes to tables. Each operation has its own commit position.

    `whole` has the records with all values. `lacking` has the same records, without the values that a log with REPLICA
    IDENTITY DEFAULT lacks. `columns` are the columns of every table.
    """

    random: Random
    entities: Sequence[Entity] = field(default_factory=lambda: ENTITIES)
    columns: dict[str, ColumnType] = field(default_factory=lambda: dict(COLUMNS))
    whole: list[Record] = field(default_factory=list)
    lacking: list[Record] = field(default_factory=list)
    tables: dict[str, dict[int, State]] = field(default_factory=dict)
    commit: int = 0
    _versions: Versions = field(default_factory=lambda: Versions([], accepted={}, filled=lambda *_: ()))

    def step(self) -> None:
        """Makes one random change."""
        of = self.random.choice(self.entities)
        table = self.tables.setdefault(of.name, {})
        keys = sorted(table)
        action = self.random.random()
        if not keys or action < 0.3:
            key = self.random.randrange(12)
            self.read(of, key) if key in table else self.insert(of, key)
        elif action < 0.75:
            self.update(of, self.random.choice(keys), self._changed(table[self.random.choice(keys)]))
        elif action < 0.85:
            self.delete(of, self.random.choice(keys))
        elif action < 0.98:
            free = [key for key in range(12) if key not in table]
            self.move(of, self.random.choice(keys), self.random.choice(free)) if free else None
        else:
            self.truncate(of)

    def insert(self, of: Entity, key: int) -> None:
        state = {"id": key, **{name: self._value(name) for name in self.columns if name != "id"}}
        self.tables.setdefault(of.name, {})[key] = state
        self._emit(of, key, Op.CREATE, state, None)

    def read(self, of: Entity, key: int) -> None:
        self._emit(of, key, Op.READ, self.tables[of.name][key], None)

    def update(self, of: Entity, key: int, values: State) -> None:
        old = self.tables[of.name][key]
        new = self.tables[of.name][key] = {**old, **values, "id": key}
        self._emit(of, key, Op.UPDATE, new, old)

    def delete(self, of: Entity, key: int) -> None:
        self._emit(of, key, Op.DELETE, None, self.tables[of.name].pop(key))

    def move(self, of: Entity, key: int, to: int) -> None:
        """Changes the key of a row. This gives a delete and a create with the same commit position."""
        table = self.tables[of.name]
        old = table.pop(key)
        new = table[to] = {**old, **self._changed(old), "id": to}
        self._emit(of, key, Op.DELETE, None, old, to=to)
        self.commit -= 1
        self._emit(of, to, Op.CREATE, new, old, from_=key)

    def truncate(self, of: Entity) -> None:
        self.tables[of.name] = {}
        self.commit += 1
        record = self._record(of, TRUNCATE_KEY, Op.TRUNCATE, 0)
        record = replace(record, envelope=replace(record.envelope, original=None))
        self.whole.append(record)
        self.lacking.append(record)

    def _changed(self, state: State) -> State:
        names = [name for name in self.columns if name not in ("id", "body") or self.random.random() < 0.3]
        return {name: self._value(name) for name in names if name != "id"}

    def _value(self, name: str) -> Any:
        if name == "doc":
            return self.random.choice([None, JSON_NULL, {"a": [1, None]}, [], "jsonNull"])
        return self.random.choice([None, "", 'quoted "unavailable"', f"{name}-{self.random.randrange(100)}", "grün \\"])

    def _emit(self, of: Entity, key: int, op: Op, new: State | None, old: State | None, **moved: int) -> None:
        self.commit += 1
        ordinal = 1 if "from_" in moved else 0
        moves = {
            "moved_to": Place(key=str(moved["to"]), partition=0) if "to" in moved else None,
            "moved_from": Place(key=str(moved["from_"]), partition=0) if "from_" in moved else None,
        }
        record = replace(self._record(of, str(key), op, ordinal), **moves)  # type: ignore[arg-type]
        table = TableColumns(columns=Struct(fields=tuple(self.columns.items())))
        if not self._versions.has(of, table):
            announced = self._versions.announce(of, table, record.envelope.provenance).record
            self.whole.append(announced)
            self.lacking.append(announced)
        has_original = op in (Op.UPDATE, Op.DELETE)
        self.whole.append(self._with(record, new, old if has_original else None, (), ()))
        unsent: tuple[str, ...] = ()
        if new is not None and old is not None and "body" in new and new["body"] == old.get("body"):
            unsent = ("body",)
        absent = tuple(name for name in self.columns if name != "id") if op is Op.DELETE else ()
        self.lacking.append(self._with(record, new, old if op is Op.DELETE else None, unsent, absent))

    def _record(self, of: Entity, key: str, op: Op, ordinal: int) -> Record:
        source = Source(
            connector="postgres",
            name="shop",
            database="app",
            table=".".join(of.table),
            op=op,
            position=Position(1, self.commit, ordinal),
            transaction=str(self.commit),
            committed_at=datetime(2026, 11, 21, tzinfo=UTC),
        )
        envelope = Envelope(provenance=Provenance(stamp=STAMP, source=source), current=None, original=MISSING)
        return Record(entity=of.name, place=Place(key=key, partition=0), envelope=envelope)

    def _with(
        self, record: Record, new: State | None, old: State | None, unsent: Sequence[str], absent: Sequence[str]
    ) -> Record:
        """Returns the record with the states `new` and `old`.

        The new state lacks the columns `unsent`, and the old one lacks `absent`.
        """
        current, nulls = self._state(new, unsent)
        original, old_nulls = self._state(old, absent)
        envelope = record.envelope
        source = replace(
            envelope.provenance.source,
            unavailable=tuple(unsent),
            unavailable_original=tuple(absent),
            json_null=nulls,
            json_null_original=old_nulls,
        )
        return replace(
            record,
            envelope=Envelope(
                provenance=replace(envelope.provenance, source=source),
                current=None if isinstance(current, Missing) else current,
                original=original,
            ),
        )

    def _state(self, state: State | None, left_out: Sequence[str]) -> tuple[Raw | Missing, tuple[str, ...]]:
        if state is None:
            return MISSING, ()
        values = {name: state.get(name) for name in self.columns if name not in left_out}
        nulls = tuple(name for name, value in values.items() if value is JSON_NULL)
        plain = {name: None if value is JSON_NULL else value for name, value in values.items()}
        return Raw(msgspec.json.encode(plain)), nulls


def checkpoint(position: Position | None, entities: Sequence[Entity] = ENTITIES, **members: Any) -> Checkpoint:
    return Checkpoint(
        position=position,
        through=commit_text(0 if position is None else position.commit),
        epoch=1,
        settings=settings(entities),
        **members,
    )


def described(record: Record) -> dict[str, Any]:
    """Returns a record as a dict, so that a failed comparison prints a readable difference."""
    source = record.envelope.provenance.source
    states = {
        name: json.loads(bytes(state)) if isinstance(state, Raw) else state
        for name, state in (("current", record.envelope.current), ("original", record.envelope.original))
    }
    return {"entity": record.entity, "key": record.place.key, "source": source, **states}
