"""The PostgreSQL source: merges a slot's stream and the rows of table reads into pieces (rows and a checkpoint)."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from changelog.connectors.capture.assembly.assembled import Assembled
from changelog.connectors.capture.checkpointing import Checkpointing, resumed
from changelog.connectors.capture.rows.row_records import Origin
from changelog.connectors.capture.settings_guard import check_settings, shapes_of
from changelog.connectors.capture.table_reads import TableReads
from changelog.connectors.capture.tables.survivors import Read
from changelog.connectors.capture.tables.table_progress import was_complete
from changelog.connectors.capture.throttled_warnings import Stamps
from changelog.connectors.failpoints import Reach, nowhere
from changelog.connectors.findings import refuse
from changelog.connectors.patience import Patience
from changelog.connectors.sources import Activity, Piece, Recover
from changelog.connectors.sources.postgres.admin.catalog import Table, filled_columns, newest_transaction, read_tables
from changelog.connectors.sources.postgres.admin.check import Requirements, findings
from changelog.connectors.sources.postgres.admin.claim import claim_slot
from changelog.connectors.sources.postgres.admin.history import MEMBER as HISTORY
from changelog.connectors.sources.postgres.admin.history import History, last_transaction
from changelog.connectors.sources.postgres.admin.lineage import (
    Lineage,
    check_cluster,
    check_database,
    cluster_of,
    is_elsewhere,
)
from changelog.connectors.sources.postgres.admin.slot import ensure_publication, ensure_slot, read_database, refuse_lost
from changelog.connectors.sources.postgres.decode.assembler import Assembler
from changelog.connectors.sources.postgres.decode.binder import Binder
from changelog.connectors.sources.postgres.decode.xids import Xids
from changelog.connectors.sources.postgres.noticed import Noticed
from changelog.connectors.sources.postgres.session.connection import Connection, connect, translated
from changelog.connectors.sources.postgres.settings import CATALOG_SETTINGS, Settings
from changelog.connectors.sources.postgres.snapshot.table_reads import ReadContext, planned_reads, start
from changelog.connectors.sources.postgres.stream.pump import Stream
from changelog.connectors.sources.postgres.stream.replication import ReplicationConnection, stream_options
from changelog.connectors.sources.postgres.values.definitions import Definitions, read_composites
from changelog.connectors.sources.postgres.values.lsn import parse_through, through_lsn, through_text
from changelog.connectors.sources.postgres.values.text_to_json import SETTINGS
from changelog.connectors.sources.postgres.watch import refuse_unpublished
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.entity import Entity
from changelog.envelope.errors import RETRIED, ChangelogError
from changelog.envelope.position import Position
from changelog.envelope.signal import Signing
from changelog.envelope.versions import Version, Versions

ReadVersions = Callable[[], Iterable[Version]]
"""Returns every stored version of the entities' columns, oldest first. It may be called only after `recover`."""

_FRAMES_MAX = 4096


