"""Implements `changelog.connectors.sources.fences.Fence` for a `World` (a database in memory).

A fence is the snapshot at which a drift comparison reads the tables.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from changelog.connectors.sources.fences import FencedTable, Shown
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.entity import Entity
from changelog.envelope.position import commit_text
from tests.unit.memory.scan import LEAF_KEYS, LEAVES, PAGE_KEYS, MemoryScan, ScannedTable
from tests.unit.memory.source import SOURCE
from tests.unit.memory.tables import bind, values
from tests.unit.memory.world import Seen, World


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFence:
    """See `changelog.connectors.sources.fences.Fence`. The log has every transaction that `snapshot` sees."""

    snapshot: Seen
    taken_at: datetime
    tables: Mapping[str, FencedTable]
    scan: MemoryScan
    database: str = "memory"
    server: str = "1"

    @classmethod
    def of(cls, world: World, entities: Sequence[Entity]) -> "MemoryFence":
        """Returns a fence with copies of the tables as they are now."""
        snapshot = world.snapshot()
        scanned = {}
        for entity in entities:
            table = world.tables[entity.table[1]]
            rows = {key: values(row, table.columns) for key, row in table.rows(snapshot).items()}
            scanned[entity.name] = ScannedTable(bind(entity, table.columns), rows)
        pages = (LEAF_KEYS // PAGE_KEYS,) * LEAVES
        return cls(
            snapshot=snapshot,
            taken_at=datetime.now(UTC),
            tables={name: FencedTable(binding=table.binding, leaf_pages=pages) for name, table in scanned.items()},
            scan=MemoryScan(scanned),
        )

    @property
    def text(self) -> str:
        """See `Fence.text`."""
        return f"before {self.snapshot.end}, without {sorted(self.snapshot.unseen)}"

    @property
    def place(self) -> str:
        """See `Fence.place`."""
        return str(self.snapshot.end - 1)

    @property
    def shown(self) -> Shown:
        """See `Fence.shown`. In a `World`, the id of a transaction is its position in the log."""
        return Shown(end=self.snapshot.end, hidden=sorted(self.snapshot.unseen))

    def is_of(self, checkpoint: Checkpoint) -> bool:
        """See `Fence.is_of`."""
        return checkpoint.source == SOURCE

    def missing(self, checkpoint: Checkpoint) -> str | None:
        """See `Fence.missing`."""
        if checkpoint.through < commit_text(self.snapshot.end - 1):
            return f"it reaches {int(checkpoint.through, 16)}, but the fence is at {self.place}"
        return None
