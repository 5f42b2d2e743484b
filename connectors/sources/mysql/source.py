"""The MySQL source: turns the binary log and the rows of tables into rows of the changelog, and makes checkpoints."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import structlog

from changelog.connectors.capture.assembly.assembled import Assembled
from changelog.connectors.capture.checkpointing import Checkpointing, resumed
from changelog.connectors.capture.rows.row_records import Origin
from changelog.connectors.capture.settings_guard import check_settings, shapes_of
from changelog.connectors.capture.table_reads import TableReads
from changelog.connectors.capture.tables.repairs import Repairs, read_again
from changelog.connectors.capture.tables.survivors import Read
from changelog.connectors.capture.throttled_warnings import Stamps
from changelog.connectors.failpoints import Reach, nowhere
from changelog.connectors.findings import refuse
from changelog.connectors.sources import Activity, Piece, Recover
from changelog.connectors.sources.mysql.admin.catalog import Table, read_tables
from changelog.connectors.sources.mysql.admin.check import findings
from changelog.connectors.sources.mysql.admin.claim import claim
from changelog.connectors.sources.mysql.admin.columns import CatalogDeclarations, ColumnCatalog, filled_columns
from changelog.connectors.sources.mysql.admin.lineage import LogStart
from changelog.connectors.sources.mysql.admin.server_log import end_coordinate, lower_case_table_names
from changelog.connectors.sources.mysql.decode.assembler import Assembler
from changelog.connectors.sources.mysql.decode.events.event_block import EMPTY, EventBlock
from changelog.connectors.sources.mysql.decode.log_state import LogState
from changelog.connectors.sources.mysql.decode.rows.binder import Binder
from changelog.connectors.sources.mysql.decode.rows.tables import Tables
from changelog.connectors.sources.mysql.session.connection import Connection
from changelog.connectors.sources.mysql.session.dump import start_dump
from changelog.connectors.sources.mysql.session.flavour import Flavour
from changelog.connectors.sources.mysql.settings import Settings
from changelog.connectors.sources.mysql.snapshot.chunk_reader import ReadChunks
from changelog.connectors.sources.mysql.snapshot.table_reads import ReadContext, planned_reads, start
from changelog.connectors.sources.mysql.snapshot.visibility import Deliveries
from changelog.connectors.sources.mysql.stream.pump import Stream
from changelog.connectors.sources.mysql.values.positions.coordinates import bytes_read
from changelog.connectors.sources.mysql.values.positions.gtid_encoding import encode_gtids
from changelog.connectors.sources.mysql.values.positions.gtid_set import GtidSet
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.entity import Entity
from changelog.envelope.position import Position, commit_text
from changelog.envelope.signal import Signing
from changelog.envelope.versions import Version, Versions

ReadVersions = Callable[[], Iterable[Version]]
"""Returns the versions of columns that the changelog holds, oldest first. May be called only after `recover` has
returned.
"""

_GATHERED_EVENTS = 4096

_LASTING_MEMBERS = ("declared", "dropped")
"""The members of a checkpoint's `source` that a source keeps when it opens; see `CatalogDeclarations` and `LogState`.
"""

_log = structlog.get_logger("mysql")


class MysqlSource:
    """One stream of pieces from a MySQL or MariaDB server; see `changelog.connectors.sources.ChangeSource`.

    It takes the lock of the changelog, then calls `recover` for the last checkpoint, and streams from there.
    `read_versions` returns the stored versions of columns and `changelog` the stored rows; they are None if the sink
    cannot be read. `reach` is called at each of `capture.table_reads.FAIL_POINTS`, so that tests can crash the process
    there.

    Raises ChangelogError: GAP, DIVERGED or SETTINGS if the changelog cannot be continued correctly; also the errors of
    connecting and of the checks.
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
        self._entities = entities
        self._table_reads: TableReads | None = None
        self._stream: Stream | None = None
        self._hurried = self._closing = False
        self._stamps = Stamps()
        self._control = settings.connect()
        try:
            self._open(recover)
        except BaseException:
            self.close()
            raise

    def _open(self, recover: Recover) -> None:
        """Opens the source in three steps, numbered in the code.

        1. It takes the lock. 2. It takes the changelog over and learns where the changelog ends. 3. It streams from
        there.
        """
        settings = self._settings
        dump = settings.connect()
        try:
            claim(dump.query, settings.name, patience_s=settings.patience_s, own=settings.connections)  # 1
            settings.connections.add(dump.id)
            self._resume(recover())  # 2
            self._begin()
            self._start(dump)
        except BaseException:
            dump.close()
            raise
        self._stream = Stream(dump, name=settings.name)  # 3

    def _resume(self, checkpoint: Checkpoint | None) -> None:
        """Makes sure that the log continues the changelog that ends at `checkpoint`, and creates `_state`.

        `_state` begins with this checkpoint, brought up to date (see `resumed`).
        """
        settings, entities, query = self._settings, self._entities, self._control.query
        shapes = shapes_of(entities, codec=settings.codec, hmac_key=settings.hmac_key)
        check_settings(checkpoint, shapes, accept=settings.accept_settings)
        tables = read_tables(query)
        self._tables: Mapping[tuple[str, str], Table] = {(table.schema, table.name): table for table in tables}
        refuse(findings(query, entities, tables, keeps_state=settings.keeps_state))
        lineage = LogStart.trace(query, self._control.version, checkpoint, accept=settings.accept_server)
        members = (
            {}
            if checkpoint is None
            else {name: checkpoint.source[name] for name in _LASTING_MEMBERS if name in checkpoint.source}
        )
        new_checkpoint = resumed(
            checkpoint,
            entities,
            through=lineage.through_text,
            epoch=lineage.epoch,
            settings=shapes,
            source={
                **lineage.source,
                "database": settings.address.database,
                **members,
            },
            joined=lineage.joined,
            held_entities=self._held,
        )
        self._lineage = lineage
        self._state = Checkpointing(
            new_checkpoint,
            name=settings.name,
            signing=self._signing,
            asking={entity.name for entity in entities if entity.evolution.on_restated == "ask"},
            stretch=lambda _: (lineage.epoch, {}),
            reach=self._reach,
        )
        self._opening_checkpoint: Checkpoint | None = None if new_checkpoint == checkpoint else new_checkpoint

    def _held(self) -> set[str]:
        """Returns the entities that have rows in the changelog; the stored versions of columns name them."""
        return set() if self._read_versions is None else {version.entity for version in self._read_versions()}

    def _begin(self) -> None:
        """Creates the assembler, and starts to read the tables that are not yet complete in the changelog."""
        settings, checkpoint, lineage = self._settings, self._state.checkpoint, self._lineage
        catalog = ColumnCatalog.of(self._control.query, self._control.flavour)
        self._log_state = LogState(
            epoch=lineage.epoch,
            received=lineage.received,
            resume=lineage.resume,
            database=settings.address.database,
            on_delivery=lambda commit, gtid, one_phase: (
                deliveries.add(commit, gtid, one_phase) if self._records() else None
            ),
            records=self._records,
            half=lineage.half,
            dropped=checkpoint.source.get("dropped", ()),
            lower_case_table_names=lower_case_table_names(self._control.query),
        )
        deliveries = Deliveries(
            lineage.received,
            lineage.through or None,
            self._log_state.undecided_before,
            lambda: self._log_state.passed,
        )
        binder = Binder(hmac_key=settings.hmac_key)
        origin = Origin(
            connector=self._control.flavour.lower(),
            name=settings.name,
            database=settings.address.database,
            decisions=checkpoint.decisions,
        )
        chunks = ReadChunks.none()
        context = ReadContext(
            origin=origin,
            connect=partial(settings.connect_reading, lambda: self._closing or settings.stopping()),
            binder=binder,
            workers=settings.workers,
            chunk_rows=settings.chunk_rows,
            horizon=lineage.through,
            chunks=chunks,
            deliveries=deliveries,
            tables=self._tables,
            changelog=self._changelog,
            reach=self._reach,
        )
        self._table_reads = planned_reads(catalog, context, self._entities, checkpoint.windows, self._state.repairs)
        self._declarations = CatalogDeclarations(self._control.query, checkpoint.source.get("declared", {}))
        entities = {entity.table: entity for entity in self._entities}
        self._assembler = Assembler(
            origin=origin,
            tables=Tables(
                binder,
                entities,
                declarations=self._declarations,
                look_up=catalog.columns,
                charsets=catalog.charsets,
                noblob=settings.keeps_state and self._control.flavour is Flavour.MYSQL,
            ),
            entities=entities,
            state=self._log_state,
            published=checkpoint.position,
            partial=checkpoint.partial,
            through=lineage.through,
            listener=self._table_reads.windows if not self._table_reads.windows.complete else None,
            reads=chunks,
            versions=self._versions(),
        )
        start(self._table_reads, catalog, context, self._entities)

    def _records(self) -> bool:
        """Returns whether delivered transactions must be recorded. This is necessary while tables of MySQL are read."""
        is_mysql = self._control.flavour is Flavour.MYSQL
        return is_mysql and self._table_reads is not None and self._table_reads.running

    def _versions(self) -> Versions | None:
        if self._read_versions is None:
            return None
        accepted = {entity: Position.parse(text) for entity, text in self._state.checkpoint.accepted.items()}
        return Versions(self._read_versions(), accepted=accepted, filled=partial(filled_columns, self._control.query))

    def _signing(self, number: int) -> Signing | None:
        secret = self._settings.signals_secret
        if secret is None:
            return None
        return Signing(secret=secret, cluster=self._settings.address.database, transaction=number)

    def _start(self, dump: Connection) -> None:
        resume = self._lineage.resume
        encoded = encode_gtids(resume) if isinstance(resume, GtidSet) else b""
        start_dump(dump, server_id=self._settings.server_id, gtids=resume.text, encoded_gtids=encoded)

    # Source

    def read(self, timeout_s: float, gather_s: float = 0.0) -> Piece | None:
        """See `ChangeSource.read`. If opening made a new checkpoint, the first piece has it, and has no rows."""
        if self._opening_checkpoint is not None:
            checkpoint, self._opening_checkpoint = self._opening_checkpoint, None
            return Piece(rows=(), checkpoint=checkpoint, nbytes=0, urgent=True)
        if self._assembler.stop is not None:
            raise self._assembler.stop
        assert self._table_reads is not None
        self._table_reads.check(self._state)
        # No variable refers to the events, so that a large one is freed as soon as it is decoded.
        assembled = self._assembler.feed(EMPTY if self._assembler.busy else self._taken(timeout_s, gather_s))
        self._stamps.heard(assembled.invalid_stamps, assembled.unstamped)
        return self._piece(assembled)

    def _taken(self, timeout_s: float, gather_s: float) -> EventBlock:
        assert self._stream is not None
        return self._stream.take(timeout_s, 0.0 if self._hurried else gather_s, _GATHERED_EVENTS)

    def _piece(self, assembled: Assembled) -> Piece | None:
        before = self._state.checkpoint
        self._state.deliver(assembled)
        self._remember()
        assert self._table_reads is not None
        self._table_reads.record(self._state)
        self._state.hear(assembled)
        self._read_unlogged()
        checkpoint = self._state.checkpoint
        if checkpoint == before:
            return None
        return Piece(
            rows=assembled.rows,
            checkpoint=checkpoint,
            nbytes=sum(batch.nbytes for batch in assembled.rows),
            log_bytes=bytes_read(int(before.through, 16), int(checkpoint.through, 16)),
            urgent=assembled.fenced,
        )

    def _remember(self) -> None:
        """Stores in the checkpoint where the stream is."""
        log, state = self._log_state, self._state
        if self._assembler.between and self._assembler.stop is None:
            state.reach(self._assembler.through)
        gtids = log.gtids
        state.remember("gtids", gtids.text)
        resume = log.resume.text
        state.remember("resume", resume if resume != gtids.text else None)
        state.remember("half", log.half[0] if state.checkpoint.partial and log.half is not None else None)
        state.remember("declared", self._declarations.to_json())
        state.remember("dropped", sorted(log.dropped))

    def _read_unlogged(self) -> None:
        """Warns of each table with changes that the log lacks, and plans to read it if `on_unlogged` is `rebuild`."""
        unlogged, self._log_state.unlogged = self._log_state.unlogged, []
        policies = {entity.name: entity.on_unlogged for entity in self._entities}
        for entity, reason in unlogged:
            _log.warning("rows are not in the log", entity=entity, reason=reason, policy=policies[entity])
            if policies[entity] == "rebuild":
                self._state.settle(partial(_planned, entity))

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
        self._hurried = True
        return commit_text(end_coordinate(self._control.query, self._control.version))

    def confirm(self, checkpoint: Checkpoint) -> None:
        """See `ChangeSource.confirm`. The server keeps its log for a fixed time, so nothing is sent to it."""
        self._state.confirm(checkpoint)

    def close(self) -> None:
        """See `ChangeSource.close`."""
        self._closing = True
        if self._table_reads is not None:
            self._table_reads.close()
        if self._stream is not None:
            self._stream.close()
        self._control.close()


def _planned(entity: str, checkpoint: Checkpoint, repairs: Repairs) -> tuple[Checkpoint, Repairs]:
    """Plans to read an entity's table, and to publish a delete for each key that only the changelog has."""
    start = str(checkpoint.complete_before)
    repairs, windows = read_again(repairs, checkpoint.windows, entity, start, sweep=True, part=None)
    return replace(checkpoint, windows=windows, repairs=repairs.to_json()), repairs