class PostgresSource:
    """A stream of pieces from a PostgreSQL database; see `changelog.connectors.sources.ChangeSource`.

    It claims the slot, then calls `recover` for the last checkpoint, and streams from that checkpoint. `read_versions`
    returns the stored versions of columns, and `changelog` reads the stored rows; both are None if the sink cannot be
    read. `reach` is called at each of the `FAIL_POINTS` of `capture.table_reads`, so that tests can crash the process
    there.

    Raises ChangelogError: GAP, DIVERGED or SETTINGS if the stream does not continue the changelog exactly where it
    ends; other kinds if the source cannot connect, if a check fails, or if the slot cannot be used.
    """

    def __init__(
        self,
        settings: Settings,
        entities: Sequence[Entity],
        recover: Recover,
        read_versions: ReadVersions | None = None,
        changelog: Read | None = None,
        *,
        reach: Reach = nowhere,
    ) -> None:
        self._settings, self._read_versions, self._changelog, self._reach = settings, read_versions, changelog, reach
        self._patience = Patience(silence_s=settings.answer_s, stopping=settings.stopping)
        self._catalog = connect(settings.dsn, settings=CATALOG_SETTINGS, patience=self._patience)
        self._table_reads: TableReads | None = None
        self._stream: Stream | None = None
        self._hurried = self._closing = False
        self._noticed: Noticed | None = None
        self._unsettled: ChangelogError | None = None  # set by `_piece`; the next `read` raises it
        self._stamps = Stamps()
        try:
            with translated("opening the source"):
                self._open(entities, recover)
        except BaseException:
            self.close()
            raise

    def _open(self, entities: Sequence[Entity], recover: Recover) -> None:
        """Opens the source in three steps, numbered in the code.

        1. It claims the slot. 2. It shuts the previous writer out of the changelog and learns where the changelog ends.
        3. It streams from that position.
        """
        settings = self._settings
        all_tables = read_tables(self._catalog, sized={entity.table for entity in entities}.__contains__)
        tables = {(table.schema, table.name): table for table in all_tables}
        requirements = Requirements(
            slot=settings.slot, publication=settings.publication, failover=settings.failover, entities=entities
        )
        replication = self._connected(requirements, tables)
        try:
            claim_slot(
                self._catalog, replication, settings.slot, patience_s=settings.patience_s, sessions=settings.sessions
            )  # 1
            self._resume(replication, requirements, tables, recover())  # 2
            self._begin(entities, tables)
        except BaseException:
            replication.close()
            raise
        assert self._noticed is not None
        self._noticed.watch.start()
        self._stream = Stream(
            replication,
            slot=settings.slot,
            start_lsn=self._history.start_lsn,
            options=stream_options(settings.publication, replication.server_version),
            answer_s=settings.answer_s,
        )  # 3
        self._pending: list[bytes] = []

    def _connected(self, requirements: Requirements, tables: Mapping[tuple[str, str], Table]) -> ReplicationConnection:
        try:
            return ReplicationConnection.connect(self._settings.dsn, settings=SETTINGS, patience=self._patience)
        except ChangelogError:
            # If a right is missing, a finding says how to grant it. The server's error does not say that.
            refuse(findings(self._catalog, requirements, list(tables.values())))
            raise

    def _resume(
        self,
        replication: ReplicationConnection,
        requirements: Requirements,
        tables: Mapping[tuple[str, str], Table],
        checkpoint: Checkpoint | None,
    ) -> None:
        """Checks that the server's log continues the changelog, which ends at `checkpoint`.

        Prepares `_state` and the other attributes that depend on where the changelog ends.
        """
        settings, entities = self._settings, requirements.entities
        shapes = shapes_of(entities, codec=settings.codec, hmac_key=settings.hmac_key)
        system_identifier, database = read_database(self._catalog)
        if checkpoint is not None and cluster_of(checkpoint) == system_identifier:
            check_database(checkpoint, database)
        check_settings(checkpoint, shapes, accept=settings.accept_settings)
        if checkpoint is not None and cluster_of(checkpoint) == system_identifier:
            read_entities = [entity for entity in entities if was_complete(checkpoint.windows.get(entity.name))]
            refuse_unpublished(self._catalog, settings.publication, read_entities, checkpoint)
        system = replication.identify_system()
        linked = None if settings.accept_cluster and is_elsewhere(checkpoint, system) else checkpoint
        if linked is not None:
            check_cluster(linked, system)  # first, because in another cluster an error about the slot would mislead
            refuse_lost(self._catalog, settings.slot)
        refuse(findings(self._catalog, requirements, list(tables.values())))
        ensure_publication(self._catalog, settings.publication, entities)
        slot = ensure_slot(
            self._catalog,
            replication,
            settings.slot,
            linked,
            failover=settings.failover,
            answer_s=settings.answer_s,
            alive=settings.alive,
        )
        if linked is None:
            self._lineage = Lineage.unlinked(checkpoint, system)
        else:
            history = replication.timeline_history(system.timeline)
            self._lineage = Lineage.trace(linked, system, history, slot.confirmed_flush)
        self._noticed = Noticed.begin(
            self._catalog, settings.dsn, requirements, linked, shapes, answer_s=settings.answer_s
        )
        self._history = History.of(linked, settings.publication, slot.confirmed_flush)
        reached = self._lineage.reached(self._history.durable)
        new_checkpoint = resumed(
            checkpoint,
            entities,
            through=through_text(self._history.durable),
            epoch=reached.epoch,
            settings=shapes,
            source={
                **({} if linked is None else linked.source),
                "system_identifier": system.system_identifier,
                "timeline": reached.timeline,
                "database": database,
                "publication": self._noticed.before.to_json(),
            },
            joined=linked is not None,
            held_entities=self._held,
        )
        self._state = Checkpointing(
            new_checkpoint,
            name=settings.name,
            signing=partial(_signing, settings.signals_secret, system.system_identifier),
            asking={entity.name for entity in entities if entity.evolution.on_restated == "ask"},
            stretch=self._stretch,
            reach=self._reach,
        )
        self._opening_checkpoint: Checkpoint | None = None if new_checkpoint == checkpoint else new_checkpoint

    def _held(self) -> set[str]:
        """Returns the names of the entities that have rows in the changelog; none if the changelog cannot be read.

        The changelog stores a version of an entity's columns before the entity's first row. So the versions name all
        entities that have rows.
        """
        return set() if self._read_versions is None else {version.entity for version in self._read_versions()}

    def _stretch(self, through: str) -> tuple[int, Mapping[str, Any]]:
        """Returns the epoch of the log position `through`, and the checkpoint's entry with the position's timeline."""
        reached = self._lineage.reached(parse_through(through))
        return reached.epoch, {"timeline": reached.timeline}

    def _begin(self, entities: Sequence[Entity], tables: Mapping[tuple[str, str], Table]) -> None:
        """Creates the assembler, and starts to read the tables that are not yet complete in the changelog."""
        settings, checkpoint = self._settings, self._state.checkpoint
        self._types = self._definitions([tables[entity.table] for entity in entities if entity.table in tables])
        database = self._catalog.info.dbname
        origin = Origin(connector="postgres", name=settings.name, database=database, decisions=checkpoint.decisions)
        horizon = newest_transaction(self._catalog)
        context = ReadContext(
            origin=origin,
            connect=self._connect_reading,
            hmac_key=settings.hmac_key,
            workers=settings.workers,
            chunk_pages=settings.chunk_pages,
            horizon=horizon,
            tables=tables,
            changelog=self._changelog,
            reach=self._reach,
        )
        self._table_reads = planned_reads(self._catalog, context, entities, checkpoint.windows, self._state.repairs)
        start(self._table_reads, context, entities)
        self._assembler = Assembler(
            origin=origin,
            binder=Binder(resolve=self._types.resolve, hmac_key=settings.hmac_key),
            entities={entity.table: entity for entity in entities},
            partitioned={name for name, table in tables.items() if table.kind == "p"},
            epoch=self._lineage.epoch,
            xids=Xids(horizon),
            published=self._history.covered(checkpoint, self._lineage.epoch),
            partial=checkpoint.partial,
            listener=self._table_reads.windows if self._table_reads.running else None,
            versions=self._versions(),
            definitions=self._types,
            rows_max=_FRAMES_MAX,
        )

    def _connect_reading(self) -> Connection:
        """Opens a connection for reading tables. Its waits end at once when the source is closed."""
        patience = Patience(silence_s=self._settings.read_s, stopping=lambda: self._closing, stopping_s=0.0)
        return connect(self._settings.dsn, settings=SETTINGS, patience=patience)

    def _definitions(self, tables: Sequence[Table]) -> Definitions:
        read = partial(read_composites, self._catalog, self._settings.slot)
        definitions = Definitions(read, self._query, self._state.checkpoint.source.get("types"))
        definitions.track(column.type_oid for table in tables for column in table.columns)
        return definitions

    def _versions(self) -> Versions | None:
        if self._read_versions is None:
            return None
        checkpoint = self._state.checkpoint
        accepted = {entity: Position.parse(text) for entity, text in checkpoint.accepted.items()}
        return Versions(
            self._read_versions(),
            accepted=accepted,
            filled=partial(filled_columns, self._catalog),
            cluster=cluster_of(checkpoint),
        )

    def _query(self, query: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        with translated("asking the catalogue"):
            return self._catalog.execute(query.encode(), values).fetchall()

    def read(self, timeout_s: float, gather_s: float = 0.0) -> Piece | None:
        """See `ChangeSource.read`. If the opening has changed the checkpoint, the first piece only delivers the new
        checkpoint; it has no rows.
        """
        if self._opening_checkpoint is not None:
            checkpoint, self._opening_checkpoint = self._opening_checkpoint, None
            return Piece(rows=(), checkpoint=checkpoint, nbytes=0, urgent=True)
        assert self._noticed is not None
        if self._noticed.withholds:
            return self._noticed.release(timeout_s)
        if self._unsettled is not None:
            raise self._unsettled
        if self._assembler.stop is not None:
            raise self._assembler.stop
        assert self._table_reads is not None
        self._table_reads.check(self._state)
        self._types.refresh_if_due(time.monotonic())
        assert self._stream is not None
        if self._hurried:
            self._stream.ask()
        if not self._pending:
            self._pending = self._stream.take(timeout_s, 0.0 if self._hurried else gather_s, _FRAMES_MAX)
        if not self._pending:
            return self._idle()
        assembled = self._assembler.feed(self._next_frames())
        if self._history.heard(assembled.first):
            self._stream.confirm(self._history.durable)
        self._stamps.heard(assembled.invalid_stamps, assembled.unstamped)
        self._noticed.heard(assembled.statements, assembled.rows)
        return self._noticed.withhold(self._piece(assembled), assembled.described)

    def _next_frames(self) -> list[bytes]:
        frames, self._pending = self._pending[:_FRAMES_MAX], self._pending[_FRAMES_MAX:]
        return frames

    def _idle(self) -> Piece | None:
        """Called when the stream has delivered no frames. Returns a piece without rows if the checkpoint has changed.

        If the stream is not inside a transaction, everything before `wal_end`, the end of the server's log, has been
        read. Then the checkpoint moves up to `wal_end`.
        """
        assert self._stream is not None
        before = self._state.checkpoint
        if self._assembler.between:
            self._history.reached(self._stream.wal_end)
        self._progress()
        if self._assembler.between:
            self._state.reach(through_text(self._stream.wal_end))
        self._settle()
        unchanged = self._state.checkpoint == before
        return None if unchanged else self._as_piece(before, (), urgent=self._stream.reply_requested)

    def _piece(self, assembled: Assembled) -> Piece | None:
        """Returns the assembled rows with the checkpoint after them; None if the checkpoint has not changed.

        If an unlogged change must stop the service, `read` still returns this piece. The next `read` raises the error.
        """
        before = self._state.checkpoint
        self._state.deliver(assembled)
        if assembled.last is not None:
            self._state.remember(HISTORY, last_transaction(assembled.last, self._settings.publication))
        self._progress()
        self._state.hear(assembled)
        try:
            self._settle()
        except ChangelogError as error:
            if error.kind in RETRIED:
                raise
            self._unsettled = error
        if self._state.checkpoint == before:
            return None
        return self._as_piece(before, assembled.rows, urgent=assembled.fenced)

    def _as_piece(self, before: Checkpoint, rows: Sequence[pa.RecordBatch], *, urgent: bool) -> Piece:
        checkpoint = self._state.checkpoint
        return Piece(
            rows=rows,
            checkpoint=checkpoint,
            nbytes=sum(batch.nbytes for batch in rows),
            log_bytes=through_lsn(checkpoint) - through_lsn(before),
            urgent=urgent,
        )

    def _progress(self) -> None:
        """Stores in the checkpoint how far tables were read, and when alterations of composite types were committed."""
        assert self._table_reads is not None
        self._table_reads.record(self._state)
        self._state.remember("types", self._types.ends)

    def _settle(self) -> None:
        """Handles the unlogged changes that a reading of the catalogue has shown, once the stream has passed the log
        position of that reading.

        An unlogged change is one that the database's log lacks; see `Noticed`.
        """
        assert self._noticed is not None
        self._state.settle(self._noticed.settle)

    def activity(self) -> Activity:
        """See `ChangeSource.activity`."""
        assert self._table_reads is not None
        windows = self._table_reads.windows
        return Activity(
            windows_open=windows.open,
            waiting=windows.waiting,
            invalid_stamps=self._stamps.take(),
            ignored_signals=self._state.signals.take(),
        )

    def end(self) -> str:
        """See `ChangeSource.end`."""
        with translated("asking for the end of the log"):
            row = self._catalog.execute("SELECT (pg_current_wal_flush_lsn() - '0/0')::int8").fetchone()
        assert row is not None
        self._hurried = True
        return through_text(int(row[0]))

    def confirm(self, checkpoint: Checkpoint) -> None:
        """See `ChangeSource.confirm`."""
        assert self._stream is not None
        self._state.confirm(checkpoint)
        self._history.durable = through_lsn(checkpoint)
        self._stream.confirm(self._history.confirmable)

    def close(self) -> None:
        """See `ChangeSource.close`."""
        self._closing = True
        if self._noticed is not None:
            self._noticed.watch.close()
        if self._table_reads is not None:
            self._table_reads.close()
        if self._stream is not None:
            self._stream.close()
        self._catalog.close()


def _signing(secret: bytes | None, cluster: str, transaction: int) -> Signing | None:
    return None if secret is None else Signing(secret=secret, cluster=cluster, transaction=transaction)
