"""Plans which tables to read, which keys to look up and which entities to sweep while a source is open.

The plan is made from the stored checkpoint, and does not change while the source is open. If a signal (a message to the
service) asks for another plan, the source opens again. At each opening, the changelog has all rows up to the stored
checkpoint. So a sweep, which searches the changelog for keys that a table lacks, misses none of these rows.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from changelog.connectors.capture.tables.key_lookup import Lookup
from changelog.connectors.capture.tables.repairs import LookupProgress, Reached, Repairs
from changelog.connectors.capture.tables.table_progress import is_complete
from changelog.envelope.entity import Entity


class PlannedReads:
    """The plan that a source follows while it is open.

    `entities` are all configured entities. `windows` and `repairs` are the stored progress of the table reads and the
    stored repairs. Without `can_sweep`, no sweep is planned, because the sink cannot be read.
    """

    def __init__(
        self, entities: Sequence[Entity], windows: Mapping[str, Any], repairs: Repairs, *, can_sweep: bool
    ) -> None:
        self._revision = repairs.revision
        active = [entity for entity in entities if entity.name not in repairs.paused]
        self.unread = [entity for entity in active if not is_complete(windows.get(entity.name))]
        """The entities whose tables have to be read, at least in part."""
        self.repairs = {entity.name: repairs.open[entity.name] for entity in active if entity.name in repairs.open}
        """The open repair of each entity that has one."""
        self._lookups = {name: Lookup(name, repair.keys) for name, repair in self.repairs.items() if repair.keys}
        due = repairs.sweeps(windows) if can_sweep else ()
        self.sweeps = {name: Lookup(name, sweeping=True) for name in sorted(due)}
        """The lookup of each entity that has to be swept."""

    @property
    def lookups(self) -> Sequence[Lookup]:
        """All lookups: of requested keys, and of sweeps."""
        return [*self._lookups.values(), *self.sweeps.values()]

    @property
    def sweeping(self) -> bool:
        """Whether a sweep is not complete yet. If it is interrupted, it later starts again from the beginning."""
        return not all(sweep.complete for sweep in self.sweeps.values())

    def reached(self, changed: Collection[str], *, idle: bool) -> Reached:
        """Returns the progress of lookups and sweeps. Leaves out the entities `changed`: their plan is out of date.

        `idle` says that all planned reads are complete.
        """
        lookups = {name: lookup for name, lookup in self._lookups.items() if name not in changed}
        sweeps = {name: sweep for name, sweep in self.sweeps.items() if name not in changed}
        return Reached(
            revision=self._revision,
            idle=idle,
            lookups={
                name: LookupProgress(keys_left=lookup.keys_left, absent=lookup.absent)
                for name, lookup in lookups.items()
            },
            sweeping=frozenset(self.sweeps),
            swept={name: sweep.more for name, sweep in sweeps.items() if sweep.complete},
            failed=frozenset(name for name, sweep in sweeps.items() if sweep.failed),
        )
