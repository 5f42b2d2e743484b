"""Makes messages of a replication stream, as PostgreSQL would send them. Also makes assemblers, to which tests feed
these messages.
"""

import struct
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import pyarrow as pa

from changelog.connectors.capture.assembly.assembled import Assembled, Listener
from changelog.connectors.capture.rows.row_change import Delete, Insert, Update
from changelog.connectors.capture.rows.row_records import Origin
from changelog.connectors.sources.postgres.decode.assembler import Assembler
from changelog.connectors.sources.postgres.decode.binder import Binder
from changelog.connectors.sources.postgres.decode.messages import (
    Begin,
    Commit,
    Decoded,
    LogicalMessage,
    Relation,
    RelationColumn,
    Truncate,
)
from changelog.connectors.sources.postgres.decode.xids import Xids
from changelog.connectors.sources.postgres.values.definitions import Definitions
from changelog.connectors.sources.postgres.values.types import CompositeAttribute, PgType, in_doubt
from changelog.envelope.checkpoint import Decisions
from changelog.envelope.columnar import batch
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError
from changelog.envelope.model import Stamp
from changelog.envelope.position import Position
from changelog.envelope.versions import Versions
from tests.unit.postgres.pgoutput_encoder import encode

DEFAULT_STAMP = Stamp(api_version="unknown", service_name="nobody", identifier="")

INT, TEXT = 23, 25
_BASE = {
    16: "bool",
    17: "bytea",
    20: "int8",
    INT: "int4",
    TEXT: "text",
    114: "json",
    701: "float8",
    1114: "timestamp",
    1184: "timestamptz",
    1700: "numeric",
    2950: "uuid",
    3802: "jsonb",
}
TYPES = {oid: PgType(oid=oid, name=name, kind="base") for oid, name in _BASE.items()}
TYPES[1007] = PgType(oid=1007, name="_int4", kind="array", element=TYPES[INT])
TYPES[50_000] = PgType(oid=50_000, name="public.document", kind="domain", base=TYPES[3802])
_ATTRIBUTES = {"n": INT, "word": TEXT, "yes": 16, "x": 701, "j": 114, "at": 1184, "id": 2950, "many": 1007, "b": 17}
TYPES[50_001] = PgType(
    oid=50_001,
    name="public.parts",
    kind="composite",
    fields=tuple(CompositeAttribute(name=name, type=TYPES[oid], typmod=-1) for name, oid in _ATTRIBUTES.items()),
    relation=50_002,
)
TYPES[50_003] = PgType(oid=50_003, name="public._parts", kind="array", element=TYPES[50_001])
TYPES[50_004] = in_doubt(TYPES[50_003])


def frames(messages: Sequence[Decoded], lsns: Iterable[int] | None = None) -> list[bytes]:
    """Encodes messages as XLogData frames, the form in which PostgreSQL sends them.

    `lsns` has the position of each message's record in the server's log. By default, each message has its own record.
    """
    return [
        struct.pack("!cQQq", b"w", lsn, lsn, 0) + encode(message)
        for message, lsn in zip(messages, lsns or range(1000, 1000 + len(messages)), strict=True)
    ]


def transaction(commit: int, changes: Sequence[Decoded], *, xid: int = 700, at: int = 0) -> list[Decoded]:
    """Returns the messages of a transaction with these changes. Its commit record begins at `commit`, and ends one byte
    later.
    """
    return [
        Begin(final_lsn=commit, committed_at=at, xid=xid),
        *changes,
        Commit(flags=0, commit_lsn=commit, end_lsn=commit + 1, committed_at=at),
    ]


def stamp(content: bytes = b'{"serviceName":"order-api","apiVersion":"v2","identifier":"req-1"}') -> LogicalMessage:
    return LogicalMessage(transactional=True, lsn=0, prefix="provenance", content=content)


