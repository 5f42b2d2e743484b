"""Implements `changelog.connectors.sources.Database` for MySQL and MariaDB."""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from changelog.connectors.failpoints import Reach, nowhere
from changelog.connectors.findings import Finding
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
from changelog.connectors.sources.fences import Fence
from changelog.connectors.sources.mysql.admin.catalog import Table, read_tables
from changelog.connectors.sources.mysql.admin.check import findings
from changelog.connectors.sources.mysql.admin.claim import Holder, holder
from changelog.connectors.sources.mysql.admin.columns import ColumnCatalog
from changelog.connectors.sources.mysql.admin.lineage import is_lost, reaches_back
from changelog.connectors.sources.mysql.admin.server_log import (
    bytes_between,
    end_coordinate,
    log_end,
    server_identity,
)
from changelog.connectors.sources.mysql.admin.signals import send
from changelog.connectors.sources.mysql.crossing import crossing
from changelog.connectors.sources.mysql.decode.rows.binder import Binder
from changelog.connectors.sources.mysql.fence import hold_fence
from changelog.connectors.sources.mysql.settings import Settings
from changelog.connectors.sources.mysql.snapshot.read_table import read_table
from changelog.connectors.sources.mysql.source import MysqlSource
from changelog.connectors.sources.mysql.values.positions.coordinates import coordinate_text
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.position import commit_text
from changelog.envelope.signal import Signal
from changelog.schemas.types import Struct

__all__ = ["MysqlDatabase", "Settings"]


