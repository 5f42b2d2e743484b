"""Checks the server's version and settings, the role's rights, and the replication slot."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import class_row

from changelog.connectors.findings import Finding, fail, ok, warn
from changelog.connectors.sources.postgres.admin.check.finding import Requirements
from changelog.connectors.sources.postgres.admin.slot import LOST, SlotState
from changelog.connectors.sources.postgres.session.quoting import identifier
from changelog.envelope.errors import OVER_GAP

OLDEST, NEWEST = 14, 18
"""The oldest and the newest major version that the source is tested with."""

ROW_FILTERS = 15
"""The first major version whose publications have row filters."""

_FAILOVER_SLOTS = 17


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """Facts about the server and the current role.

    `slots` is how many replication slots exist, and `senders` is how many WAL senders run. `keep_mb` is the setting
    max_slot_wal_keep_size in MB, -1 for no limit. `synchronized` is the setting synchronized_standby_slots. `forbidden`
    lists the functions that the role needs but may not call; None if there are none.
    """

    version: int
    version_text: str
    wal_level: str
    standby: bool
    max_slots: int
    slots: int
    max_senders: int
    senders: int
    keep_mb: int
    idle_timeout: str
    synchronized: str
    encoding: str
    database: str
    role: str
    replication: bool
    may_create: bool
    forbidden: str | None


_FACTS = """
SELECT current_setting('server_version_num')::int / 10000 AS version, current_setting('server_version') AS version_text,
    current_setting('wal_level') AS wal_level, pg_is_in_recovery() AS standby,
    current_setting('max_replication_slots')::int AS max_slots, (SELECT count(*) FROM pg_replication_slots) AS slots,
    current_setting('max_wal_senders')::int AS max_senders, (SELECT count(*) FROM pg_stat_replication) AS senders,
    (SELECT setting::bigint FROM pg_settings WHERE name = 'max_slot_wal_keep_size') AS keep_mb,
    coalesce(current_setting('idle_replication_slot_timeout', true), '0') AS idle_timeout,
    coalesce(current_setting('synchronized_standby_slots', true), '') AS synchronized,
    current_setting('server_encoding') AS encoding, current_database() AS database, current_user AS role,
    rolreplication OR rolsuper AS replication,
    has_database_privilege(current_database(), 'CREATE') AS may_create,
    (
        SELECT string_agg(oid::regprocedure::text, ', ') FROM pg_proc
        WHERE proname = 'pg_logical_emit_message' AND NOT has_function_privilege(oid, 'EXECUTE')
    ) AS forbidden
