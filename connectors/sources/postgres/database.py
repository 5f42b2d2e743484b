"""Implements `changelog.connectors.sources.Database` for PostgreSQL, with a replication slot and a publication."""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import replace

from changelog.connectors.failpoints import Reach, nowhere
from changelog.connectors.findings import Finding
from changelog.connectors.patience import NO_LIMIT, Patience, PatientConnection
from changelog.connectors.sources import (
    Changelog,
    ChangelogEnd,
    CrossedGap,
    Hold,
    Recover,
    Remnant,
    Retained,
    SourceStatus,
    TableName,
    no_table,
)
from changelog.connectors.sources.postgres.admin import remnants, stamps
from changelog.connectors.sources.postgres.admin.catalog import Table, read_tables
from changelog.connectors.sources.postgres.admin.check import Requirements, findings, senders, unlogged
from changelog.connectors.sources.postgres.admin.lineage import cluster_of, timeline_of
from changelog.connectors.sources.postgres.admin.signals import send
from changelog.connectors.sources.postgres.admin.slot import LOST, SlotState, slot_state
from changelog.connectors.sources.postgres.crossing import crossing
from changelog.connectors.sources.postgres.fence import PostgresFence, hold_fence
from changelog.connectors.sources.postgres.session import waits
from changelog.connectors.sources.postgres.session.connection import connect, translated
from changelog.connectors.sources.postgres.settings import CATALOG_SETTINGS, Settings
from changelog.connectors.sources.postgres.snapshot.table_reads import bind_table
from changelog.connectors.sources.postgres.source import PostgresSource
from changelog.connectors.sources.postgres.stream.replication import ReplicationConnection
from changelog.connectors.sources.postgres.values.lsn import lsn_text, parse_through, through_lsn, through_text
from changelog.connectors.sources.postgres.values.text_to_json import SETTINGS
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.signal import Signal
from changelog.schemas.types import Struct

__all__ = ["PostgresDatabase", "Settings"]

_SLOT_TIMEOUT_S = 3.0


