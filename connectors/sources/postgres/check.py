"""Every precondition of the source, each tested and each with its fix."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from connectors.sources.postgres.catalog import Table
from connectors.sources.postgres.connection import translated
from envelope.entity import Entity
from envelope.errors import ChangelogError, Kind

OLDEST, NEWEST = 14, 18
"""The major versions that the source is tested with."""

STORED_GENERATED_VERSION = 18
ROW_FILTER_VERSION = 15
FAILOVER_VERSION = 17

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One precondition: `message` says what is so, `hint` what to do, `fix` the SQL that does it safely, if any."""

    name: str
    status: Status
    message: str
    hint: str | None = None
    fix: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the service asks of the database."""

    slot: str
    publication: str
    failover: bool
    signed: bool
    entities: Sequence[Entity]


def findings(connection: psycopg.Connection[Any], wanted: Wanted, tables: Sequence[Table]) -> list[Finding]:
    """All findings, of the server first, then of slot and publication, then of each table.

    `connection` is one of the role that the service runs as. Reads catalogues only, and changes nothing.
    """
    with translated("checking the preconditions"):
        facts = _row(connection, _SERVER)
        bound = {entity.name: _table_of(entity, tables) for entity in wanted.entities}
        relations = _relations(connection, list(bound.values()))
        return [
            *_server(facts, wanted),
            *_slot(facts, _optional_row(connection, _SLOT, [wanted.slot]), wanted),
            *_publication(connection, facts, wanted),
            *(
                finding
                for entity in wanted.entities
                for finding in _entity(entity, bound[entity.name], relations, facts)
            ),
        ]


def refuse(found: Sequence[Finding]) -> None:
    """Raises ChangelogError(PRECONDITION) for the first failure, and says how many more there are."""
    failed = [finding for finding in found if finding.status == "fail"]
    if failed:
        more = f" (and {len(failed) - 1} more: see `changelog check`)" if len(failed) > 1 else ""
        first = failed[0]
        raise ChangelogError(Kind.PRECONDITION, f"{first.name}: {first.message}{more}", hint=first.hint)


_SERVER = """
SELECT current_setting('server_version_num')::int / 10000 AS version, current_setting('server_version') AS version_text,
    current_setting('wal_level') AS wal_level, pg_is_in_recovery() AS standby,
    current_setting('max_replication_slots')::int AS max_slots, (SELECT count(*) FROM pg_replication_slots) AS slots,
    current_setting('max_wal_senders')::int AS max_senders, (SELECT count(*) FROM pg_stat_replication) AS senders,
    (SELECT setting::bigint FROM pg_settings WHERE name = 'max_slot_wal_keep_size') AS keep_mb,
    coalesce(current_setting('idle_replication_slot_timeout', true), '0') AS idle_timeout,
    coalesce(current_setting('synchronized_standby_slots', true), '') AS synchronized,
    current_setting('server_encoding') AS encoding, current_database() AS database, current_user AS role,
    rolreplication OR rolsuper AS replication, rolsuper AS superuser,
    has_database_privilege(current_database(), 'CREATE') AS may_create,
    has_function_privilege('pg_logical_emit_message(boolean, text, text)', 'EXECUTE') AS may_emit
FROM pg_roles WHERE rolname = current_user
"""

_SLOT = """
SELECT plugin, database, active_pid, wal_status, to_jsonb(s) ->> 'two_phase' AS two_phase,
    coalesce((to_jsonb(s) ->> 'failover')::boolean, false) AS failover,
    to_jsonb(s) ->> 'invalidation_reason' AS invalidation