FROM pg_roles WHERE rolname = current_user
"""


def read(connection: psycopg.Connection[Any]) -> ServerFacts:
    """Reads the present facts."""
    with connection.cursor(row_factory=class_row(ServerFacts)) as cursor:
        return cursor.execute(_FACTS).fetchall()[0]


def findings(facts: ServerFacts, requirements: Requirements) -> Iterator[Finding]:
    """Yields findings on the server's version and settings, and on the role's rights."""
    if facts.version < OLDEST:
        yield fail("version", f"PostgreSQL {facts.version_text} is too old", f"upgrade to {OLDEST} or later")
    elif facts.version > NEWEST:
        yield warn(
            "version", f"PostgreSQL {facts.version} is newer than the latest version that we test with ({NEWEST})"
        )
    else:
        yield ok("version", f"PostgreSQL {facts.version_text}")
    if facts.wal_level != "logical":
        yield fail(
            "wal_level",
            f"wal_level is {facts.wal_level}",
            "ALTER SYSTEM SET wal_level = 'logical', then restart the server",
        )
    else:
        yield ok("wal_level", "logical")
    if facts.standby:
        yield fail("primary", "the server is a standby", "connect to the primary: the service also writes into its log")
    if facts.encoding == "SQL_ASCII":
        yield fail(
            "encoding",
            "the database's encoding is SQL_ASCII, so its text may be in any encoding",
            "move the data to a database with the encoding UTF8",
        )
    yield from _role(facts)
    if requirements.failover:
        yield from _failover(facts)


def _role(facts: ServerFacts) -> Iterator[Finding]:
    role = identifier(facts.role)
    if facts.replication:
        yield ok("replication", f"role {facts.role} may replicate")
    else:
        yield fail(
            "replication", f"role {facts.role} may not replicate", f"as a superuser: ALTER ROLE {role} REPLICATION"
        )
    if facts.forbidden:
        yield fail(
            "messages",
            f"role {facts.role} may not write messages into the log",
            f"GRANT EXECUTE ON FUNCTION {facts.forbidden} TO {role}",
        )


def _failover(facts: ServerFacts) -> Iterator[Finding]:
    if facts.version < _FAILOVER_SLOTS:
        yield fail(
            "failover",
            f"PostgreSQL {facts.version} has no failover slots",
            "set [source] failover = false; after a promotion, follow docs/how-to/upgrade-postgres.md",
        )
    elif not facts.synchronized:
        yield warn(
            "failover",
            "synchronized_standby_slots is empty: we may publish commits that a promoted standby lacks",
            "list the standbys' physical slots in synchronized_standby_slots",
        )


def slot(facts: ServerFacts, state: SlotState | None, requirements: Requirements) -> Iterator[Finding]:
    """Yields findings on whether the slot exists or can be created, and whether it fits the changelog."""
    name = requirements.slot
    if state is None and requirements.through_lsn is not None:
        yield fail("slot", f"slot {name} no longer exists, although the changelog was begun with it", OVER_GAP)
    elif state is None:
        yield from _room_for_a_slot(facts, name)
    elif state.plugin != "pgoutput" or state.database != facts.database or state.two_phase:
        kind = f"{state.plugin or 'physical'}{', two-phase' if state.two_phase else ''}, of database {state.database}"
        yield fail("slot", f"slot {name} is not ours ({kind})", "set another [source] slot")
    elif state.wal_status == LOST:
        yield fail("slot", f"slot {name} is lost: the server removed log before the service had read it", OVER_GAP)
    elif requirements.through_lsn is not None and state.confirmed_flush > requirements.through_lsn:
        yield fail(
            "slot", f"slot {name} is ahead of the changelog: the changes in between cannot be read again", OVER_GAP
        )
    elif state.wal_status == "unreserved":
        yield warn(
            "slot", f"slot {name} is about to be lost", "let the service catch up, or raise max_slot_wal_keep_size"
        )
    elif state.failover != requirements.failover:
        want = str(requirements.failover).lower()
        yield warn(
            "slot",
            f"slot {name} has failover {str(state.failover).lower()}, but [source] failover is {want}",
            f"while the service is stopped, on a replication connection: ALTER_REPLICATION_SLOT … (FAILOVER {want})",
        )
    else:
        yield ok(
            "slot", f"slot {name} exists, " + (f"read by {state.reader}" if state.reader else "and no session reads it")
        )


def _room_for_a_slot(facts: ServerFacts, name: str) -> Iterator[Finding]:
    if facts.slots >= facts.max_slots:
        yield _all_in_use("slot", facts.max_slots, "max_replication_slots")
    else:
        yield ok("slot", f"slot {name} does not exist yet; `changelog run` creates it")
    if facts.senders >= facts.max_senders:
        yield _all_in_use("senders", facts.max_senders, "max_wal_senders")


def _all_in_use(name: str, limit: int, setting: str) -> Finding:
    return fail(name, f"all {limit} of {setting} are in use", f"raise {setting}, or free one that nobody needs")


def retention(facts: ServerFacts) -> Iterator[Finding]:
    """Yields findings on what happens to the server and the slot if the service is stopped for a long time."""
    if facts.keep_mb == -1:
        yield warn(
            "retention",
            "max_slot_wal_keep_size is unlimited: while the service is stopped, the log fills the server's disk",
            "watch the metric changelog_slot_retained_bytes, or set a limit that is enough for the longest outage",
        )
    if facts.idle_timeout not in ("0", "0s"):
        yield warn(
            "retention",
            f"idle_replication_slot_timeout is {facts.idle_timeout}: a service stopped for longer loses its slot",
            "set it to 0, or to more than the longest outage",
        )
