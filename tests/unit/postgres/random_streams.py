"""Draws random tables, and the messages of random transactions on these tables, as PostgreSQL would send them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from hypothesis import strategies as st

from changelog.connectors.capture.rows.row_change import UNCHANGED, Delete, Insert, Update, Value
from changelog.connectors.sources.postgres.decode.messages import (
    Decoded,
    LogicalMessage,
    Relation,
    RelationColumn,
    Truncate,
    TypeName,
)
from changelog.envelope.entity import Entity
from tests.unit.postgres.messages import (
    INT,
    TEXT,
    entity,
    relation,
    stamp,
    transaction,
)
from tests.unit.postgres.server_texts import SERVER_TEXTS

UNBOUND = 30_000

STEMS = st.sampled_from(["col", "größe", 'a"b', "x y"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Some entities, and the messages that the server sent about their tables. `lsns` has the log position of each
    message. `partitioned` has the names of partitioned tables.
    """

    entities: Sequence[Entity]
    partitioned: Sequence[str]
    messages: Sequence[Decoded]
    lsns: Sequence[int]


@st.composite
def tables(draw: st.DrawFn, number: int) -> tuple[Entity, Relation]:
    oids = [
        draw(st.sampled_from([INT, TEXT, 20, 2950])),
        *draw(st.lists(st.sampled_from(sorted(TYPE_OIDS)), max_size=6)),
    ]
    names = [f"{draw(STEMS)}{place}" for place in range(len(oids))]
    key = draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True))
    extra = draw(st.lists(st.sampled_from(names), max_size=2, unique=True))
    partition_by = draw(st.sampled_from([key, key[:1], extra or key]))
    others = [name for name in names if name not in key and name not in partition_by]
    hidden = draw(st.lists(st.sampled_from(names), max_size=2)) if draw(st.booleans()) else []
    masks = {name: draw(st.sampled_from(["drop", "null", "sha256"])) for name in others if draw(st.booleans())}
    entity_ = entity(
        f"entity{number}",
        f"table{number}",
        key=tuple(key),
        partition_by=tuple(partition_by),
        partitions=draw(st.sampled_from([1, 3, 64])),
        exclude_columns=tuple(hidden),
        masks=masks if draw(st.booleans()) else {},
        immutable=draw(st.integers(0, 5)) == 0,
        on_change_of_immutable=draw(st.sampled_from(["stop", "ignore"])),
        on_truncate=draw(st.sampled_from(["stop", "publish", "publish"])),
        missing_stamp=draw(st.sampled_from(["default", "default", "warn", "warn", "stop"])),
    )
    relation_ = relation(
        20_000 + number,
        f"table{number}",
        dict(zip(names, oids, strict=True)),
        key={*key, *partition_by},
        identity=draw(st.sampled_from("fffd")),
    )
    return entity_, relation_


TYPE_OIDS = frozenset(SERVER_TEXTS)


