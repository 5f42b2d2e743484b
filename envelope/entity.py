"""Defines an entity: a published table, with its settings from the service's configuration."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from changelog.envelope.model import Stamp
from changelog.schemas.compatibility import Mode

TRUNCATE_KEY = "\0truncate"
"""The reserved key of a message that publishes a truncate. Each partition gets one such message."""

END_KEY = "\0end"
"""The reserved key of a *mark*. When an entity is repartitioned, a mark is sent to each partition of its old topic, as
the last message of the partition.
"""

DEAD = "dead"
"""The reserved entity for messages that an operator set aside."""

SCHEMAS = "schemas"
"""The reserved entity whose rows are the versions of other entities' columns (`changelog.envelope.versions`)."""

GAPS = "gaps"
"""The reserved entity whose rows record where changes were lost (`changelog.envelope.gap`)."""

OF_CHANGELOG = frozenset({GAPS, SCHEMAS})
"""The reserved entities whose rows describe the changelog itself rather than a table. Every copy of a changelog keeps
these rows."""

RESERVED = frozenset({DEAD, GAPS, "positions", SCHEMAS})
"""Names that the entity of a table must not have, because topics with these names have other purposes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evolution:
    """The policy for changes of an entity's columns.

    `mode` says which changes are compatible, and `on_incompatible` what the service does at any other change. Some
    changes of columns also change values in the table's rows, but the log does not have these changes row by row.
    `on_restated` says what to do then: with `read`, the service reads the table again; with `ask`, an operator has to
    request it.
    """

    mode: Mode = Mode.FULL_TRANSITIVE
    on_incompatible: Literal["stop", "publish"] = "stop"
    on_restated: Literal["read", "ask"] = "read"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entity:
    """A kind of thing, such as an order, whose changes are published. Each entity is bound to one table.

    `table` is `(schema, name)`. `columns` are the published columns; None means all columns. `masks` maps a column to
    `drop`, `null` or `sha256`. `where` is the row filter of the publication, in SQL. `on_unlogged` is the policy for
    rows that may have changed although the database did not log the change.
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
        """Returns the settings, as JSON values, that must not change silently while a changelog is being written."""
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
