"""Every precondition of the source, each tested and each with its fix."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from connectors.sources.postgres.catalog import Leaf, Table, identity_problem
from connectors.sources.postgres.connection import translated
from connectors.sources.postgres.setup import SlotState, publication_sql, slot_state
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
    """What the service asks of the database; `through_lsn` is how far the changelog is, None before it is begun."""

    slot: str
    publication: str
    failover: bool
    entities: Sequence[Entity]
    through_lsn: int | None = None


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
            *_slot(facts, slot_state(connection, wanted.slot), wanted),
            *_retention(facts),
            *_publication(connection, facts, wanted, relations),
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
    (
        SELECT string_agg(oid::regprocedure::text, ', ') FROM pg_proc
        WHERE proname = 'pg_logical_emit_message' AND NOT has_function_privilege(oid, 'EXECUTE')
    ) AS forbidden
FROM pg_roles WHERE rolname = current_user
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
SELECT c.oid::int8 AS oid, n.nspname AS schema, c.relname AS name, c.relpersistence = 'p' AS logged,
    pg_has_role(c.relowner, 'USAGE') AS owned, pg_get_userbyid(c.relowner) AS owner,
    has_table_privilege(c.oid, 'SELECT') AS readable, has_schema_privilege(n.oid, 'USAGE') AS reachable,
    row_security_active(c.oid) AS row_security
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = ANY (%s::int8[]::oid[])
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Relation:
    """What the role may do with a table or a partition of it."""

    oid: int
    schema: str
    name: str
    logged: bool
    owned: bool
    owner: str
    readable: bool
    reachable: bool
    row_security: bool

    @property
    def text(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def quoted(self) -> str:
        return _quote(self.schema, self.name)


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


def _rights(facts: Mapping[str, Any]) -> Iterator[Finding]:
    role = _quote(facts["role"])
    if facts["replication"]:
        yield _ok("replication", f"role {facts['role']} may replicate")
    else:
        yield _fail(
            "replication", f"role {facts['role']} may not replicate", f"as a superuser: ALTER ROLE {role} REPLICATION"
        )
    if facts["forbidden"]:
        yield _fail(
            "messages",
            f"role {facts['role']} may not write marks into the log",
            f"GRANT EXECUTE ON FUNCTION {facts['forbidden']} TO {role}",
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


def _slot(facts: Mapping[str, Any], slot: SlotState | None, wanted: Wanted) -> Iterator[Finding]:
    name = wanted.slot
    again = "`changelog drop --slot --yes`, then read the tables anew: see docs/running.md"
    if slot is None and wanted.through_lsn is not None:
        yield _fail("slot", f"slot {name} is gone, and the changelog was begun with it", again)
    elif slot is None:
        yield from _room_for_a_slot(facts, wanted)
    elif slot.plugin != "pgoutput" or slot.database != facts["database"] or slot.two_phase:
        kind = f"{slot.plugin or 'physical'}{', two-phase' if slot.two_phase else ''}, of database {slot.database}"
        yield _fail("slot", f"slot {name} is not ours ({kind})", "set another [source] slot")
    elif slot.wal_status == "lost":
        yield _fail(
            "slot",
            f"slot {name} is lost: the server removed log that it had not sent",
            again,
        )
    elif wanted.through_lsn is not None and slot.confirmed_flush > wanted.through_lsn:
        yield _fail("slot", f"slot {name} is ahead of the changelog: what is between them cannot be read again", again)
    elif slot.wal_status == "unreserved":
        yield _warn(
            "slot", f"slot {name} is about to be lost", "let the service catch up, or raise max_slot_wal_keep_size"
        )
    elif slot.failover != wanted.failover:
        want = str(wanted.failover).lower()
        yield _warn(
            "slot",
            f"slot {name} has failover {str(slot.failover).lower()}, [source] failover says {want}",
            f"while the service is stopped, on a replication connection: ALTER_REPLICATION_SLOT … (FAILOVER {want})",
        )
    else:
        holder = f"read by {slot.application or 'process'} {slot.active_pid}" if slot.active_pid else "nobody reads it"
        yield _ok("slot", f"{name} is there, {holder}")


def _retention(facts: Mapping[str, Any]) -> Iterator[Finding]:
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


def _publication(
    connection: psycopg.Connection[Any],
    facts: Mapping[str, Any],
    wanted: Wanted,
    relations: Mapping[int, _Relation],
) -> Iterator[Finding]:
    name = wanted.publication
    publication = _optional_row(connection, _PUBLICATION, [name])
    if publication is None:
        yield _absent_publication(connection, facts, wanted, relations)
        return
    quoted = _quote(name)
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


def _absent_publication(
    connection: psycopg.Connection[Any],
    facts: Mapping[str, Any],
    wanted: Wanted,
    relations: Mapping[int, _Relation],
) -> Finding:
    foreign = sorted({relation.owner for relation in relations.values() if not relation.owned})
    if facts["may_create"] and not foreign:
        statement = publication_sql(wanted.publication, wanted.entities, server_version=connection.info.server_version)
        fix = (statement,) if wanted.entities else ()
        message = f"{wanted.publication} is not there yet; `changelog run` or --fix makes it"
        return Finding(name="publication", status="ok", message=message, fix=fix)
    why = (
        f"the tables belong to {', '.join(foreign)}" if foreign else f"it lacks CREATE on database {facts['database']}"
    )
    return _fail(
        "publication",
        f"there is no publication {wanted.publication}, and role {facts['role']} may not create it: {why}",
        "run the SQL that `changelog init --grants` prints, then `changelog check --fix` as the setup role",
    )


def _published_tables(connection: psycopg.Connection[Any], wanted: Wanted) -> Iterator[Finding]:
    name, quoted = wanted.publication, _quote(wanted.publication)
    published = {(row["schema"], row["name"]): row for row in _rows(connection, _PUBLISHED, [name])}
    lists = {(row["schema"], row["name"]) for row in _rows(connection, _COLUMN_LISTS, [name])}
    complete = True
    for entity in wanted.entities:
        table = _quote(*entity.table)
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
    text = ".".join(entity.table)
    oids = dict.fromkeys((table.oid, *(leaf.oid for leaf in table.leaves)))
    found = [
        *_access(entity, [relations[oid] for oid in oids if oid in relations], facts),
        *_identity(entity, table, relations),
        *_columns(entity, table, relations, facts),
    ]
    if table.kind == "p":
        found.append(
            _warn(
                entity.name,
                f"{text} is partitioned: ATTACH, DETACH and DROP of a filled partition stream no rows",
                "after one, publish the table anew",
            )
        )
    if not any(finding.status == "fail" for finding in found):
        yield _ok(entity.name, f"{text} by {', '.join(entity.key)}")
    yield from found


def _access(entity: Entity, relations: Sequence[_Relation], facts: Mapping[str, Any]) -> Iterator[Finding]:
    role = _quote(facts["role"])
    for relation in relations:
        if not relation.logged:
            yield _fail(
                entity.name,
                f"{relation.text} is unlogged, so its changes are nowhere",
                f"ALTER TABLE {relation.quoted} SET LOGGED",
            )
        if not relation.reachable:
            grant = f"GRANT USAGE ON SCHEMA {_quote(relation.schema)} TO {role}"
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


def _identity(entity: Entity, table: Table, relations: Mapping[int, _Relation]) -> Iterator[Finding]:
    """What the log lacks of the row before: without the key nothing can be published, without the rest no original.

    Of a partitioned table, the table's own identity decides what is sent, and the partition's what is there to send.
    """
    problem = identity_problem(table)
    if problem is not None:
        yield _fail(entity.name, problem, f"ALTER TABLE {_quote(*entity.table)} REPLICA IDENTITY DEFAULT")
        return
    needed = {*entity.key, *entity.partition_by}
    partial: list[Leaf | Table] = [leaf for leaf in table.leaves if leaf.identity is not None]
    if table.kind == "p" and table.replica_identity != "f":
        partial.insert(0, table)
    lacking = [leaf for leaf in table.leaves if leaf.identity is not None and not needed <= set(leaf.identity)]
    if lacking:
        missing = ", ".join(sorted(needed - set(lacking[0].identity or ())))
        message = f"the replica identity of {_names(lacking)} lacks {missing}"
        yield _set_full(entity, "fail", message, lacking, relations)
    elif partial and not entity.immutable:
        message = f"the log has only the key of old rows of {_names(partial)}: originals are not known"
        virtual = any(column.generated == "virtual" for column in table.columns)
        if virtual:
            yield _warn(entity.name, message, "REPLICA IDENTITY FULL is not for tables with virtual generated columns")
        else:
            yield _set_full(entity, "warn", message, partial, relations)


def _columns(
    entity: Entity, table: Table, relations: Mapping[int, _Relation], facts: Mapping[str, Any]
) -> Iterator[Finding]:
    silent = [column.name for column in table.columns if not column.published and _is_wanted(entity, column.name)]
    if silent:
        yield _warn(
            entity.name,
            f"the log does not carry generated columns: {', '.join(silent)}",
            "expect them in no message"
            if facts["version"] >= STORED_GENERATED_VERSION
            else f"expect them in no message; PostgreSQL {STORED_GENERATED_VERSION} publishes stored ones",
        )
    if entity.where is None:
        return
    if facts["version"] < ROW_FILTER_VERSION:
        yield _fail(
            entity.name, f"PostgreSQL {facts['version']} has no row filters", f"take where off [entities.{entity.name}]"
        )
    words = set(re.findall(r"\w+", entity.where.lower()))
    used = {column.name for column in table.columns if column.name.lower() in words}
    loose = [leaf for leaf in table.leaves if leaf.identity is not None and not used <= set(leaf.identity)]
    if loose:
        columns = ", ".join(sorted(used - set(loose[0].identity or ())))
        message = (
            f"where uses {columns}, outside the replica identity of {_names(loose)}:"
            " the application's own UPDATE and DELETE would fail"
        )
        yield _set_full(entity, "fail", message, loose, relations)


def _set_full(
    entity: Entity, status: Status, message: str, leaves: Sequence[Leaf | Table], relations: Mapping[int, _Relation]
) -> Finding:
    """A finding whose fix is REPLICA IDENTITY FULL; only the owner may set it, and each partition has its own."""
    fixes = [f"ALTER TABLE {_quote(leaf.schema, leaf.name)} REPLICA IDENTITY FULL" for leaf in leaves]
    owners = sorted({relations[leaf.oid].owner for leaf in leaves if not relations[leaf.oid].owned})
    who = f"as {', '.join(owners)}: " if owners else ""
    more = " and so on" if len(fixes) > 1 else ""
    cost = "costs: each UPDATE and DELETE writes the whole old row to the log"
    return Finding(
        name=entity.name,
        status=status,
        message=message,
        hint=f"{who}{fixes[0]}{more} ({cost})",
        fix=() if owners else tuple(fixes),
    )


def _names(leaves: Sequence[Leaf | Table]) -> str:
    first = f"{leaves[0].schema}.{leaves[0].name}"
    return first if len(leaves) == 1 else f"{first} and {len(leaves) - 1} more partitions"


def _quote(*names: str) -> str:
    return sql.Identifier(*names).as_string()


def _is_wanted(entity: Entity, column: str) -> bool:
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