class _Writer:
    """Draws transactions on a few tables, as PostgreSQL would send them."""

    def __init__(self, draw: st.DrawFn, bound: Sequence[tuple[Entity, Relation]]) -> None:
        self._draw, self._relations = draw, [relation_ for _, relation_ in bound]
        self._placing = {relation_.relid: {*entity_.key, *entity_.partition_by} for entity_, relation_ in bound}

    def transaction(self, commit: int) -> list[Decoded]:
        changes = [message for _ in range(self._draw(st.integers(0, 7))) for message in self._some()]
        return transaction(
            commit, changes, xid=self._draw(st.integers(600, 800)), at=self._draw(st.integers(0, 10**15))
        )

    def _some(self) -> list[Decoded]:
        draw = self._draw
        kind = draw(st.sampled_from(["insert", "update", "delete", "crossing", "insert", "update", "leaf", "other"]))
        if kind == "other":
            return self._other()
        relation_ = draw(st.sampled_from(self._relations))
        match kind:
            case "leaf":
                return [relation_, self._leaf(relation_)]
            case "insert":
                return [Insert(relid=relation_.relid, new=self._row(relation_))]
            case "update":
                return [self._update(relation_)]
            case "delete":
                return [self._delete(relation_, self._row(relation_))]
        row = self._row(relation_)
        between: list[Decoded] = (
            [TypeName(type_oid=1, namespace="public", name="mood"), relation_, self._leaf(relation_)]
            if draw(st.booleans())
            else []
        )
        return [
            self._delete(relation_, row),
            *between,
            Insert(relid=relation_.relid, new=draw(st.sampled_from([row, self._row(relation_)]))),
        ]

    def _leaf(self, relation_: Relation) -> Relation:
        """Returns the description of a partition of this table. The server may send such a description at any time."""
        draw = self._draw
        more = draw(st.sets(st.sampled_from([column.name for column in relation_.columns])))
        return relation(
            relation_.relid + 1000 * draw(st.integers(1, 2)),
            "leaf",
            {column.name: column.type_oid for column in relation_.columns},
            key={*self._placing[relation_.relid], *more},
            identity=draw(st.sampled_from("fdd")),
        )

    def _other(self) -> list[Decoded]:
        draw = self._draw
        relids = [relation_.relid for relation_ in self._relations]
        number = draw(st.integers(0, len(relids) - 1))
        with_context = stamp(b'{"serviceName":"job","context":{"n":1.50, "source":{"position":"x"}}}')
        stamps = st.sampled_from([stamp(), stamp(b'{"serviceName":"job"}'), with_context, stamp(b"not JSON")])
        foreign = LogicalMessage(transactional=draw(st.booleans()), lsn=1, prefix="someone", content=b"else")
        truncated = draw(st.lists(st.sampled_from([*relids, UNBOUND]), min_size=1, max_size=2, unique=True))
        altered = self._altered(self._relations[number])
        message = draw(
            stamps
            | st.just(foreign)
            | st.just(Insert(relid=UNBOUND, new=(b"1", None)))
            | st.just(Truncate(relids=tuple(truncated), cascade=False, restart_identity=False))
            | st.just(altered)
        )
        if message is altered:
            self._relations[number] = altered
        return [message]

    def _altered(self, relation_: Relation) -> Relation:
        """Returns the description of the same table with one more column at the end."""
        added = relation(
            columns={f"added{len(relation_.columns)}": self._draw(st.sampled_from([TEXT, 1114, 114]))}
        ).columns
        return Relation(
            relid=relation_.relid,
            namespace=relation_.namespace,
            name=relation_.name,
            replica_identity=relation_.replica_identity,
            columns=relation_.columns + added,
        )

    def _row(self, relation_: Relation) -> tuple[Value, ...]:
        return tuple(self._value(relation_, column) for column in relation_.columns)

    def _value(self, relation_: Relation, column: RelationColumn) -> Value:
        """Draws a value or NULL. NULL is rare in the columns of the key and of `partition_by`, because a NULL in these
        columns stops the stream.
        """
        one_in = 60 if column.name in self._placing[relation_.relid] else 5
        null = (relation_.replica_identity == "f" or not column.key) and self._draw(st.integers(1, one_in)) == one_in
        return None if null else self._draw(SERVER_TEXTS[column.type_oid]).encode()

    def _update(self, relation_: Relation) -> Update:
        draw = self._draw
        kind: Literal["O", "K"] | None = draw(st.sampled_from(["O", "O", "O", "K", None]))
        old, new = self._row(relation_), list(self._row(relation_))
        for place, column in enumerate(relation_.columns):
            match draw(st.integers(0, 9)):
                case 0 if kind == "O" or column.name not in self._placing[relation_.relid]:
                    new[place] = UNCHANGED
                case 0 | 1 | 2 | 3 | 4 | 5 | 6:
                    new[place] = old[place]
        return Update(
            relid=relation_.relid,
            old_kind=kind,
            old=None if kind is None else self._old(relation_, old, kind),
            new=tuple(new),
        )

    def _delete(self, relation_: Relation, row: tuple[Value, ...]) -> Delete:
        kind: Literal["O", "K"] = "O" if relation_.replica_identity == "f" else "K"
        return Delete(relid=relation_.relid, old_kind=kind, old=self._old(relation_, row, kind))

    def _old(self, relation_: Relation, row: tuple[Value, ...], kind: str) -> tuple[Value, ...]:
        logged = {column.name for column in relation_.columns if column.key}
        if kind == "O" and self._draw(st.integers(0, 2)) == 0:
            logged = {*self._placing[relation_.relid], *self._draw(st.sets(st.sampled_from(sorted(logged))))}
        return tuple(
            value if column.name in logged else None for value, column in zip(row, relation_.columns, strict=True)
        )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    bound = [draw(tables(number)) for number in range(draw(st.integers(1, 2)))]
    writer = _Writer(draw, bound)
    first = transaction(
        90, [relation(UNBOUND, "unbound", {"id": INT, "x": TEXT}), *(relation_ for _, relation_ in bound)]
    )
    rest = [message for commit in range(100, 100 + draw(st.integers(1, 4))) for message in writer.transaction(commit)]
    messages, lsns = _placed(draw, [*first, *rest])
    return Case(
        entities=[entity_ for entity_, _ in bound],
        partitioned=[name for name in ("table0", "table1") if draw(st.booleans())],
        messages=messages,
        lsns=lsns,
    )


def _placed(draw: st.DrawFn, messages: Sequence[Decoded]) -> tuple[list[Decoded], list[int]]:
    """Gives the messages their log positions. A row has the position where its log record begins, and a logical message
    has the position where its record ends.

    Sometimes an insert has the same position as the insert before it, because one record can have several rows. If a
    logical message has the position of the insert before it, the insert was in fact written after the message.
    """
    placed: list[Decoded] = []
    lsns: list[int] = []
    for message in messages:
        lsn = 1000 + 8 * len(placed)
        after_insert = bool(placed) and isinstance(placed[-1], Insert) and draw(st.integers(0, 3)) == 0
        if after_insert and isinstance(message, Insert):
            lsn = lsns[-1]
        elif isinstance(message, LogicalMessage):
            message = replace(message, lsn=lsns[-1] if after_insert else lsn + 8)
        placed.append(message)
        lsns.append(lsn)
    return placed, lsns
