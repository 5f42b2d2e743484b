"""Reads from the catalogue which tables a database has now. Setup, checks and the reading of tables need these facts.

The columns of streamed rows come from the Relation messages in the stream, not from the catalogue.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import psycopg

from changelog.connectors.sources import Trait
from changelog.connectors.sources.postgres.session.connection import translated
from changelog.envelope.entity import Entity

ReplicaIdentity = Literal["d", "n", "f", "i"]
"""A letter in the catalogue that says which columns of an old row are in the database's log: d is DEFAULT (the primary
key), n is NOTHING, f is FULL, and i is an index.
"""

_PUBLISHES_GENERATED = 180000
_BEFORE_IMAGES: Mapping[ReplicaIdentity, str] = {"f": "full", "d": "primary key", "i": "an index", "n": "none"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableColumn:
    """One column; `published` says whether the log carries it. Most generated columns are not in the log."""

    name: str
    type_oid: int
    typmod: int
    not_null: bool
    generated: Literal["stored", "virtual"] | None
    published: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """An index on plain columns; `immediate` is false if the index is deferrable."""

    name: str
    columns: tuple[str, ...]
    unique: bool
    immediate: bool
    valid: bool
    partial: bool
    primary: bool
    replica_identity: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A table that stores rows: a plain table, or a partition that is not partitioned further.

    `pages` is its size in blocks, 0 if the size was not requested. `filenode` changes when the table is rewritten.
    `identity` names the columns of an old row that the log contains; it is None if the log contains all columns. If
    `identity` is empty, the log contains none, and the server refuses UPDATE and DELETE while the table is published.
    """

    oid: int
    schema: str
    name: str
    pages: int
    filenode: int
    replica_identity: ReplicaIdentity
    identity: tuple[str, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A plain (`kind` r) or partitioned (`kind` p) table that is not itself a partition.

    `rows_estimate` and `nbytes` are sums over the leaves. `nbytes` includes TOAST but no indexes; it is 0 if the size
    was not requested.
    """

    oid: int
    schema: str
    name: str
    kind: Literal["r", "p"]
    replica_identity: ReplicaIdentity
    columns: tuple[TableColumn, ...]
    indexes: tuple[Index, ...]
    leaves: tuple[Leaf, ...]
    rows_estimate: int
    nbytes: int

    @property
    def primary_key(self) -> tuple[str, ...]:
        """The columns of the primary key; empty if there is none."""
        return next((index.columns for index in self.indexes if index.primary), ())

    @property
    def trait(self) -> Trait:
        """The replica identity. It decides which columns of an old row the log contains."""
        value = _BEFORE_IMAGES[self.replica_identity]
        return Trait(name="replica identity", value=value, suffices=value == "full")

    def usable_key(self) -> tuple[str, ...] | None:
        """Returns the columns of the first index that can serve as the key, or None. The primary key comes first, then
        the unique indexes by name.
        """
        indexes = sorted(self.indexes, key=lambda index: (not index.primary, index.name))
        keys = [index.columns for index in indexes if index.unique]
        return next((key for key in keys if key and self.key_problem(key) is None), None)

    def key_problem(self, key: Sequence[str]) -> str | None:
        """Returns why `key` cannot identify the rows in a changelog, and how to fix that; None if it can.

        The key needs a unique index on NOT NULL columns. The index must be valid, not partial and not deferrable. With
        a deferrable index, two rows can swap their keys in one transaction. A reader that applies the two changes one
        after the other would lose one of the rows.
        """
        text = f"{self.schema}.{self.name}"
        key_list = ", ".join(key)
        columns = {column.name: column for column in self.columns}
        for name in key:
            if name not in columns:
                return f"the table {text} has no column {name}"
            if not columns[name].published:
                return f"column {name} of the table {text} is generated, and the log does not carry it"
            if not columns[name].not_null:
                return f"column {name} of the table {text} may be null; make it NOT NULL"
        candidates = [index for index in self.indexes if index.unique and sorted(index.columns) == sorted(key)]
        if not candidates:
            return f"the table {text} has no unique index on ({key_list}); create one, or choose another key"
        flaws = [_flaw(index) for index in candidates]
        if None in flaws:
            return None
        return f"the unique index {candidates[0].name} of the table {text} {flaws[0]}; create another on ({key_list})"


def read_tables(
    conn: psycopg.Connection[Any],
    *,
    named: tuple[str, str] | None = None,
    sized: Callable[[tuple[str, str]], bool] = lambda _: False,
) -> list[Table]:
    """Returns all tables that can be published, sorted by schema and name, without temporary and system tables.

    If `named` is given, returns only the table with this schema and name. `sized` selects the tables whose size is
    read. Reading a size waits while the table is locked in ACCESS EXCLUSIVE mode.
    """
    schema, name = named or (None, None)
    with translated("reading the catalogue"), conn.transaction():
        tables = conn.execute(_TABLES, [schema, schema, name]).fetchall()
        oids = [oid for oid, *_ in tables]
        to_size = [oid for oid, schema, name, *_ in tables if sized((schema, name))]
        leaves = _by_table(conn.execute(_LEAVES, [to_size, oids]).fetchall())
        columns = _by_table(conn.execute(_COLUMNS, [oids]).fetchall())
        indexes = _by_table(conn.execute(_INDEXES, [oids]).fetchall())
    version = conn.info.server_version
    return [
        Table(
            oid=oid,
            schema=schema,
            name=name,
            kind=kind,
            replica_identity=replica_identity,
            columns=tuple(_column(row, version) for row in columns[oid]),
            indexes=tuple(_index(row) for row in indexes[oid]),
            leaves=tuple(_leaf(row) for row in leaves[oid]),
            rows_estimate=sum(int(row[-2]) for row in leaves[oid]),
            nbytes=sum(int(row[-1]) for row in leaves[oid]),
        )
        for oid, schema, name, kind, replica_identity in tables
    ]


def identity_problem(table: Table) -> str | None:
    """Returns why the application's own UPDATE and DELETE fail once the table is published; None if they do not."""
    virtual_columns = [column.name for column in table.columns if column.generated == "virtual"]
    logs_all_columns = table.replica_identity == "f" or any(leaf.identity is None for leaf in table.leaves)
    if not virtual_columns or not logs_all_columns:
        return None
    return (
        f"{table.schema}.{table.name} has the virtual generated column {virtual_columns[0]}, and with REPLICA IDENTITY "
        "FULL the application's own UPDATE and DELETE would fail; use DEFAULT"
    )


def _flaw(index: Index) -> str | None:
    if index.partial:
        return "is partial"
    if not index.valid:
        return "is not valid"
    if not index.immediate:
        return "is deferrable"
    return None


def _by_table(rows: Iterable[tuple[Any, ...]]) -> dict[int, list[tuple[Any, ...]]]:
    by_table: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
    for oid, *row in rows:
        by_table[oid].append(tuple(row))
    return by_table


def _column(row: tuple[Any, ...], version: int) -> TableColumn:
    name, type_oid, typmod, not_null, code = row
    generated: Literal["stored", "virtual"] | None = {"s": "stored", "v": "virtual"}.get(code)  # type: ignore[assignment]
    published = generated is None or (generated == "stored" and version >= _PUBLISHES_GENERATED)
    return TableColumn(
        name=name, type_oid=type_oid, typmod=typmod, not_null=not_null, generated=generated, published=published
    )


def _index(row: tuple[Any, ...]) -> Index:
    name, columns, unique, immediate, valid, partial, primary, replica_identity = row
    return Index(
        name=name,
        columns=tuple(columns),
        unique=unique,
        immediate=immediate,
        valid=valid,
        partial=partial,
        primary=primary,
        replica_identity=replica_identity,
    )


def _leaf(row: tuple[Any, ...]) -> Leaf:
    oid, schema, name, pages, filenode, replica_identity, identity, _, _ = row
    return Leaf(
        oid=oid,
        schema=schema,
        name=name,
        pages=pages,
        filenode=filenode,
        replica_identity=replica_identity,
        identity=None if replica_identity == "f" else tuple(identity),
    )


_TABLES = """
SELECT c.oid::int8, n.nspname, c.relname, c.relkind::text, c.relreplident::text
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence <> 't'
    AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_'
    AND (%s::text IS NULL OR (n.nspname = %s::text AND c.relname = %s::text))
ORDER BY n.nspname, c.relname
"""

# The last two columns are reltuples and bytes. A relation that is dropped while the query runs has no size.
_LEAVES = """
SELECT t.oid::int8, l.oid::int8, n.nspname, l.relname,
    CASE WHEN t.sized THEN coalesce(pg_relation_size(l.oid), 0) / current_setting('block_size')::int8 ELSE 0 END,
    coalesce(pg_relation_filenode(l.oid), 0)::int8, l.relreplident::text,
    ARRAY(
        SELECT a.attname::text FROM pg_index AS i
        JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
        WHERE i.indrelid = l.oid AND i.indisvalid AND i.indimmediate
            AND CASE l.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END
        ORDER BY a.attnum
    ),
    greatest(l.reltuples, 0)::int8, CASE WHEN t.sized THEN coalesce(pg_table_size(l.oid), 0) ELSE 0 END
FROM (SELECT oid, oid = ANY (%s::int8[]) AS sized FROM unnest(%s::int8[]) AS u(oid)) AS t
CROSS JOIN LATERAL (
    SELECT relid::oid FROM pg_partition_tree(t.oid::oid) WHERE isleaf UNION SELECT t.oid::oid
) AS found(oid)
JOIN pg_class AS l ON l.oid = found.oid AND l.relkind = 'r'
JOIN pg_namespace AS n ON n.oid = l.relnamespace
ORDER BY n.nspname, l.relname
"""

# A NOT NULL constraint that is not validated yet guarantees nothing about rows that are older than the constraint.
_COLUMNS = """
SELECT a.attrelid::int8, a.attname, a.atttypid::int8, a.atttypmod,
    a.attnotnull AND NOT EXISTS (
        SELECT FROM pg_constraint AS k
        WHERE k.conrelid = a.attrelid AND k.contype = 'n' AND k.conkey = ARRAY[a.attnum] AND NOT k.convalidated
    ),
    a.attgenerated::text
FROM pg_attribute AS a
WHERE a.attrelid = ANY (%s::int8[]::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attrelid, a.attnum
"""

_INDEXES = """
SELECT i.indrelid::int8, c.relname,
    ARRAY(
        SELECT a.attname::text
        FROM unnest((i.indkey::int2[])[0:i.indnkeyatts - 1]) WITH ORDINALITY AS k(attnum, place)
        JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
        ORDER BY k.place
    ),
    i.indisunique, i.indimmediate, i.indisvalid AND i.indisready, i.indpred IS NOT NULL, i.indisprimary,
    i.indisreplident
FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid
WHERE i.indrelid = ANY (%s::int8[]::oid[]) AND NOT 0 = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
ORDER BY c.relname
"""


_FILLED = """
SELECT a.attname
FROM pg_attribute a
WHERE a.attrelid = to_regclass(quote_ident(%s) || '.' || quote_ident(%s)) AND a.attname = ANY(%s)
AND NOT (a.attisdropped OR a.atthasdef OR a.atthasmissing OR a.attidentity <> '' OR a.attgenerated <> '')
"""


def filled_columns(connection: psycopg.Connection[Any], entity: Entity, columns: Sequence[str]) -> Collection[str]:
    """Returns the `columns` that may be non-null even in rows that are older than the column itself.

    An example is a column that was added with a default. The log does not contain the values that older rows have in
    such columns.
    """
    with translated("asking the catalogue"):
        rows = connection.execute(_FILLED, [*entity.table, list(columns)]).fetchall()
    return set(columns) - {name for (name,) in rows}


def newest_transaction(connection: psycopg.Connection[Any]) -> int:
    """Returns a new transaction id. The server has already assigned all lower ids."""
    with connection.transaction(force_rollback=True):
        row = connection.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
    assert row is not None
    return int(row[0])