def relation(
    relid: int = 20_000,
    name: str = "orders",
    columns: Mapping[str, int] | None = None,
    *,
    key: Collection[str] = ("id",),
    identity: str = "f",
) -> Relation:
    """Returns the description of a table. By default, this is `public.orders (id int4, status text)` with REPLICA
    IDENTITY FULL, so updates and deletes have the whole old row.
    """
    return Relation(
        relid=relid,
        namespace="public",
        name=name,
        replica_identity=identity,
        columns=tuple(
            RelationColumn(key=identity == "f" or column in key, name=column, type_oid=oid, typmod=-1)
            for column, oid in (columns or {"id": INT, "status": TEXT}).items()
        ),
    )


def entity(name: str = "order", table: str = "orders", **options: object) -> Entity:
    shape: dict[str, object] = {
        "key": ("id",),
        "partition_by": ("id",),
        "partitions": 1,
        "masks": {},
        "default_stamp": DEFAULT_STAMP,
    }
    return Entity(name=name, table=("public", table), **{**shape, **options})  # type: ignore[arg-type]


def insert(key: int, status: str = "NEW", relid: int = 20_000) -> Insert:
    return Insert(relid=relid, new=(b"%d" % key, status.encode()))


def update(old: int, new: int, status: str = "PAID", relid: int = 20_000) -> Update:
    """Returns an update that changes the key of a row from `old` to `new`."""
    values = (b"%d" % old, b"NEW"), (b"%d" % new, status.encode())
    return Update(relid=relid, old_kind="O", old=values[0], new=values[1])


def delete(key: int, status: str = "PAID", relid: int = 20_000) -> Delete:
    return Delete(relid=relid, old_kind="O", old=(b"%d" % key, status.encode()))


def assembler(
    entities: Sequence[Entity] | None = None,
    *,
    partitioned: Collection[str] = (),
    decisions: Mapping[Position, str] | None = None,
    published: Position | None = None,
    partial: bool = False,
    listener: Listener | None = None,
    versions: Versions | None = None,
    definitions: Definitions | None = None,
    xid: int = 700,
    resolve: Callable[[int], PgType] = TYPES.__getitem__,
    **bounds: int,
) -> Assembler:
    return Assembler(
        origin=Origin(connector="postgres", name="booking", database="app", decisions=Decisions(decisions or {})),
        binder=Binder(resolve=resolve if definitions is None else definitions.resolve, hmac_key=b"secret"),
        entities={one_entity.table: one_entity for one_entity in (entities or [entity()])},
        partitioned={("public", name) for name in partitioned},
        epoch=lambda _: 1,
        xids=Xids(xid),
        published=published,
        partial=partial,
        listener=listener,
        versions=versions,
        definitions=definitions,
        **bounds,
    )


def table(*pieces: Assembled) -> pa.Table:
    """All rows of these pieces, in one Arrow table."""
    return pa.Table.from_batches([rows for piece in pieces for rows in piece.rows], batch.SCHEMA)


def positions(*pieces: Assembled) -> list[str]:
    """The commit and the ordinal of each row, for example `100/0`."""
    parsed = [Position.parse(text) for text in table(*pieces).column("position").to_pylist()]
    return [f"{position.commit}/{position.ordinal}" for position in parsed]


TRUNCATE = Truncate(relids=(20_000,), cascade=False, restart_identity=False)
FOREIGN = LogicalMessage(transactional=True, lsn=0, prefix="someone", content=b"else")
UNBOUND = relation(30_000, "unbound")


def ops(*pieces: Assembled) -> list[str]:
    """The op and the key of each row, for example `create 1`."""
    rows = table(*pieces)
    return [f"{op} {key}" for op, key in zip(rows["op"].to_pylist(), rows["key"].to_pylist(), strict=True)]


def stopped_at(error: ChangelogError | None) -> str:
    """The commit and the ordinal of the change that stopped the stream, for example `200/2`."""
    assert error is not None
    assert error.position is not None
    return f"{error.position.commit}/{error.position.ordinal}"
