"""Creates the service's publication and replication slot, reads the slot's state, and refuses unsuitable slots."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from changelog.connectors.patience import ANSWER_S
from changelog.connectors.sources.postgres.session.connection import translated
from changelog.connectors.sources.postgres.session.quoting import identifier
from changelog.connectors.sources.postgres.session.sessions import COLUMNS, ServerSession
from changelog.connectors.sources.postgres.session.waits import SlotCreationWait
from changelog.connectors.sources.postgres.stream.replication import ReplicationConnection
from changelog.connectors.sources.postgres.values.lsn import parse_lsn
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.entity import Entity
from changelog.envelope.errors import OVER_GAP, ChangelogError, Kind

OPERATIONS = "insert, update, delete, truncate"

LOST = "lost"
"""The `wal_status` of a slot that the server has invalidated, or whose log the server has removed."""

_ASK_AGAIN_S = 0.1
_GENERATED_COLUMNS = 180000


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotState:
    """The present state of a replication slot.

    `reader` is the session that reads it. `wal_status` is reserved, extended, unreserved or lost, and `retained_bytes`
    is how much log the slot keeps on the server; both are None while unknown. `xids` says how many transaction ids the
    server has assigned since the slot's `catalog_xmin`. VACUUM cannot remove the catalogue rows that any of these
    transactions deleted.
    """

    name: str
    plugin: str | None
    database: str | None
    confirmed_flush: int
    reader: ServerSession | None
    wal_status: str | None
    retained_bytes: int | None
    failover: bool
    two_phase: bool
    xids: int | None = None

    @property
    def active_pid(self) -> int | None:
        """The server process that reads the slot."""
        return None if self.reader is None else self.reader.pid

    def refuse_if_read(self) -> None:
        """Raises ChangelogError (IN_USE), naming the session, if a session reads the slot."""
        if self.reader is not None:
            raise self.reader.in_use(self.name)


def read_database(conn: psycopg.Connection[Any]) -> tuple[str, dict[str, Any]]:
    """Returns the cluster's system identifier, and a mapping with the `name` and `oid` of the connection's database."""
    with translated("reading the database's identity"):
        row = conn.execute(_DATABASE).fetchone()
    assert row is not None
    identifier, name, oid = row
    return identifier, {"name": name, "oid": oid}


def publication_sql(name: str, entities: Sequence[Entity], *, server_version: int) -> str:
    """Returns the statement that creates the publication; `server_version` is a number such as 180006, which is 18.6.

    The publication has no column lists. If a list lacked a column of the replica identity, the application's own UPDATE
    would fail.
    """
    tables = ", ".join(published_as(entity) for entity in entities)
    options = [f"publish = '{OPERATIONS}'", "publish_via_partition_root = true"]
    if server_version >= _GENERATED_COLUMNS:
        options.append("publish_generated_columns = stored")
    return f"CREATE PUBLICATION {identifier(name)} FOR TABLE {tables} WITH ({', '.join(options)})"


def published_as(entity: Entity) -> str:
    """Returns the SQL clause that publishes the entity's table, with its row filter.

    Because of ONLY, tables that inherit from this table are not published under its name.
    """
    condition = f" WHERE ({entity.where})" if entity.where else ""
    return f"ONLY {identifier(*entity.table)}{condition}"


def ensure_publication(conn: psycopg.Connection[Any], name: str, entities: Sequence[Entity]) -> None:
    """Creates the publication if there is none. An existing one is not changed; `check` reports what it lacks.

    Raises ChangelogError: ACCESS if the role may not create it, PRECONDITION if the server refuses.
    """
    with translated(f"setting up publication {name}"):
        if conn.execute("SELECT FROM pg_publication WHERE pubname = %s", [name]).fetchone() is None:
            conn.execute(publication_sql(name, entities, server_version=conn.info.server_version).encode())


def slot_state(conn: psycopg.Connection[Any], name: str) -> SlotState | None:
    """Returns the present state of the slot `name`; None if it does not exist."""
    with translated(f"reading slot {name}"):
        row = conn.execute(_SLOT, [name]).fetchone()
    if row is None:
        return None
    plugin, database, confirmed_flush, wal_status, retained_bytes, failover, two_phase, xids, pid, *session = row
    return SlotState(
        name=name,
        plugin=plugin,
        database=database,
        confirmed_flush=parse_lsn(confirmed_flush or "0/0"),
        reader=None if pid is None else ServerSession(pid, *session),
        wal_status=wal_status,
        retained_bytes=retained_bytes,
        failover=failover,
        two_phase=two_phase,
        xids=xids,
    )


def ensure_slot(
    conn: psycopg.Connection[Any],
    replication: ReplicationConnection,
    name: str,
    checkpoint: Checkpoint | None,
    *,
    failover: bool,
    answer_s: float = ANSWER_S,
    alive: Callable[[], None] = lambda: None,
) -> SlotState:
    """Returns the state of the slot `name`. Creates the slot if it is missing, but only if `checkpoint` is None: a new
    slot cannot continue a changelog.

    To create a slot, the server waits until all running transactions have ended. `alive` is called now and then during
    that wait. The server counts as hung if it has neither answered nor waited for a transaction for `answer_s` seconds.

    Raises ChangelogError. GAP: there is a checkpoint, but the slot is missing or has lost its log. IN_USE: another
    session reads the slot. PRECONDITION: the slot is not one of ours, or the server cannot create one.
    """
    if checkpoint is not None:
        refuse_lost(conn, name)
    state = slot_state(conn, name)
    if state is None:
        pid = replication.backend_pid()
        try:
            excuse = SlotCreationWait(conn, pid, answer_s=answer_s, alive=alive)
            replication.create_slot(name, failover=failover, excused=excuse)
        except ChangelogError:
            # Otherwise the session would continue to wait, and then create a slot that nobody knows of.
            with contextlib.suppress(psycopg.Error):
                conn.execute("SELECT pg_terminate_backend(%s)", [pid])
            raise
        state = slot_state(conn, name)
    if state is None:
        raise ChangelogError(Kind.CONNECTION, f"replication slot {name} was dropped right after it was created")
    refuse_foreign(state, conn.info.dbname)
    state.refuse_if_read()
    return state


def refuse_lost(conn: psycopg.Connection[Any], name: str) -> None:
    """Raises ChangelogError (GAP) if the slot of an existing changelog is missing or has lost its log."""
    state = slot_state(conn, name)
    if state is None:
        raise ChangelogError(
            Kind.GAP,
            f"replication slot {name} no longer exists, although the changelog was begun with it",
            hint=f"a new slot cannot reach back to what was published; {OVER_GAP}",
        )
    if state.wal_status == LOST:
        raise ChangelogError(
            Kind.GAP,
            f"replication slot {name} has lost its log (the server removed or invalidated it)",
            hint=f"raise max_slot_wal_keep_size to prevent this in future; {OVER_GAP}",
        )


def refuse_foreign(state: SlotState, database: str) -> None:
    """Raises ChangelogError (PRECONDITION) if the slot is not for pgoutput, is two-phase, or is of another database."""
    if state.plugin != "pgoutput" or state.database != database or state.two_phase:
        kind = f"{state.plugin or 'physical'}{', two-phase' if state.two_phase else ''}, of database {state.database}"
        elsewhere = state.plugin == "pgoutput" and state.database != database
        connecting = f"connect to database {state.database} ([source] dsn), or " if elsewhere else ""
        raise ChangelogError(
            Kind.PRECONDITION, f"slot {state.name} is not ours ({kind})", hint=f"{connecting}set another [source] slot"
        )


_DATABASE = """
SELECT system_identifier::text, datname::text, oid::int8 FROM pg_control_system(), pg_database
WHERE datname = current_database()
"""

_SLOT = f"""
SELECT s.plugin::text, s.database::text, s.confirmed_flush_lsn::text, s.wal_status,
    pg_wal_lsn_diff(
        CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END, s.restart_lsn
    )::int8,
    coalesce((to_jsonb(s) ->> 'failover')::boolean, false), coalesce((to_jsonb(s) ->> 'two_phase')::boolean, false),
    age(s.catalog_xmin), s.active_pid, {COLUMNS}
FROM pg_replication_slots AS s LEFT JOIN pg_stat_activity AS a ON a.pid = s.active_pid
WHERE s.slot_name = %s
"""