class PostgresDatabase:
    """The PostgreSQL database that `settings` describes; see `changelog.connectors.sources.Database`.

    `settings.sessions` collects the process ids of all replication sessions that our sources open, so that we can tell
    our own sessions from foreign ones.
    """

    reads_tables = True

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def tables(self, *, sized: Callable[[TableName], bool] = no_table) -> Sequence[Table]:
        """See `Database.tables`."""
        with self._catalog() as connection:
            return read_tables(connection, sized=sized)

    def shapes(self, entities: Sequence[Entity]) -> Sequence[Struct]:
        """See `Database.shapes`."""
        with self._catalog() as connection:
            tables = {(table.schema, table.name): table for table in read_tables(connection)}
            for entity in entities:
                if entity.table not in tables:
                    raise ChangelogError(
                        Kind.PRECONDITION, f"the table {'.'.join(entity.table)} of the entity {entity.name} is gone"
                    )
            return [
                bind_table(connection, entity, tables[entity.table], self._settings.hmac_key).shape
                for entity in entities
            ]

    def open(
        self,
        entities: Sequence[Entity],
        recover: Recover,
        changelog: Changelog,
        *,
        accept_settings: bool = False,
        accept_cluster: bool = False,
        reach: Reach = nowhere,
    ) -> PostgresSource:
        """See `Database.open`."""
        settings = replace(self._settings, accept_settings=accept_settings, accept_cluster=accept_cluster)
        return PostgresSource(settings, entities, recover, changelog.versions, changelog.rows, reach=reach)

    def status(self, through: str, _checkpoint: Checkpoint | None = None) -> SourceStatus:
        """See `Database.status`."""
        with connect(self._settings.dsn, patience=self._patience()) as connection, translated("reading the status"):
            slot = slot_state(connection, self._settings.slot)
            waits_for = self._waits_for(connection, slot)
            [(end,)] = connection.execute("SELECT (pg_current_wal_lsn() - '0/0')::int8").fetchall()
        return SourceStatus(
            end=through_text(end),
            lag_bytes=max(end - parse_through(through or "0"), 0),
            waits_for=waits_for,
            hold=_hold(slot),
            retained=_retained(slot),
        )

    def retained(self) -> Retained | None:
        """See `Database.retained`."""
        return _retained(self._slot_if_answered())

    def refuse_if_read(self, *, must_answer: bool = False) -> None:
        """See `Database.refuse_if_read`."""
        slot = self._slot() if must_answer else self._slot_if_answered()
        if slot is not None:
            slot.refuse_if_read()

    def check(self, entities: Sequence[Entity], checkpoint: Checkpoint | None) -> Sequence[Finding]:
        """See `Database.check`."""
        settings = self._settings
        required = Requirements(
            slot=settings.slot,
            publication=settings.publication,
            failover=settings.failover,
            keeps_state=settings.keeps_state,
            entities=entities,
            through_lsn=None if checkpoint is None else through_lsn(checkpoint),
        )
        names = {entity.table for entity in entities}
        with self._connected() as connection:
            tables = read_tables(connection)
            published = [table for table in tables if (table.schema, table.name) in names]
            return [
                *findings(connection, required, tables),
                stamps.finding(stamps.read(connection, published)),
                *unlogged.findings(connection, required, checkpoint),
                senders.finding(connection, signed=settings.signals_secret is not None),
            ]

    def fix(self, statements: Iterable[str]) -> None:
        """See `Database.fix`."""
        with connect(self._settings.dsn, settings=SETTINGS, patience=NO_LIMIT) as connection:
            for statement in statements:
                with translated(statement):
                    connection.execute(statement.encode())

    def clock_ahead_s(self) -> float:
        """See `Database.clock_ahead_s`."""
        with self._connected() as connection, translated("asking for the database's time"):
            asked_at = time.time()
            [(now,)] = connection.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchall()
            return float(now - (asked_at + time.time()) / 2)

    def hold(self) -> Hold | None:
        """See `Database.hold`."""
        return _hold(self._slot())

    def send_signals(self, signals: Iterable[Signal]) -> str:
        """See `Database.send_signals`."""
        end = ""
        with connect(self._settings.dsn, patience=self._patience()) as connection:
            for signal in signals:
                end = through_text(send(connection, signal, self._settings.signals_secret))
        return end

    def spell(self, through: str) -> str:
        """See `Database.spell`."""
        return lsn_text(parse_through(through))

    def log_facts(self, checkpoint: Checkpoint | None) -> Sequence[tuple[str, str]]:
        """See `Database.log_facts`."""
        with closing(ReplicationConnection.connect(self._settings.dsn, settings=SETTINGS)) as replication:
            system = replication.identify_system()
        slot = self._slot()
        slot_text = f"at {lsn_text(slot.confirmed_flush)}, its log is {slot.wal_status}" if slot else "there is none"
        facts = [
            ("database", f"ends at {_spelled(system.wal_end, system.timeline, system.system_identifier)}"),
            ("slot", f"{self._settings.slot}: {slot_text}"),
        ]
        if checkpoint is None:
            return facts
        return [
            ("", f"at {_spelled(through_lsn(checkpoint), timeline_of(checkpoint), cluster_of(checkpoint))}"),
            *facts,
        ]

    def cross_gap(
        self,
        entities: Sequence[Entity],
        checkpoint: Checkpoint | None,
        take_over: Callable[[], ChangelogEnd],
        *,
        reason: str,
        keep_hold: bool,
        accept_settings: bool,
        reach: Reach = nowhere,
    ) -> AbstractContextManager[CrossedGap]:
        """See `Database.cross_gap`."""
        settings = replace(self._settings, accept_settings=accept_settings)
        return crossing(settings, entities, checkpoint, take_over, reason=reason, keep_slot=keep_hold, reach=reach)

    def fence(self, entities: Sequence[Entity], *, deadline: float) -> AbstractContextManager[PostgresFence]:
        """See `Database.fence`."""
        return hold_fence(self._settings.dsn, self._settings.hmac_key, entities, deadline=deadline)

    def remnants(self) -> Sequence[Remnant]:
        """See `Database.remnants`."""
        with connect(self._settings.dsn, patience=self._patience()) as connection:
            return remnants.read(connection, self._settings.slot, self._settings.publication)

    def drop(self, kind: str) -> None:
        """See `Database.drop`."""
        name = self._settings.slot if kind == remnants.SLOT else self._settings.publication
        with connect(self._settings.dsn, patience=self._patience()) as connection:
            remnants.drop(connection, kind, name)

    def _slot(self) -> SlotState | None:
        with connect(self._settings.dsn, patience=self._patience()) as connection:
            return slot_state(connection, self._settings.slot)

    def _slot_if_answered(self) -> SlotState | None:
        """Returns the present state of the slot; None if there is no slot, or if the server does not answer soon."""
        deadline = time.monotonic() + _SLOT_TIMEOUT_S
        patience = Patience(stopping=lambda: time.monotonic() > deadline, stopping_s=0.0)
        try:
            with connect(self._settings.dsn, patience=patience) as connection:
                return slot_state(connection, self._settings.slot)
        except ChangelogError:
            return None

    def _waits_for(self, connection: PatientConnection, slot: SlotState | None) -> str | None:
        """Returns why our session, which reads the slot, receives nothing. Returns None if no reason is known, or if
        the reader is not one of our sessions.
        """
        pid = None if slot is None else slot.active_pid
        return waits.reason(connection, pid) if pid is not None and pid in self._settings.sessions else None

    def _catalog(self) -> PatientConnection:
        """Opens a session for catalogue queries. A query that has to wait for a lock fails soon."""
        return connect(self._settings.dsn, settings=CATALOG_SETTINGS, patience=self._patience())

    def _connected(self) -> PatientConnection:
        """Opens a session with our own settings, which override the defaults of the role and of the database."""
        return connect(self._settings.dsn, settings=SETTINGS, patience=self._patience())

    def _patience(self) -> Patience:
        return Patience(silence_s=self._settings.answer_s, stopping=self._settings.stopping)


def _retained(slot: SlotState | None) -> Retained | None:
    if slot is None or slot.retained_bytes is None:
        return None
    return Retained(
        nbytes=slot.retained_bytes,
        holder={"slot": slot.name},
        note="the slot keeps log until the service runs again, or until `changelog drop --slot`",
    )


def _hold(slot: SlotState | None) -> Hold | None:
    if slot is None:
        return None
    return Hold(
        name=slot.name,
        reader=slot.active_pid,
        condition=slot.wal_status,
        is_lost=slot.wal_status == LOST,
        confirmed=lsn_text(slot.confirmed_flush),
        nbytes=slot.retained_bytes,
        xids=slot.xids,
    )


def _spelled(lsn: int, timeline: int, cluster: str) -> str:
    return f"{lsn_text(lsn)} of timeline {timeline}, cluster {cluster}"