FROM pg_replication_slots s WHERE slot_name = %s
"""

_PUBLICATION = """
SELECT pubviaroot AS via_root, pubinsert AND pubupdate AND pubdelete AND pubtruncate AS all_operations
FROM pg_publication WHERE pubname = %s
"""

# A column list or a row filter exists from 15 on; to_jsonb asks for them without naming them.
_PUBLISHED = """
SELECT schemaname AS schema, tablename AS name, to_jsonb(p) ->> 'rowfilter' AS filter
FROM pg_publication_tables p WHERE pubname = %s
"""

_COLUMN_LISTS = """
SELECT n.nspname AS schema, c.relname AS name FROM pg_publication_rel r
JOIN pg_publication p ON p.oid = r.prpubid JOIN pg_class c ON c.oid = r.prrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE p.pubname = %s AND to_jsonb(r) ->> 'prattrs' IS NOT NULL
"""

_RELATIONS = """
SELECT c.oid::int8 AS oid, n.nspname AS schema, c.relname AS name, c.relkind AS kind, c.relreplident AS identity,
    c.relpersistence = 'p' AS logged, pg_has_role(c.relowner, 'USAGE') AS owned,
    pg_get_userbyid(c.relowner) AS owner, has_table_privilege(c.oid, 'SELECT') AS readable,
    has_schema_privilege(n.oid, 'USAGE') AS reachable, row_security_active(c.oid) AS row_security,
    ARRAY(
        SELECT a.attname::text FROM pg_index i
        JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
        WHERE i.indrelid = c.oid AND i.indisvalid
            AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END
    ) AS columns
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = ANY (%s::int8[]::oid[])
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Relation:
    """One relation that holds rows, or the root of such; `columns` are those of its replica identity when not full."""

    oid: int
    schema: str
    name: str
    kind: str
    identity: str
    logged: bool
    owned: bool
    owner: str
    readable: bool
    reachable: bool
    row_security: bool
    columns: Sequence[str]

    @property
    def text(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def quoted(self) -> str:
        return sql.Identifier(self.schema, self.name).as_string()


def _server(facts: Mapping[str, Any], wanted: Wanted) -> Iterator[Finding]:
    version = facts["version"]
    if version < OLDEST:
        yield _fail("version", f"PostgreSQL {facts['version_text']} is too old", f"upgrade to {OLDEST} or later")
    elif version > NEWEST:
        yield _warn("version", f"PostgreSQL {version} is newer than what this program is tested with ({NEWEST})")
    else:
        yield _ok("version", f"PostgreSQL {facts['version_text']}")
    if facts["wal_level"] != "logical":
        yield _fail(
            "wal_level",
            f"wal_level is {facts['wal_level']}",
            "ALTER SYSTEM SET wal_level = 'logical', then restart the server",
        )
    else:
        yield _ok("wal_level", "logical")
    if facts["standby"]:
        yield _fail(
            "primary", "the server is a standby", "connect to the primary: the service writes marks into its log"
        )
    if facts["encoding"] == "SQL_ASCII":
        yield _fail(
            "encoding", "the database's encoding is SQL_ASCII: its text may be of any", "move it to a UTF8 database"
        )
    yield from _rights(facts)
    yield from _failover(facts, wanted)
    if not wanted.signed:
        yield _warn("signals", "any role of the database may signal the service", 'set [signals] secret = "env:NAME"')


def _rights(facts: Mapping[str, Any]) -> Iterator[Finding]:
    role = sql.Identifier(facts["role"]).as_string()
    if facts["replication"]:
        yield _ok("replication", f"role {facts['role']} may replicate")
    else:
        yield _fail(
            "replication", f"role {facts['role']} may not replicate", f"as a superuser: ALTER ROLE {role} REPLICATION"
        )
    if not facts["may_emit"]:
        yield _fail(
            "messages",
            f"role {facts['role']} may not execute pg_logical_emit_message",
            f"GRANT EXECUTE ON FUNCTION pg_logical_emit_message(boolean, text, text) TO {role}",
        )


def _failover(facts: Mapping[str, Any], wanted: Wanted) -> Iterator[Finding]:
    if not wanted.failover:
        return
    if facts["version"] < FAILOVER_VERSION:
        yield _fail(
            "failover",
            f"PostgreSQL {facts['version']} has no failover slots",
            "set [source] failover = false; after a promotion, follow docs/running.md",
        )
    elif not facts["synchronized"]:
        yield _warn(
            "failover",
            "synchronized_standby_slots is empty: we may publish commits that a promoted standby lacks",
            "name the standbys' physical slots there",
        )


def _slot(facts: Mapping[str, Any], slot: Mapping[str, Any] | None, wanted: Wanted) -> Iterator[Finding]:
    if slot is None:
        yield from _room_for_a_slot(facts, wanted)
    elif slot["plugin"] != "pgoutput" or slot["database"] != facts["database"] or slot["two_phase"] == "true":
        kind = f"{slot['plugin'] or 'physical'}, of database {slot['database']}"
        yield _fail("slot", f"slot {wanted.slot} is not ours ({kind})", "set another [source] slot")
    elif slot["wal_status"] == "lost" or slot["invalidation"]:
        yield _fail(
            "slot",
            f"slot {wanted.slot} is lost: the server removed log that it had not sent",
            "`changelog drop --slot --yes`, then read the tables anew: see docs/running.md",
        )
    elif slot["wal_status"] == "unreserved":
        yield _warn(
            "slot",
            f"slot {wanted.slot} is about to be lost",
            "let the service catch up, or raise max_slot_wal_keep_size",
        )
    elif slot["failover"] != wanted.failover:
        want = "true" if wanted.failover else "false"
        yield _warn(
            "slot",
            f"slot {wanted.slot} has failover = {str(slot['failover']).lower()}, [source] says {want}",
            f"while the service is stopped, on a replication connection: ALTER_REPLICATION_SLOT … (FAILOVER {want})",
        )
    else:
        holder = f"in use by process {slot['active_pid']}" if slot["active_pid"] else "nobody reads it now"
        yield _ok("slot", f"{wanted.slot} is there, {holder}")
    if facts["keep_mb"] == -1:
        yield _warn(
            "retention",
            "max_slot_wal_keep_size is unlimited: while the service is stopped, the log fills the server's disk",
            "watch changelog_slot_retained_bytes, or set a limit that the longest outage fits in",
        )
    if facts["idle_timeout"] not in ("0", "0s"):
        yield _warn(
            "retention",
            f"idle_replication_slot_timeout is {facts['idle_timeout']}: a service stopped for longer loses its slot",
            "set it to 0, or to more than the longest outage",
        )


def _room_for_a_slot(facts: Mapping[str, Any], wanted: Wanted) -> Iterator[Finding]:
    for name, used, limit, setting in (
        ("slot", facts["slots"], facts["max_slots"], "max_replication_slots"),
        ("senders", facts["senders"], facts["max_senders"], "max_wal_senders"),
    ):
        if used >= limit:
            yield _fail(name, f"all {limit} of {setting} are taken", f"raise {setting}, or drop what nobody uses")
        elif name == "slot":
            yield _ok("slot", f"{wanted.slot} is not there yet; `changelog run` makes it")


def _publication(connection: psycopg.Connection[Any], facts: Mapping[str, Any], wanted: Wanted) -> Iterator[Finding]:
    name = wanted.publication
    publication = _optional_row(connection, _PUBLICATION, [name])
    if publication is None:
        if facts["may_create"]:
            yield _ok("publication", f"{name} is not there yet; `changelog run` makes it")
        else:
            yield _fail(
                "publication",
                f"there is no publication {name}, and role {facts['role']} may not create it",
                "run the SQL that `changelog init --grants` prints",
            )
        return
    quoted = sql.Identifier(name).as_string()
    if not publication["via_root"]:
        yield _fail(
            "publication",
            f"{name} publishes partitions under their own names",
            f"ALTER PUBLICATION {quoted} SET (publish_via_partition_root = true)",
            fix=(f"ALTER PUBLICATION {quoted} SET (publish_via_partition_root = true)",),
        )
    if not publication["all_operations"]:
        setting = "publish = 'insert, update, delete, truncate'"
        yield _fail(
            "publication",
            f"{name} leaves out some kinds of change",
            f"ALTER PUBLICATION {quoted} SET ({setting})",
            fix=(f"ALTER PUBLICATION {quoted} SET ({setting})",),
        )
    yield from _published_tables(connection, wanted)


def _published_tables(connection: psycopg.Connection[Any], wanted: Wanted) -> Iterator[Finding]:
    name, quoted = wanted.publication, sql.Identifier(wanted.publication).as_string()
    published = {(row["schema"], row["name"]): row for row in _rows(connection, _PUBLISHED, [name])}
    lists = {(row["schema"], row["name"]) for row in _rows(connection, _COLUMN_LISTS, [name])}
    complete = True
    for entity in wanted.entities:
        table = sql.Identifier(*entity.table).as_string()
        if entity.table not in published:
            complete = False
            condition = f" WHERE ({entity.where})" if entity.where else ""
            add = f"ALTER PUBLICATION {quoted} ADD TABLE {table}{condition}"
            yield _fail("publication", f"{name} lacks table {'.'.join(entity.table)}", add, fix=(add,))
        elif entity.table in lists:
            complete = False
            yield _fail(
                "publication",
                f"{name} has a column list on {'.'.join(entity.table)}",
                "take it off: columns are left out by [entities.X] exclude_columns, on our side",
            )
        elif (published[entity.table]["filter"] is None) != (entity.where is None):
            complete = False
            yield _fail(
                "publication",
                f"{name} and [entities.{entity.name}] where disagree on the row filter",
                "`changelog check` compares only whether there is one; set the same on both sides",
            )
    if complete:
        yield _ok("publication", f"{name} has every configured table")


def _entity(
    entity: Entity, table: Table, relations: Mapping[int, _Relation], facts: Mapping[str, Any]
) -> Iterator[Finding]:
    root = relations[table.oid]
    leaves = [relations[leaf.oid] for leaf in table.leaves if leaf.oid in relations] or [root]
    found = [
        *_access(entity, [root, *(leaf for leaf in leaves if leaf is not root)], facts),
        *_identity(entity, leaves),
        *_columns(entity, table, leaves, facts),
    ]
    if root.kind == "p":
        found.append(
            _warn(
                entity.name,
                f"{root.text} is partitioned: ATTACH, DETACH and DROP of a filled partition stream no rows",
                "after one, publish the table anew",
            )
        )
    if not any(finding.status == "fail" for finding in found):
        yield _ok(entity.name, f"{root.text} by {', '.join(entity.key)}")
    yield from found


def _access(entity: Entity, relations: Sequence[_Relation], facts: Mapping[str, Any]) -> Iterator[Finding]:
    role = sql.Identifier(facts["role"]).as_string()
    for relation in relations:
        if not relation.logged:
            yield _fail(
                entity.name,
                f"{relation.text} is unlogged, so its changes are nowhere",
                f"ALTER TABLE {relation.quoted} SET LOGGED",
            )
        if not relation.reachable:
            grant = f"GRANT USAGE ON SCHEMA {sql.Identifier(relation.schema).as_string()} TO {role}"
            yield _fail(entity.name, f"role {facts['role']} may not use schema {relation.schema}", grant)
        elif not relation.readable:
            grant = f"GRANT SELECT ON TABLE {relation.quoted} TO {role}"
            yield _fail(entity.name, f"role {facts['role']} may not read {relation.text}", grant)
        elif relation.row_security:
            yield _fail(
                entity.name,
                f"row security hides rows of {relation.text} from role {facts['role']}",
                f"as a superuser: ALTER ROLE {role} BYPASSRLS",
            )


def _identity(entity: Entity, leaves: Sequence[_Relation]) -> Iterator[Finding]:
    """What the log lacks of the row before: without the key nothing can be published, without the rest no original."""
    needed = {*entity.key, *entity.partition_by}
    for status, group in (
        ("fail", [leaf for leaf in leaves if leaf.identity != "f" and not needed <= set(leaf.columns)]),
        ("warn", [leaf for leaf in leaves if leaf.identity != "f" and needed <= set(leaf.columns)]),
    ):
        if not group or (status == "warn" and entity.immutable):
            continue
        fixes = tuple(f"ALTER TABLE {leaf.quoted} REPLICA IDENTITY FULL" for leaf in group)
        allowed = all(leaf.owned for leaf in group)
        who = "" if allowed else f"as {', '.join(sorted({leaf.owner for leaf in group}))}: "
        names = group[0].text if len(group) == 1 else f"{len(group)} partitions of the table"
        missing = ", ".join(sorted(needed - set(group[0].columns)))
        yield Finding(
            name=entity.name,
            status="fail" if status == "fail" else "warn",
            message=f"the replica identity of {names} "
            + (f"lacks {missing}" if status == "fail" else "is the key alone: originals are not known"),
            hint=f"{who}{fixes[0]}{' …' if len(fixes) > 1 else ''}"
            " (costs: each UPDATE and DELETE writes the whole old row to the log)",
            fix=fixes if allowed else (),
        )


def _columns(entity: Entity, table: Table, leaves: Sequence[_Relation], facts: Mapping[str, Any]) -> Iterator[Finding]:
    generated = [column.name for column in table.columns if column.generated and _published(entity, column.name)]
    if generated and facts["version"] < STORED_GENERATED_VERSION:
        yield _warn(
            entity.name,
            f"generated columns are not in the log of PostgreSQL {facts['version']}: {', '.join(generated)}",
            "they are left out; leave them out of what reads the changelog, too",
        )
    if entity.where is None:
        return
    if facts["version"] < ROW_FILTER_VERSION:
        yield _fail(
            entity.name, f"PostgreSQL {facts['version']} has no row filters", f"take where off [entities.{entity.name}]"
        )
    words = set(re.findall(r"\w+", entity.where.lower()))
    for leaf in leaves:
        loose = [c.name for c in table.columns if c.name.lower() in words and c.name not in leaf.columns]
        if leaf.identity != "f" and loose:
            yield _fail(
                entity.name,
                f"where uses {', '.join(loose)}, outside the replica identity of {leaf.text}:"
                " the application's own UPDATE and DELETE would fail",
                f"ALTER TABLE {leaf.quoted} REPLICA IDENTITY FULL",
                fix=(f"ALTER TABLE {leaf.quoted} REPLICA IDENTITY FULL",) if leaf.owned else (),
            )
            return


def _published(entity: Entity, column: str) -> bool:
    return (entity.columns is None or column in entity.columns) and column not in entity.exclude_columns


def _table_of(entity: Entity, tables: Sequence[Table]) -> Table:
    return next(table for table in tables if (table.schema, table.name) == entity.table)


def _relations(connection: psycopg.Connection[Any], tables: Sequence[Table]) -> dict[int, _Relation]:
    oids = [oid for table in tables for oid in (table.oid, *(leaf.oid for leaf in table.leaves))]
    return {row["oid"]: _Relation(**row) for row in _rows(connection, _RELATIONS, [oids])}


def _rows(connection: psycopg.Connection[Any], query: str, values: Sequence[object] = ()) -> list[dict[str, Any]]:
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(query, values or None).fetchall()


def _optional_row(connection: psycopg.Connection[Any], query: str, values: Sequence[object]) -> dict[str, Any] | None:
    return next(iter(_rows(connection, query, values)), None)


def _row(connection: psycopg.Connection[Any], query: str) -> dict[str, Any]:
    return _rows(connection, query)[0]


def _ok(name: str, message: str) -> Finding:
    return Finding(name=name, status="ok", message=message)


def _warn(name: str, message: str, hint: str | None = None) -> Finding:
    return Finding(name=name, status="warn", message=message, hint=hint)


def _fail(name: str, message: str, hint: str, *, fix: tuple[str, ...] = ()) -> Finding:
    return Finding(name=name, status="fail", message=message, hint=hint, fix=fix)
