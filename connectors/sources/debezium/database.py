"""Implements `changelog.connectors.sources.Database` for the databases whose events Debezium publishes."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from changelog.connectors.failpoints import Reach, nowhere
from changelog.connectors.findings import Finding, fail, ok, refuse, warn
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
from changelog.connectors.sources.debezium.assembling.binder import Binder
from changelog.connectors.sources.debezium.crossing import crossing
from changelog.connectors.sources.debezium.settings import Settings
from changelog.connectors.sources.debezium.source import DebeziumSource
from changelog.connectors.sources.debezium.tables import Sampled, SampledTable
from changelog.connectors.sources.fences import Fence, NoFenceError
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.position import commit_text
from changelog.envelope.signal import Signal
from changelog.schemas.types import Struct

__all__ = ["DebeziumDatabase", "Settings"]

_EXACT = frozenset({"mariadb", "mongodb", "mysql", "oracle", "postgresql", "sqlserver"})
"""The connectors for which Debezium promises to deliver each event exactly once, if Kafka Connect is set up for it.

https://debezium.io/documentation/reference/stable/configuration/eos.html"""

_WHOLE_ROWS = {
    "postgresql": "ALTER TABLE … REPLICA IDENTITY FULL",
    "mysql": "SET GLOBAL binlog_row_image = FULL",
    "mariadb": "SET GLOBAL binlog_row_image = FULL",
    "mongodb": "enable changeStreamPreAndPostImages, and capture.mode = change_streams_update_full_with_pre_image",
    "oracle": "ALTER TABLE … ADD SUPPLEMENTAL LOG DATA (ALL) COLUMNS",
}
"""How to make a database log old rows, by connector."""

_EVENTS = "docs/reference/debezium-events.md lists what events may look like"
_UNREADABLE = {Kind.CONNECTION: "start the registry, or correct [source.topics] registry"}
"""What to do about an event that cannot be read, by the kind of the error."""

_SNAPSHOT = "let Debezium read the table: send it the signal execute-snapshot"