class MysqlDatabase:
    """The server that `settings` describes; see `changelog.connectors.sources.Database`."""

    reads_tables = True

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def tables(self, *, sized: Callable[[TableName], bool] = no_table) -> Sequence[Table]:
        """See `Database.tables`."""
        with self._settings.connect() as connection:
            return read_tables(connection.query, sized=sized)

    def shapes(self, entities: Sequence[Entity]) -> Sequence[Struct]:
        """See `Database.shapes`."""
        binder = Binder(hmac_key=self._settings.hmac_key)
        with self._settings.connect() as connection:
            try:
                catalog = ColumnCatalog.of(connection.query, connection.flavour)
                tables = [read_table(catalog, binder, entity) for entity in entities]
            except ChangelogError as error:
                if error.kind is not Kind.ALTERED:
                    raise
                raise ChangelogError(Kind.PRECONDITION, error.message, hint=error.hint) from error
        return [table.bound.binding.shape for table in tables]

    def open(
        self,
        entities: Sequence[Entity],
        recover: Recover,
        changelog: Changelog,
        *,
        accept_settings: bool = False,
        accept_cluster: bool = False,
        reach: Reach = nowhere,
    ) -> MysqlSource:
        """See `Database.open`."""
        settings = replace(self._settings, accept_settings=accept_settings, accept_server=accept_cluster)
        return MysqlSource(settings, entities, recover, changelog.versions, changelog.rows, reach=reach)

    def status(self, through: str, checkpoint: Checkpoint | None = None) -> SourceStatus:
        """See `Database.status`. Without `checkpoint`, the result never says that a part of the log is lost, because
        only the GTIDs in a checkpoint show this.
        """
        with self._settings.connect() as connection:
            query, version = connection.query, connection.version
            end = end_coordinate(query, version)
            lag_bytes = bytes_between(query, int(through or "0", 16), end)
            hold = _hold(
                holder(query, self._settings.name),
                is_lost=checkpoint is not None and is_lost(query, version, checkpoint),
            )
        return SourceStatus(end=commit_text(end), lag_bytes=lag_bytes, waits_for=None, hold=hold, retained=None)

    def retained(self) -> Retained | None:
        """See `Database.retained`: always None, because the server keeps its log for a fixed time, whoever reads it."""
        return None

    def refuse_if_read(self, *, must_answer: bool = False) -> None:
        """See `Database.refuse_if_read`."""
        try:
            with self._settings.connect() as connection:
                reader = holder(connection.query, self._settings.name)
        except ChangelogError:
            if must_answer:
                raise
            return
        if reader is not None:
            raise reader.in_use(self._settings.name)

    def check(self, entities: Sequence[Entity], checkpoint: Checkpoint | None) -> Sequence[Finding]:
        """See `Database.check`."""
        with self._settings.connect() as connection:
            query = connection.query
            keeps_state = self._settings.keeps_state
            of_tables = findings(query, entities, read_tables(query), keeps_state=keeps_state)
            return [*of_tables, reaches_back(query, connection.version, checkpoint)]

    def fix(self, statements: Iterable[str]) -> None:
        """See `Database.fix`."""
        with self._settings.connect() as connection:
            for statement in statements:
                connection.execute(statement)

    def clock_ahead_s(self) -> float:
        """See `Database.clock_ahead_s`."""
        with self._settings.connect() as connection:
            asked_at = time.time()
            [(now,)] = connection.query("SELECT UNIX_TIMESTAMP(NOW(6))")
            return float(now) - (asked_at + time.time()) / 2

    def hold(self) -> Hold | None:
        """See `Database.hold`. The hold is the log itself, which the server keeps for a fixed time."""
        with self._settings.connect() as connection:
            return _hold(holder(connection.query, self._settings.name), is_lost=False)

    def send_signals(self, signals: Iterable[Signal]) -> str:
        """See `Database.send_signals`."""
        end, settings = "", self._settings
        with settings.connect() as connection:
            for signal in signals:
                database = settings.address.database
                end = commit_text(send(connection, signal, settings.signals_secret, database=database))
        return end

    def spell(self, through: str) -> str:
        """See `Database.spell`."""
        return coordinate_text(int(through, 16))

    def log_facts(self, checkpoint: Checkpoint | None) -> Sequence[tuple[str, str]]:
        """See `Database.log_facts`."""
        with self._settings.connect() as connection:
            end = log_end(connection.query, connection.version)
            server = server_identity(connection.query, connection.version)
        facts = [("server", f"{server}, ends at {coordinate_text(end.coordinate)} with {end.gtids.text or 'no GTIDs'}")]
        if checkpoint is None:
            return facts
        place = self.spell(checkpoint.through)
        return [("", f"at {place} of {checkpoint.source.get('server')} with {checkpoint.source.get('gtids')}"), *facts]

    def cross_gap(
        self,
        entities: Sequence[Entity],
        checkpoint: Checkpoint | None,
        take_over: Callable[[], ChangelogEnd],
        *,
        reason: str,
        keep_hold: bool,  # noqa: ARG002 - the service cannot decide how long the server keeps its log
        accept_settings: bool,
        reach: Reach = nowhere,
    ) -> AbstractContextManager[CrossedGap]:
        """See `Database.cross_gap`."""
        settings = replace(self._settings, accept_settings=accept_settings)
        return crossing(settings, entities, checkpoint, take_over, reason=reason, reach=reach)

    def fence(self, entities: Sequence[Entity], *, deadline: float) -> AbstractContextManager[Fence]:
        """See `Database.fence`. The tables are copied to files before the `with` block begins."""
        return hold_fence(self._settings, entities, deadline=deadline)

    def remnants(self) -> Sequence[Remnant]:
        """See `Database.remnants`: the service creates nothing on the server."""
        return ()

    def drop(self, kind: str) -> None:
        """See `Database.drop`: there is nothing to drop."""
        raise ChangelogError(Kind.USAGE, f"the service creates no {kind} on the server, so there is none to drop")


def _hold(reader: Holder | None, *, is_lost: bool) -> Hold:
    return Hold(
        kind="log",
        name="the binary log",
        reader=None if reader is None else reader.id,
        condition="lost" if is_lost else "kept",
        is_lost=is_lost,
        confirmed="",
        nbytes=None,
        xids=None,
    )
