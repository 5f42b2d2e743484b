"""What the catalogue says of each table, so that a later look notices changes that the log does not tell.

Every edit of a catalogue row gives it another `xmin`, which VACUUM FREEZE keeps and a physical standby has, too. So a
table that left the publication and came back between two looks is noticed by its new rows. Another cluster numbers
everything in its own way: there is nothing to compare.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import psycopg
from psycopg import sql
from psycopg.rows import class_row

from connectors.sources.postgres.session.connection import translated
from connectors.sources.postgres.values.lsn import lsn_text, parse_lsn
from envelope.entity import Entity
from envelope.errors import ChangelogError, Kind

LEAVES_MAX = 200
"""Partitions of a table that a checkpoint lists one by one; of more it holds a hash, because it is written so often."""

_PROBED_PAGES = 128
"""Pages in which a partition with other storage is searched for a row that is older than the last look."""

_SCHEMAS_PUBLISHED = 150000

_SAME_TEXT = (frozenset({20, 21, 23}), frozenset({25, 1043}))
"""Types by OID (integers; text and varchar) between which a key column may change: its values keep their text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafEvidence:
    """A partition that holds rows: its storage, and the `xmin` of each catalogue row that ties it to its table."""

    filenode: int
    links: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TableEvidence:
    """One entity's table, by its OID. `name` changes with each renaming, and with `owner`, the table's.

    `options` change with each edit of the publication's own row, and with `publisher`, its owner; `published` are those
    of its rows that cover the table.

    `keys` are the constraints that keep the entity key unique (`c` and the OID), or unique indexes without one (`i`),
    and `types` the types of its columns, with a hash of what composites in them have for attributes. `leaves` are the
    partitions by OID, or a hash of them.
    """

    oid: int
    name: str
    owner: int
    options: str
    publisher: int
    published: frozenset[str]
    keys: frozenset[str]
    types: tuple[str, ...]
    leaves: Mapping[int, LeafEvidence] | str

    def to_json(self) -> list[Any]:
        """What a checkpoint keeps: short, since it is written with every commit."""
        leaves: Any = self.leaves
        if not isinstance(leaves, str):
            leaves = [[oid, leaf.filenode, leaf.links] for oid, leaf in leaves.items()]
            leaves = leaves if len(leaves) <= LEAVES_MAX else _digest(leaves)
        published, keys = sorted(self.published), sorted(self.keys)
        publication = [self.options, self.publisher, published]
        return [self.oid, self.name, self.owner, *publication, keys, list(self.types), leaves]

    @classmethod
    def parse(cls, stored: Sequence[Any]) -> Self:
        """What `to_json` gave, or the catalogue."""
        oid, name, owner, options, publisher, published, keys, types, leaves = stored
        if not isinstance(leaves, str):
            leaves = {leaf: LeafEvidence(filenode=filenode, links=links) for leaf, filenode, links in leaves}
        return cls(
            oid=oid,
            name=name,
            owner=owner,
            options=options,
            publisher=publisher,
            published=frozenset(published),
            keys=frozenset(keys),
            types=tuple(types),
            leaves=leaves,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One look at the catalogue: `lsn` was the end of the log before it, and no transaction below `horizon` still ran.

    `tables` are by entity; an entity whose table does not exist has none.
    """

    lsn: int
    horizon: int
    tables: Mapping[str, TableEvidence]

    def to_json(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        tables = {entity: table.to_json() for entity, table in self.tables.items()}
        return {"lsn": lsn_text(self.lsn), "horizon": self.horizon, "tables": tables}

    @classmethod
    def parse(cls, stored: Mapping[str, Any]) -> Self | None:
        """What `to_json` gave; None where nothing is stored. Raises ChangelogError (MALFORMED)."""
        if not stored:
            return None
        try:
            tables = {entity: TableEvidence.parse(each) for entity, each in stored["tables"].items()}
            return cls(lsn=parse_lsn(stored["lsn"]), horizon=int(stored["horizon"]), tables=tables)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ChangelogError(Kind.MALFORMED, "the recovery record's publication cannot be read") from error

    def of(self, entities: Sequence[str]) -> "Evidence":
        """That of these entities alone."""
        return replace(self, tables={name: self.tables[name] for name in entities if name in self.tables})


@dataclass(frozen=True, slots=True, kw_only=True)
class Unlogged:
    """Rows of an entity may have changed between the log positions `since` and `until`, and the log does not tell.

    `statements` is a word of the commands that can have done it. `leaves` are the partitions to read, None for the
    whole table. `sweep`: rows may be gone. `truncated`: partitions were truncated, and nothing else.
    """

    entity: str
    why: str
    statements: str
    leaves: frozenset[int] | None
    sweep: bool
    since: int
    until: int = 0
    truncated: bool = False


def read(connection: psycopg.Connection[Any], publication: str, entities: Sequence[Entity]) -> Evidence:
    """Looks at the catalogue. Locks no table: an ALTER TABLE does not hold it up.

    The end of the log is asked for first, in a statement of its own: what was done to a table before a row at that end
    was written, this look sees.
    """
    asked = [
        {"entity": each.name, "schema": each.table[0], "name": each.table[1], "key": sorted(each.key)}
        for each in entities
    ]
    older = connection.info.server_version < _SCHEMAS_PUBLISHED
    query = _LOOK.replace("{schemas}", "" if older else _SCHEMAS)
    with translated("looking at the catalogue"):
        [(lsn,)] = connection.execute("SELECT (pg_current_wal_insert_lsn() - '0/0')::int8").fetchall()
        rows = connection.execute(query.encode(), [json.dumps(asked), publication]).fetchall()
    tables = {row[1]: TableEvidence.parse(row[2:]) for row in rows if row[1] is not None}
    return Evidence(lsn=lsn, horizon=rows[0][0], tables=tables)


def unlogged(before: Evidence, now: Evidence) -> Iterator[Unlogged]:
    """What may have changed in between without a word in the log; `before` is as `prove` gives it."""
    for entity, table in now.tables.items():
        known = before.tables.get(entity)
        if known is None or known == table:
            continue
        whole = _whole(known, table)
        if whole is not None:
            statements = "PUBLICATION" if "publication" in whole else "TABLE"
            yield Unlogged(entity=entity, why=whole, statements=statements, leaves=None, sweep=True, since=before.lsn)
        elif known.leaves != table.leaves:
            yield from _leaves(entity, known, table, before.lsn)


def prove(connection: psycopg.Connection[Any], before: Evidence, now: Evidence) -> Evidence:
    """`before`, with the partitions of now that were only rewritten, or that never held rows from elsewhere.

    A partition that VACUUM FULL or CLUSTER has rewritten still has rows that are older than the look before; one that
    was truncated has none.
    """
    found = dict(before.tables)
    for entity, table in now.tables.items():
        known = found.get(entity)
        if known is None or isinstance(known.leaves, str) or isinstance(table.leaves, str):
            continue
        same = {oid: leaf for oid, leaf in table.leaves.items() if _holds(connection, before, known.leaves, oid, leaf)}
        found[entity] = replace(known, leaves={**known.leaves, **same})
    return replace(before, tables=found)


def _holds(
    connection: psycopg.Connection[Any],
    before: Evidence,
    known: Mapping[int, LeafEvidence],
    oid: int,
    leaf: LeafEvidence,
) -> bool:
    """Whether what the changelog has of this partition still holds."""
    last = known.get(oid)
    if last == leaf:
        return True
    if last is None:
        return _is_new(connection, oid, leaf, known.values())
    return last.links == leaf.links and _has_older(connection, oid, before.horizon)


def _whole(known: TableEvidence, table: TableEvidence) -> str | None:
    """Why the whole table is concerned; None if it is not."""
    if known.oid != table.oid:
        return "another table has taken its name"
    if known.name != table.name and known.owner == table.owner:
        return "the table had another name or schema for a while"
    if known.options != table.options and known.publisher == table.publisher:
        return "the publication was edited or made again"
    if known.options.split(".")[0] != table.options.split(".")[0]:
        return "the publication was made again"
    if not known.published & table.published:
        return "the table was taken off the publication and added again, or its row filter was edited"
    if known.types != table.types:  # which makes the constraint again, too
        return None if _same_text(known.types, table.types) else "the type of a key column changed, or was altered"
    if known.keys and table.keys and not known.keys & table.keys:
        return "the constraint that keeps its key unique was dropped and made again"
    return None


def _same_text(before: Sequence[str], after: Sequence[str]) -> bool:
    """Whether every key column that changed its type publishes the same texts."""
    if len(before) != len(after):
        return False
    # Older programs stored nothing of the attributes of composites.
    changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new and old != _plain(old, new)]
    oids = [{int(text.split(".")[0]) for text in pair} for pair in changed]
    return all(any(pair <= family for family in _SAME_TEXT) for pair in oids)


def _plain(old: str, new: str) -> str:
    """`new` without what it says of attributes, where `old` says nothing of them."""
    return new if old.count(".") > 1 else ".".join(new.split(".")[:2])


def _leaves(entity: str, known: TableEvidence, table: TableEvidence, since: int) -> Iterator[Unlogged]:
    if isinstance(known.leaves, str) or isinstance(table.leaves, str):
        if _leaves_digest(known) != _leaves_digest(table):
            why = f"one of more than {LEAVES_MAX} partitions was attached, detached, dropped, truncated or rewritten"
            yield Unlogged(entity=entity, why=why, statements="TABLE", leaves=None, sweep=True, since=since)
        return
    before, after = known.leaves, table.leaves
    linked = {oid for oid, leaf in after.items() if oid not in before or before[oid].links != leaf.links}
    gone = {oid for oid in before if oid not in after or oid in linked}
    truncated = {oid for oid in after if oid not in linked and before[oid].filenode != after[oid].filenode}
    told = {"attached": len(linked), "detached or dropped": len(gone), "truncated": len(truncated)}
    why = "partitions changed: " + ", ".join(f"{count} {what}" for what, count in told.items() if count)
    yield Unlogged(
        entity=entity,
        why=why,
        statements="TABLE",
        leaves=frozenset(linked),
        sweep=bool(gone or truncated),
        since=since,
        truncated=not (linked or gone),
    )


def _has_older(connection: psycopg.Connection[Any], leaf: int, horizon: int) -> bool:
    """Whether the first pages have a row that was written by a transaction below `horizon`.

    Ids wrap around, so that a row frozen long ago may look young: then the partition counts as truncated, and so does
    one that may not be read.
    """
    found = _probe(connection, leaf)
    first = sql.SQL("ctid < {}::tid AND age(xmin) > age({}::text::xid)")
    condition = first.format(f"({_PROBED_PAGES},0)", str(horizon & 0xFFFFFFFF))
    return found is not None and found.readable and _exists(connection, found, condition)


def _is_new(connection: psycopg.Connection[Any], leaf: int, seen: LeafEvidence, known: Iterable[LeafEvidence]) -> bool:
    """Whether all rows that came to the partition are in the log under its table's name: it is empty, or it was made as
    a partition (CREATE TABLE … PARTITION OF), and so was what it is a partition of, if that is new, too.

    One that may not be read is taken for new if the transaction that made it attached it.
    """
    found = _probe(connection, leaf)
    if found is None:
        return False
    *above, link = seen.links.split("/")
    parent_known = any(other.links.split("/")[: len(above)] == above for other in known)
    made = found.made_as_partition if parent_known else found.made_as_partitions
    return not found.pages or made or (not found.readable and found.made_by == link)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Probed:
    """A partition that is there: its size, and `made_by`, the transaction that made it.

    `made_as_partition`: it was never a table of its own; `made_as_partitions`: nor was any partition above it.
    """

    schema: str
    name: str
    pages: int
    readable: bool
    made_by: str
    made_as_partition: bool
    made_as_partitions: bool


def _probe(connection: psycopg.Connection[Any], leaf: int) -> _Probed | None:
    """The partition; None when it was dropped meanwhile."""
    with translated("looking at a partition"), connection.cursor(row_factory=class_row(_Probed)) as cursor:
        return cursor.execute(_PROBE, {"leaf": leaf}).fetchone()


def _exists(connection: psycopg.Connection[Any], leaf: _Probed, condition: sql.Composed) -> bool:
    """Whether the partition has such a row."""
    table = sql.Identifier(leaf.schema, leaf.name)
    with translated("looking at a partition"):
        row = connection.execute(
            sql.SQL("SELECT EXISTS (SELECT FROM ONLY {} WHERE {})").format(table, condition)
        ).fetchone()
    assert row is not None
    return bool(row[0])


def _leaves_digest(table: TableEvidence) -> str:
    if isinstance(table.leaves, str):
        return table.leaves
    return _digest([[oid, leaf.filenode, leaf.links] for oid, leaf in table.leaves.items()])


def _digest(leaves: Sequence[Any]) -> str:
    return hashlib.sha256(json.dumps(leaves).encode()).hexdigest()[:16]


# The row of a system column is written when its table is made, and never again. So are those of all its columns by
# CREATE TABLE … PARTITION OF; ATTACH writes each again, to say that it is inherited.
_PROBE = """
WITH RECURSIVE chain AS (
    SELECT i.inhrelid, i.inhparent, i.xmin AS link FROM pg_inherits AS i WHERE i.inhrelid = %(leaf)s
    UNION ALL
    SELECT i.inhrelid, i.inhparent, i.xmin FROM chain JOIN pg_inherits AS i ON i.inhrelid = chain.inhparent
), made AS (
    SELECT chain.inhrelid, EXISTS (
        SELECT FROM pg_attribute AS s
        JOIN pg_attribute AS b ON b.attrelid = s.attrelid AND b.attnum > 0 AND b.xmin = s.xmin AND b.cmin = s.cmin
        WHERE s.attrelid = chain.inhrelid AND s.attnum = -1 AND s.xmin = chain.link AND NOT b.attislocal
    ) AS as_partition FROM chain
)
SELECT n.nspname AS schema, c.relname AS name, a.xmin::text AS made_by,
    coalesce(pg_relation_size(c.oid), 0) / current_setting('block_size')::int8 AS pages,
    has_table_privilege(c.oid, 'SELECT') AND has_schema_privilege(n.oid, 'USAGE') AS readable,
    coalesce((SELECT as_partition FROM made WHERE inhrelid = c.oid), false) AS made_as_partition,
    coalesce((SELECT bool_and(as_partition) FROM made), false) AS made_as_partitions
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = -1
WHERE c.oid = %(leaf)s
"""

_SCHEMAS = """
        UNION ALL SELECT s.oid || '.' || s.xmin FROM pg_publication_namespace AS s
        WHERE s.pnpubid = p.oid AND s.pnnspid = n.oid"""

# One row a table that was asked for, and one at least.
_LOOK = """
SELECT pg_snapshot_xmin(pg_current_snapshot())::text::int8, t.*
FROM (SELECT) AS always LEFT JOIN (
    SELECT a.entity, c.oid::int8, y.xmin::text, c.relowner::int8,
        coalesce(p.oid || '.' || p.xmin, ''), coalesce(p.pubowner::int8, 0),
        ARRAY(
            SELECT r.oid || '.' || r.xmin FROM pg_publication_rel AS r WHERE r.prpubid = p.oid AND r.prrelid = c.oid
            UNION ALL SELECT 'all' WHERE p.puballtables{schemas}
        ),
        ARRAY(
            SELECT coalesce('c' || k.oid, 'i' || i.indexrelid) FROM pg_index AS i
            LEFT JOIN pg_constraint AS k ON k.conindid = i.indexrelid AND k.conrelid = c.oid AND k.contype IN ('p', 'u')
            WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid AND i.indisready AND i.indimmediate
                AND i.indpred IS NULL AND i.indexprs IS NULL AND a.key = (
                    SELECT jsonb_agg(b.attname ORDER BY b.attname COLLATE "C") FROM pg_attribute AS b
                    WHERE b.attrelid = c.oid AND b.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
                )
        ),
        ARRAY(
            SELECT b.atttypid || '.' || b.atttypmod || coalesce('.' || (
                WITH RECURSIVE used(type) AS (
                    SELECT b.atttypid
                    UNION
                    SELECT part.type FROM used JOIN pg_type AS u ON u.oid = used.type CROSS JOIN LATERAL (
                        VALUES (u.typelem), (u.typbasetype)
                        UNION ALL SELECT r.rngsubtype FROM pg_range AS r WHERE u.oid IN (r.rngtypid, r.rngmultitypid)
                        UNION ALL SELECT f.atttypid FROM pg_attribute AS f
                        WHERE f.attrelid = u.typrelid AND f.attnum > 0
                    ) AS part(type)
                )
                SELECT md5(string_agg(concat_ws(' ', f.attrelid, f.attnum, f.xmin), ',' ORDER BY f.attrelid, f.attnum))
                FROM used JOIN pg_type AS u ON u.oid = used.type JOIN pg_attribute AS f ON f.attrelid = u.typrelid
                WHERE f.attnum > 0
            ), '') FROM pg_attribute AS b
            WHERE b.attrelid = c.oid AND NOT b.attisdropped AND a.key ? b.attname ORDER BY b.attname COLLATE "C"
        ),
        coalesce((
            WITH RECURSIVE tree AS (
                SELECT i.inhrelid, i.xmin::text AS links FROM pg_inherits AS i
                WHERE i.inhparent = c.oid AND NOT i.inhdetachpending
                UNION ALL
                SELECT i.inhrelid, t.links || '/' || i.xmin
                FROM tree AS t JOIN pg_inherits AS i ON i.inhparent = t.inhrelid AND NOT i.inhdetachpending
            )
            SELECT jsonb_agg(jsonb_build_array(l.oid::int8, l.relfilenode::int8, t.links) ORDER BY l.oid)
            FROM tree AS t JOIN pg_class AS l ON l.oid = t.inhrelid AND l.relkind = 'r'
            WHERE c.relkind = 'p'
        ), '[]')
    FROM jsonb_to_recordset(%s::jsonb) AS a(entity text, schema text, name text, key jsonb)
    JOIN pg_namespace AS n ON n.nspname = a.schema
    JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relname = a.name
    LEFT JOIN pg_type AS y ON y.oid = c.reltype
    LEFT JOIN pg_publication AS p ON p.pubname = %s
) AS t ON true
"""