class DebeziumDatabase:
    """The database whose events `settings` describe; see `changelog.connectors.sources.Database`."""

    reads_tables = False

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._source: DebeziumSource | None = None

    def _sampled(self) -> Sampled:
        return self._settings.origin.sampled(self._settings.translator(), self._settings.declared)

    def tables(self, *, sized: Callable[[TableName], bool] = no_table) -> Sequence[SampledTable]:  # noqa: ARG002
        """See `Database.tables`: the tables of sampled events, and those that the configuration names. No size is
        known.
        """
        return self._sampled().tables

    def shapes(self, entities: Sequence[Entity]) -> Sequence[Struct]:
        """See `Database.shapes`: the columns of the last events."""
        binder = Binder(hmac_key=self._settings.hmac_key)
        tables = {(table.schema, table.name): table for table in self._sampled().tables}
        shapes = []
        for entity in entities:
            table = tables.get(entity.table)
            if table is None or table.described is None:
                raise ChangelogError(
                    Kind.PRECONDITION,
                    f"entity {entity.name}: there is no event of the table {'.'.join(entity.table)} yet, so its "
                    "columns are unknown",
                    hint="change a row of the table, or let Debezium make a snapshot",
                )
            binding = binder.bind(entity, table.described)
            if binding.lost is not None:
                raise ChangelogError(Kind.PRECONDITION, binding.lost)
            shapes.append(binding.shape)
        return shapes

    def open(
        self,
        entities: Sequence[Entity],
        recover: Recover,
        changelog: Changelog,
        *,
        accept_settings: bool = False,
        accept_cluster: bool = False,  # noqa: ARG002 - events do not name their cluster
        reach: Reach = nowhere,
    ) -> DebeziumSource:
        """See `Database.open`. Other services may read the same events, so only the sink raises IN_USE."""
        settings = replace(self._settings, accept_settings=accept_settings)
        self._source = DebeziumSource(settings, entities, recover, changelog.versions, changelog.rows, reach=reach)
        return self._source

    def status(self, through: str, checkpoint: Checkpoint | None = None) -> SourceStatus:
        """See `Database.status`. The lag is an estimate: the number of steps that are left (`Input.left`), times the
        mean size of messages.
        """
        source, hold = self._source, self._settings.origin.hold()
        if checkpoint is not None:
            steps_left = self._settings.origin.left(checkpoint)
            end = commit_text(int(checkpoint.source["place"]) + steps_left)
            mean = int(checkpoint.source.get("message_bytes", 0))
            if self._settings.origin.is_lost(checkpoint):
                hold = replace(hold, is_lost=True, condition="lost")
        elif source is not None and through:
            end, mean = source.end_of(through), source.message_bytes
        else:
            end, mean = through, 0
        steps = int(end[:16] or "0", 16) - int(through[:16] or "0", 16)
        return SourceStatus(
            end=end,
            lag_bytes=max(steps, 0) * max(mean, 1),
            waits_for=None,
            hold=hold,
            retained=None,
        )

    def retained(self) -> Retained | None:
        """See `Database.retained`: nothing is kept because of the service."""
        return None

    def refuse_if_read(self, *, must_answer: bool = False) -> None:
        """See `Database.refuse_if_read`: any number of services may read the events."""

    def check(self, entities: Sequence[Entity], checkpoint: Checkpoint | None) -> Sequence[Finding]:
        """See `Database.check`."""
        findings = list(self._settings.origin.findings(checkpoint))
        sampled = self._sampled()
        tables = {(table.schema, table.name): table for table in sampled.tables}
        findings += [
            fail(topic, error.message, error.hint or _UNREADABLE.get(error.kind, _EVENTS))
            for topic, error in sampled.unreadable.items()
        ]
        findings += [self._table(entity, tables.get(entity.table)) for entity in entities]
        findings += self._delivery()
        return findings

    def _table(self, entity: Entity, table: SampledTable | None) -> Finding:
        if not self._settings.origin.samples:
            return ok(entity.name, "its columns are unknown until one of its events arrives")
        if table is None or table.described is None:
            hint = "the columns are known as soon as Debezium publishes an event of the table"
            return warn(entity.name, f"there is no event of the table {'.'.join(entity.table)} yet", hint)
        if not table.trait.suffices:
            lack = f"`before` is {table.trait.value} in updates"
            if self._settings.keeps_state:
                return ok(entity.name, f"{lack}; their `original` comes from the state")
            remedy = _WHOLE_ROWS.get(self._settings.connector, "let the database log old rows")
            return warn(
                entity.name,
                f"{lack}, so their `original` is unknown",
                f"to log old rows: {remedy}; or set [state] path, and the service keeps the old rows",
            )
        return ok(entity.name, f"events have {len(table.columns)} columns")

    def _delivery(self) -> Iterator[Finding]:
        name = "delivery"
        if self._settings.connector in _EXACT:
            yield ok(
                name,
                "each event in the input is published once; if Debezium itself repeats events after a crash, its "
                "repetitions are published, too",
            )
        else:
            yield warn(
                name,
                f"Debezium's connector {self._settings.connector} may repeat events after a crash, and its repetitions "
                "are published",
                "consumers that keep the last state of each key see no difference",
            )

    def fix(self, statements: Iterable[str]) -> None:
        """See `Database.fix`: no finding has a fix."""
        raise ChangelogError(Kind.USAGE, f"Debezium's events have no statements to run: {'; '.join(statements)}")

    def clock_ahead_s(self) -> float | None:
        """See `Database.clock_ahead_s`: None, because events do not show the database's clock."""
        return None

    def hold(self) -> Hold | None:
        """See `Database.hold`."""
        return self._settings.origin.hold()

    def send_signals(self, signals: Iterable[Signal]) -> str:
        """See `Database.send_signals`: refused, because the service can neither write to the log nor read tables."""
        for signal in signals:
            raise ChangelogError(
                Kind.USAGE,
                f"`{signal.do}` is not for Debezium's events: the service reads no tables",
                hint=_SNAPSHOT,
            )
        return ""

    def spell(self, through: str) -> str:
        """See `Database.spell`: how many steps (`Placed.steps`) of the input were read."""
        return str(int(through[:16] or "0", 16))

    def log_facts(self, checkpoint: Checkpoint | None) -> Sequence[tuple[str, str]]:
        """See `Database.log_facts`."""
        return self._settings.origin.facts(checkpoint)

    def cross_gap(
        self,
        entities: Sequence[Entity],
        checkpoint: Checkpoint | None,
        take_over: Callable[[], ChangelogEnd],
        *,
        reason: str,
        keep_hold: bool,  # noqa: ARG002 - there is no hold to keep
        accept_settings: bool,
        reach: Reach = nowhere,
    ) -> AbstractContextManager[CrossedGap]:
        """See `Database.cross_gap`."""
        refuse([finding for finding in self._settings.origin.findings(None) if finding.status == "fail"])
        settings = replace(self._settings, accept_settings=accept_settings)
        return crossing(settings, entities, checkpoint, take_over, reason=reason, reach=reach)

    def fence(self, entities: Sequence[Entity], *, deadline: float) -> AbstractContextManager[Fence]:  # noqa: ARG002
        """See `Database.fence`: refused, because the service has no access to the tables."""
        raise NoFenceError(
            "Debezium's events do not show the tables at one moment, so there is nothing to compare with",
            hint="compare with the database itself: give `detect_drift` a configuration with the database's own kind",
            later=False,
        )

    def remnants(self) -> Sequence[Remnant]:
        """See `Database.remnants`."""
        return self._settings.origin.remnants()

    def drop(self, kind: str) -> None:
        """See `Database.drop`."""
        self._settings.origin.drop(kind)
