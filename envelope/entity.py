"""What shapes an entity's changelog: the configuration, resolved."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from envelope.model import Stamp
from schemas.compatibility import Mode

TRUNCATE_KEY = "\0truncate"
"""The reserved key under which a truncate is published, once a partition."""

DEAD = "dead"
"""The reserved entity that holds what an operator set aside."""

SCHEMAS = "schemas"
"""The reserved entity whose rows are the versions of the other entities' columns: see `envelope.versions`."""

GAPS = "gaps"
"""The reserved entity whose rows say where changes were lost: see `envelope.gap`."""

OF_CHANGELOG = frozenset({GAPS, SCHEMAS})
"""The reserved entities whose rows are of no table, but of the changelog itself: whoever keeps it keeps them all."""

RESERVED = frozenset({DEAD, GAPS, "positions", SCHEMAS})
"""Entity names that a topic of another purpose has taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evolution:
    """What is to become of a change of an entity's columns.

    `mode` says which changes are compatible. `on_restated` is what happens after one that altered what stored rows hold
    though no row was written: the table is read again, or an operator is asked to have it read.
    """

    mode: Mode = Mode.FULL_TRANSITIVE
    on_incompatible: Literal["stop", "publish"] = "stop"
    on_restated: Literal["read", "ask"] = "read"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entity:
    """A kind of thing that has a changelog, bound to one table.

    `table` is `(schema, name)`; `columns` are the published ones, None for all; `masks` maps a
    column to `drop`, `null` or `sha256`; `where` is the publication's row filter, in SQL. `on_unlogged`
    is what is done where rows may have changed without a word in the log.
    """

    name: str
    table: tuple[str, str]
    key: tuple[str, ...]
    partition_by: tuple[str, ...]
    partitions: int
    columns: tuple[str, ...] | None = None
    exclude_columns: tuple[str, ...] = ()
    where: str | None = None
    masks: Mapping[str, Literal["drop", "null", "sha256"]]
    immutable: bool = False
    on_change_of_immutable: Literal["stop", "ignore"] = "stop"
    on_truncate: Literal["stop", "publish"] = "stop"
    on_unlogged: Literal["rebuild", "stop", "ignore"] = "rebuild"
    missing_stamp: Literal["default", "warn", "stop"] = "default"
    default_stamp: Stamp
    evolution: Evolution = Evolution()

    def shape(self) -> dict[str, Any]:
        """What of this entity a changelog cannot change in mid-stream, as JSON values."""
        return {
            "table": ".".join(self.table),
            "key": list(self.key),
            "partition_by": list(self.partition_by),
            "partitions": self.partitions,
            "columns": None if self.columns is None else list(self.columns),
            "exclude_columns": list(self.exclude_columns),
            "where": self.where,
            "mask": dict(sorted(self.masks.items())),
            "immutable": self.immutable,
        }
