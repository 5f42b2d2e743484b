"""Reads evidence about tables from the catalogue. A comparison of two readings shows changes that the log lacks.

Every edit of a catalogue row gives the row a new `xmin`: the id of the transaction that made the edit. So if a table
leaves the publication and comes back between two readings, the second reading finds another `xmin` in the row that
makes the table part of the publication. An `xmin` survives VACUUM FREEZE and is the same on a physical standby. Another
cluster assigns its own transaction ids, so the catalogues of two clusters cannot be compared.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import psycopg
from psycopg import sql
from psycopg.rows import class_row

from changelog.connectors.sources.postgres.session.connection import translated
from changelog.connectors.sources.postgres.values.lsn import lsn_text, parse_lsn
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError, Kind

LEAVES_MAX = 200
"""A checkpoint lists at most this many partitions of a table. If a table has more, the checkpoint stores one hash of
all its partitions instead: every commit writes a checkpoint, so a checkpoint must be short."""

_PROBED_PAGES = 128
"""How many pages of a rewritten or truncated partition are searched for a row from before the earlier reading."""

_SCHEMAS_PUBLISHED = 150000

_SAME_TEXT = (frozenset({20, 21, 23}), frozenset({25, 1043}))
"""Groups of type OIDs: integers, and text with varchar. If a key column's type changes within a group, the keys in the
changelog stay the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafEvidence:
    """A partition that stores rows. `filenode` is the number of its file. `links` joins, with `/`, the `xmin` of each
    row in `pg_inherits` on the way from the published table down to the partition.
    """

    filenode: int
    links: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TableEvidence:
    """The evidence for one entity's table. `oid` is the OID of the table.

    `name` is the `xmin` of the table's row in `pg_type`. PostgreSQL writes this row again each time the table gets
    another name, schema or `owner`. `options` is the OID of the publication and the `xmin` of its row in
    `pg_publication`. PostgreSQL writes this row again each time the publication itself is edited or gets another owner
    (`publisher`). `published` identifies the rows of the catalogue that make the table part of the publication.

    `keys` holds what keeps the entity key unique: constraints (each as `c` and its OID), and unique indexes without a
    constraint (each as `i` and its OID). `types` holds the type of each key column; if it contains composite types, a
    hash of their attributes follows. `leaves` holds the partitions that store rows, by OID, or a hash of all of them.
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
        """Returns the form that the checkpoint stores; see `LEAVES_MAX` for why it is short."""
        leaves: Any = self.leaves
        if not isinstance(leaves, str):
            leaves = [[oid, leaf.filenode, leaf.links] for oid, leaf in leaves.items()]
            leaves = leaves if len(leaves) <= LEAVES_MAX else _digest(leaves)
        published, keys = sorted(self.published), sorted(self.keys)
        publication = [self.options, self.publisher, published]
        return [self.oid, self.name, self.owner, *publication, keys, list(self.types), leaves]

    @classmethod
    def parse(cls, members: Sequence[Any]) -> Self:
        """Parses the result of `to_json` or a row of the catalogue query."""
        oid, name, owner, options, publisher, published, keys, types, leaves = members
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
    """What one reading of the catalogue shows.

    `lsn` is where the log ended right before the reading. Every transaction with an id below `horizon` had ended then.
    `tables` is keyed by the name of the entity; an entity whose table does not exist is left out.
    """

    lsn: int
    horizon: int
    tables: Mapping[str, TableEvidence]

    def to_json(self) -> dict[str, Any]:
        """Returns the form that the checkpoint stores."""
        tables = {entity: table.to_json() for entity, table in self.tables.items()}
        return {"lsn": lsn_text(self.lsn), "horizon": self.horizon, "tables": tables}

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> Self | None:
        """Parses the result of `to_json`; None if nothing is stored. Raises ChangelogError (MALFORMED)."""
        if not document:
            return None
        try:
            tables = {entity: TableEvidence.parse(table) for entity, table in document["tables"].items()}
            return cls(lsn=parse_lsn(document["lsn"]), horizon=int(document["horizon"]), tables=tables)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ChangelogError(Kind.MALFORMED, "cannot parse the publication in the checkpoint") from error

    def of(self, entities: Sequence[str]) -> "Evidence":
        """Returns the evidence of these entities only."""
        return replace(self, tables={name: self.tables[name] for name in entities if name in self.tables})


# Words in the names of the commands that can have made a change. Some commands change a schema with all its tables.
_TABLE, _KEY, _PUBLICATION = ("TABLE", "SCHEMA", "OWNED"), ("TABLE", "TYPE"), ("PUBLICATION", "OWNED")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unlogged:
    """A change of a table whose effect on rows may be missing from the log.

    The table was changed between the log positions `since` and `until`. `why` says what was changed. One of the words
    in `statements` is in the name of the command that made the change, so `ddl` can find the command in the log.
    `leaves` holds the OIDs of the partitions to read again; None means the whole table. `sweep` says that the log may
    lack deletes. `truncated` says that partitions were truncated and nothing else happened.
    """

    entity: str
    why: str
    statements: Sequence[str]
    leaves: frozenset[int] | None
    sweep: bool
    since: int
    until: int = 0
    truncated: bool = False


def read(connection: psycopg.Connection[Any], publication: str, entities: Sequence[Entity]) -> Evidence:
    """Reads the catalogue. This locks no table, so it never waits for an ALTER TABLE.

    A first statement reads the position at which the log ends (`Evidence.lsn`). Only then does a second statement read
    the catalogue. So the result shows every change of a table that was committed before the log reached `lsn`.
    """
    requests = [
        {"entity": entity.name, "schema": entity.table[0], "name": entity.table[1], "key": sorted(entity.key)}
        for entity in entities
    ]
    lists_no_schemas = connection.info.server_version < _SCHEMAS_PUBLISHED
    query = _TABLES.replace("{schemas}", "" if lists_no_schemas else _SCHEMAS)
    with translated("reading the catalogue"):
        [(lsn,)] = connection.execute("SELECT (pg_current_wal_insert_lsn() - '0/0')::int8").fetchall()
        rows = connection.execute(query.encode(), [json.dumps(requests), publication]).fetchall()
    tables = {row[1]: TableEvidence.parse(row[2:]) for row in rows if row[1] is not None}
    return Evidence(lsn=lsn, horizon=rows[0][0], tables=tables)


def unlogged(before: Evidence, now: Evidence) -> Iterator[Unlogged]:
    """Yields the changes between two readings that may be missing from the log; `before` is the result of `prove`."""
    for entity, new_table in now.tables.items():
        old_table = before.tables.get(entity)
        if old_table is None or old_table == new_table:
            continue
        reason = _reason_for_whole_table(old_table, new_table)
        if reason is not None:
            words = _PUBLICATION if "publication" in reason else _KEY if "key" in reason else _TABLE
            yield Unlogged(entity=entity, why=reason, statements=words, leaves=None, sweep=True, since=before.lsn)
        elif old_table.leaves != new_table.leaves:
            yield from _leaves(entity, old_table, new_table, before.lsn)


def prove(connection: psycopg.Connection[Any], before: Evidence, now: Evidence) -> Evidence:
    """Returns `before`, but with the present state of those partitions for which the log lacks nothing.

    So `unlogged` does not report partitions that VACUUM FULL or CLUSTER has rewritten, or new partitions whose rows are
    all in the log. Unlike a truncated partition, a rewritten one still has rows from before the earlier reading.
    """
    tables = dict(before.tables)
    for entity, new_table in now.tables.items():
        old_table = tables.get(entity)
        if old_table is None or isinstance(old_table.leaves, str) or isinstance(new_table.leaves, str):
            continue
        unchanged_leaves = {
            oid: leaf
            for oid, leaf in new_table.leaves.items()
            if _same_rows(connection, before, old_table.leaves, oid, leaf)
        }
        tables[entity] = replace(old_table, leaves={**old_table.leaves, **unchanged_leaves})
    return replace(before, tables=tables)


def _same_rows(
    connection: psycopg.Connection[Any],
    before: Evidence,
    old_leaves: Mapping[int, LeafEvidence],
    oid: int,
    leaf: LeafEvidence,
) -> bool:
    """Returns whether the changelog still has the right rows of this partition, even if its evidence has changed."""
    old_leaf = old_leaves.get(oid)
    if old_leaf == leaf:
        return True
    if old_leaf is None:
        return _is_new(connection, oid, leaf, old_leaves.values())
    return old_leaf.links == leaf.links and _has_older(connection, oid, before.horizon)


def _reason_for_whole_table(old_table: TableEvidence, new_table: TableEvidence) -> str | None:
    """Returns which change between two readings affects the whole table, as text; None if there is no such change."""
    if old_table.oid != new_table.oid:
        return "the table was replaced by another one of the same name"
    if old_table.name != new_table.name and old_table.owner == new_table.owner:
        return "the table had another name or schema for a while"
    if old_table.options != new_table.options and old_table.publisher == new_table.publisher:
        return "the publication was edited or made again"
    if old_table.options.split(".")[0] != new_table.options.split(".")[0]:
        return "the publication was made again"
    if not old_table.published & new_table.published:
        return "the table was removed from the publication and added again, or its row filter was edited"
    if old_table.types != new_table.types:  # checked before the keys: a new type also recreates the constraint
        has_same_keys = _same_text(old_table.types, new_table.types)
        return None if has_same_keys else "a key column got another type, or a composite in its type was altered"
    if old_table.keys and new_table.keys and not old_table.keys & new_table.keys:
        return "the constraint that keeps the entity's key unique was dropped and made again"
    return None


def _same_text(old_types: Sequence[str], new_types: Sequence[str]) -> bool:
    """Returns whether the keys in the changelog are still the same although the types of key columns differ."""
    if len(old_types) != len(new_types):
        return False
    # Older versions of this program did not store the attributes of composites.
    changed_types = [
        (old, new) for old, new in zip(old_types, new_types, strict=True) if old != new and old != _plain(old, new)
    ]
    oids = [{int(text.split(".")[0]) for text in pair} for pair in changed_types]
    return all(any(pair <= family for family in _SAME_TEXT) for pair in oids)


def _plain(old: str, new: str) -> str:
    """Returns `new` without its hash of attributes if `old` has no such hash, so that the two can be compared."""
    return new if old.count(".") > 1 else ".".join(new.split(".")[:2])


def _leaves(entity: str, old_table: TableEvidence, new_table: TableEvidence, since: int) -> Iterator[Unlogged]:
    if isinstance(old_table.leaves, str) or isinstance(new_table.leaves, str):
        if _leaves_digest(old_table) != _leaves_digest(new_table):
            why = f"one of more than {LEAVES_MAX} partitions was attached, detached, dropped, truncated or rewritten"
            yield Unlogged(entity=entity, why=why, statements=_TABLE, leaves=None, sweep=True, since=since)
        return
    old_leaves, new_leaves = old_table.leaves, new_table.leaves
    linked_oids = {
        oid for oid, leaf in new_leaves.items() if oid not in old_leaves or old_leaves[oid].links != leaf.links
    }
    gone_oids = {oid for oid in old_leaves if oid not in new_leaves or oid in linked_oids}
    truncated_oids = {
        oid for oid in new_leaves if oid not in linked_oids and old_leaves[oid].filenode != new_leaves[oid].filenode
    }
    counts = {"attached": len(linked_oids), "detached or dropped": len(gone_oids), "truncated": len(truncated_oids)}
    why = "partitions changed: " + ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    yield Unlogged(
        entity=entity,
        why=why,
        statements=_TABLE,
        leaves=frozenset(linked_oids),
        sweep=bool(gone_oids or truncated_oids),
        since=since,
        truncated=not (linked_oids or gone_oids),
    )


def _has_older(connection: psycopg.Connection[Any], leaf: int, horizon: int) -> bool:
    """Returns whether the first pages of a partition have a row that a transaction below `horizon` wrote.

    If it returns False, the partition counts as truncated. It also returns False if our role may not read the
    partition, or if the rows are so old that they seem younger than `horizon`, because transaction ids wrap around.
    """
    probe = _probe(connection, leaf)
    first = sql.SQL("ctid < {}::tid AND age(xmin) > age({}::text::xid)")
    condition = first.format(f"({_PROBED_PAGES},0)", str(horizon & 0xFFFFFFFF))
    return probe is not None and probe.readable and _exists(connection, probe, condition)


def _is_new(
    connection: psycopg.Connection[Any], leaf: int, leaf_evidence: LeafEvidence, old_leaves: Iterable[LeafEvidence]
) -> bool:
    """Returns whether the log has all rows of a new partition as rows of its partitioned table.

    A table can be filled before it is attached as a partition; the log then has its rows as rows of that table, not of
    the partitioned one. So the result is True if the partition is empty, or was created as a partition (CREATE TABLE …
    PARTITION OF). If its parent is new as well, all partitions above it must have been created as partitions, too. The
    result is also True if our role may not read the partition, and the same transaction created and attached it.
    """
    probe = _probe(connection, leaf)
    if probe is None:
        return False
    *parent_links, link = leaf_evidence.links.split("/")
    parent_known = any(other.links.split("/")[: len(parent_links)] == parent_links for other in old_leaves)
    made_as_partition = probe.made_as_partition if parent_known else probe.made_as_partitions
    return not probe.pages or made_as_partition or (not probe.readable and probe.made_by == link)


@dataclass(frozen=True, slots=True, kw_only=True)
class _PartitionProbe:
    """Facts from the catalogue about an existing partition.

    `pages` is its size, and `made_by` is the transaction that created it. `made_as_partition` says that the partition
    was never a table of its own. `made_as_partitions` says this of the partition and of all partitions above it.
    """

    schema: str
    name: str
    pages: int
    readable: bool
    made_by: str
    made_as_partition: bool
    made_as_partitions: bool


def _probe(connection: psycopg.Connection[Any], leaf: int) -> _PartitionProbe | None:
    """Reads the facts about the partition; None if it has been dropped."""
    with translated("looking at a partition"), connection.cursor(row_factory=class_row(_PartitionProbe)) as cursor:
        return cursor.execute(_PROBE, {"leaf": leaf}).fetchone()


def _exists(connection: psycopg.Connection[Any], leaf: _PartitionProbe, condition: sql.Composed) -> bool:
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


# The catalogue row of a system column is written when its table is created, and never again. CREATE TABLE … PARTITION
# OF writes the rows of the other columns at the same time; ATTACH writes them again, to mark them as inherited. So a
# table was created as a partition if an inherited column's row has the same xmin and cmin as a system column's row. The
# row of pg_inherits must have this xmin, too.
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

# Selects one row for each requested table that exists; if none exists, a single row without a table.
_TABLES = """
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
