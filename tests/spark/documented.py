"""Helps to test the documents that `maintain_view` keeps. Generates random changes of guests and of their sessions,
orders and items, and computes the documents that must result.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from changelog.connectors.config import ViewConfig
from changelog.envelope.model import Op, Record
from changelog.schemas.avro import Column
from changelog.schemas.types import Primitive, Struct
from changelog.spark_jobs.maintaining.parts import ViewPart, parts_of
from tests.spark.changes import KEYS, Workload
from tests.spark.maintained import query
from tests.spark.test_rebuild_view import announced
from tests.spark.test_views import COLUMNS
from tests.unit.records import record

ENTITIES = ("guest", "session", "order", "item")

GUEST_COLUMNS = [
    *COLUMNS,
    *(Column(name=name, type=Primitive.LONG, nullable=True) for name in ("guest_id", "order_id")),
]
"""The columns of each entity."""

SHAPE = Struct(fields=tuple((column.name, column.type) for column in GUEST_COLUMNS))

VIEW: dict[str, Any] = {
    "entity": "guest",
    "columns": ["id", "status"],
    "nested": {
        "sessions": {"entity": "session", "on": {"guest_id": "id"}, "columns": ["id", "note", "doc", "long"]},
        "orders": {
            "entity": "order",
            "on": {"guest_id": "id"},
            "columns": ["id", "amount"],
            "nested": {"items": {"entity": "item", "on": {"order_id": "id", "status": "status"}, "columns": ["note"]}},
        },
        "Same status": {"entity": "guest", "on": {"status": "status"}, "columns": ["id"]},
    },
}

WITH_SESSIONS = {**VIEW, "nested": {"sessions": VIEW["nested"]["sessions"]}}

DOCUMENTS = 'SELECT _key, id, status, sessions, orders, "Same status" FROM guests ORDER BY _key COLLATE "C"'

JOINED = """SELECT guest._key, guest.id, guest.status,
    coalesce((SELECT json_agg(json_build_object('id', id, 'note', note, 'doc', doc, 'long', long)
        ORDER BY _key COLLATE "C") FROM guests__sessions session WHERE guest_id = guest.id)::jsonb, '[]'),
    coalesce((SELECT json_agg(json_build_object('id', id, 'amount', amount, 'items', coalesce((
            SELECT json_agg(json_build_object('note', note) ORDER BY _key COLLATE "C")
            FROM guests__orders__items item WHERE item.order_id = placed.id AND item.status = placed.status
        ), '[]')) ORDER BY _key COLLATE "C") FROM guests__orders placed WHERE guest_id = guest.id)::jsonb, '[]'),
    coalesce((SELECT json_agg(json_build_object('id', id) ORDER BY _key COLLATE "C")
        FROM "guests__Same status" peer WHERE peer.status = guest.status)::jsonb, '[]')
    FROM guests guest ORDER BY _key COLLATE "C" """
"""Builds the documents in SQL, from the table of the view and the tables of its arrays. Its rows must equal those of
`DOCUMENTS`.
"""


@dataclass(slots=True)
class Guests(Workload):
    """Generates changes of guests, sessions, orders and items. Rows move from one guest or order to another."""

    rows: dict[str, dict[str, dict[str, Any]]] = field(default_factory=lambda: {entity: {} for entity in ENTITIES})

    def _row(self, key: str) -> dict[str, Any]:
        others = [*range(KEYS // 3), None]  # few, so that most arrays have several rows
        ids = {name: self.random.choice(others) for name in ("guest_id", "order_id")}
        return Workload._row(self, key) | ids


def announcements() -> list[Record]:
    """Returns the records that announce the columns of all entities."""
    firsts = [record(Op.CREATE, "{}", commit=0, ordinal=2 * n, entity=entity) for n, entity in enumerate(ENTITIES)]
    return [announced(first, SHAPE) for first in firsts]


def guest_parts(view: Mapping[str, Any] = VIEW) -> list[ViewPart]:
    """Returns the parts of the view: one for its own rows, and one for each of its arrays."""
    return parts_of("guests", ViewConfig.model_validate(view), dict.fromkeys(ENTITIES, GUEST_COLUMNS))


def documents(dsn: str) -> list[tuple[Any, ...]]:
    return query(dsn, DOCUMENTS)


def expected_documents(rows: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[tuple[Any, ...]]:
    """Returns the documents that must result from the rows, in the form that `documents` returns."""

    def matching(entity: str, names: Sequence[str], **on: object) -> list[dict[str, Any]]:
        return [
            {name: row[name] for name in names}
            for _, row in sorted(rows[entity].items())
            if all(row[name] is not None and row[name] == value for name, value in on.items())
        ]

    def orders(guest_id: int) -> list[dict[str, Any]]:
        return [
            {
                "id": order["id"],
                "amount": order["amount"],
                "items": matching("item", ["note"], order_id=order["id"], status=order["status"]),
            }
            for order in matching("order", ["id", "amount", "status"], guest_id=guest_id)
        ]

    return [
        (
            key,
            guest["id"],
            guest["status"],
            matching("session", ["id", "note", "doc", "long"], guest_id=guest["id"]),
            orders(guest["id"]),
            matching("guest", ["id"], status=guest["status"]),
        )
        for key, guest in sorted(rows["guest"].items())
    ]


def toml(view: Mapping[str, Any]) -> str:
    """Returns the view as an inline table of TOML."""
    values = {name: toml(value) if isinstance(value, Mapping) else json.dumps(value) for name, value in view.items()}
    return f"{{ {', '.join(f'{json.dumps(name)} = {value}' for name, value in values.items())} }}"
