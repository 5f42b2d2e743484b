"""Implements `changelog.connectors.sources.Database`, the interface of each kind of database, for a `World`.

A `World` is a tiny database in memory.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from random import Random

from changelog.connectors.failpoints import Reach, nowhere
from changelog.connectors.findings import Finding, ok
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
    Trait,
    no_table,
)
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.position import commit_text
from changelog.envelope.signal import FENCE_PREFIX, Signal, encode
from changelog.envelope.signal import PREFIX as SIGNAL_PREFIX
from changelog.schemas.types import Struct
from tests.unit.memory.fence import MemoryFence
from tests.unit.memory.source import MemorySource
from tests.unit.memory.tables import bind
from tests.unit.memory.world import World

SCHEMA = "shop"

_PAUSE_S = 0.01


@dataclass(frozen=True, slots=True)
class MemoryColumn:
    """See `ColumnInfo`."""

    name: str
    not_null: bool


FULL = Trait(name="replica identity", value="full", suffices=True)


@dataclass(frozen=True, slots=True)
class MemoryTable:
    """See `TableInfo`."""

    name: str
    columns: tuple[MemoryColumn, ...]
    rows_estimate: int
    schema: str = SCHEMA
    primary_key: tuple[str, ...] = ("id",)
    nbytes: int = 0
    trait: Trait = FULL

    def key_problem(self, key: Sequence[str]) -> str | None:
        """See `TableInfo`."""
        return None if tuple(key) == self.primary_key else f"{self.name} is identified by id alone"

    def usable_key(self) -> tuple[str, ...] | None:
        """See `TableInfo`."""
        return self.primary_key


class MemoryDatabase:
    """See `changelog.connectors.sources.Database`.

    A transaction that has only messages becomes visible the next time a source reads.
    """

    reads_tables = True

    def __init__(self, world: World) -> None:
        self.world = world
        self.at_fence: Callable[[], None] = lambda: None
        """A function that is called after a fence was taken, and before the fence's message is logged. It does nothing,
        unless a test puts another function here.
        """
        self._source: MemorySource | None = None

    def tables(self, *, sized: Callable[[TableName], bool] = no_table) -> Sequence[MemoryTable]:
        """See `Database`. Sizes are not measured: each is 0."""
        with self.world.lock:
            return [
                MemoryTable(
                    name=table.name,
                    columns=tuple(MemoryColumn(column, not_null=column == "id") for column in table.columns),
                    rows_estimate=len(table.rows(self.world.snapshot())),
                )
                for table in self.world.tables.values()
            ]

    def shapes(self, entities: Sequence[Entity]) -> Sequence[Struct]:
        """See `Database`."""
        with self.world.lock:
            return [bind(entity, self.world.tables[entity.table[1]].columns).shape for entity in entities]

    def open(
        self,
        entities: Sequence[Entity],
        recover: Recover,
        changelog: Changelog,
        *,
        accept_settings: bool = False,
        accept_cluster: bool = False,
        reach: Reach = nowhere,
    ) -> MemorySource:
        """See `Database`. `accept_cluster` has no effect, because there is only one cluster."""
        self.refuse_if_read()
        with self.world.lock:
            self._source = MemorySource(
                self.world,
                entities,
                recover,
                changelog,
                random=Random(0),
                live=self._live,
                reach=reach,
                accept_settings=accept_settings,
            )
        return self._source

    def _live(self, source: MemorySource) -> None:
        with self.world.lock:
            self.world.show_messages()
            idle = source.idle
        if idle:
            time.sleep(_PAUSE_S)

    def status(self, through: str, _checkpoint: Checkpoint | None = None) -> SourceStatus:
        """See `Database`."""
        end = self.world.end - 1
        lag = max(end - int(through or "0", 16), 0)
        return SourceStatus(end=commit_text(end), lag_bytes=lag, waits_for=None, hold=None, retained=None)

    def retained(self) -> Retained | None:
        """See `Database`: the log is never removed."""
        return None

    def refuse_if_read(self, *, must_answer: bool = False) -> None:
        """See `Database`."""
        if self._source is not None and not self._source.is_closed:
            raise ChangelogError(Kind.IN_USE, "another source reads the log", hint="close that source first")

    def check(self, entities: Sequence[Entity], checkpoint: Checkpoint | None) -> Sequence[Finding]:
        """See `Database`: nothing has to be set up."""
        return [ok(entity.name, "it is in memory") for entity in entities]

    def fix(self, statements: Iterable[str]) -> None:
        """See `Database`: no finding has a fix."""
        raise ChangelogError(Kind.USAGE, f"there are no statements here: {list(statements)}")

    def clock_ahead_s(self) -> float:
        """See `Database`: this database uses this machine's clock."""
        return 0.0

    def hold(self) -> Hold | None:
        """See `Database`: the log is never removed, so no hold is needed."""
        return None

    def send_signals(self, signals: Iterable[Signal]) -> str:
        """See `Database`."""
        end = ""
        with self.world.lock:
            for signal in signals:
                end = commit_text(self.world.emit(SIGNAL_PREFIX, encode(signal, None)) - 1)
        return end

    def spell(self, through: str) -> str:
        """See `Database`."""
        return str(int(through, 16))

    def log_facts(self, checkpoint: Checkpoint | None) -> Sequence[tuple[str, str]]:
        """See `Database`."""
        facts = [("database", f"ends at {self.world.end - 1}")]
        return facts if checkpoint is None else [("", f"at {self.spell(checkpoint.through)}"), *facts]

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
        """See `Database`: the log is never removed, so it has no gap."""
        raise ChangelogError(Kind.PRECONDITION, f"the log has no gap: {reason}")

    @contextmanager
    def fence(self, entities: Sequence[Entity], *, deadline: float) -> Iterator[MemoryFence]:
        """See `Database`. No table is ever locked."""
        with self.world.lock:
            self.world.show_messages()
            fence = MemoryFence.of(self.world, entities)
        self.at_fence()
        with self.world.lock:
            self.world.emit(FENCE_PREFIX, b"")
        yield fence

    def remnants(self) -> Sequence[Remnant]:
        """See `Database`: this database keeps nothing for a service."""
        return ()

    def drop(self, kind: str) -> None:
        """See `Database`."""
        raise ChangelogError(Kind.USAGE, f"there is no {kind} here")
