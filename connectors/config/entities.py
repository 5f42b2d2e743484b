"""Defines the sections `[tables]`, `[entities.X]`, `[provenance]`, `[schemas]` and `[drift]`.

The last three may also be set for one entity. An entity is a published table.
"""

from typing import Literal

from pydantic import Field

from changelog.connectors.config.fields import Columns, Section, Text
from changelog.schemas.compatibility import Mode

Mask = Literal["drop", "null", "sha256"]


class TablesConfig(Section):
    """`[tables]`: patterns for `schema.table`.

    Every table that matches a pattern of `include`, and no pattern of `exclude`, becomes an entity.
    """

    include: Columns
    exclude: tuple[Text, ...] = ()


class StampConfig(Section):
    """`default = { … }`: the stamp of changes for which the application wrote no stamp."""

    api_version: str = Field(default="unknown", alias="apiVersion")
    service_name: str = Field(default="unknown", alias="serviceName")
    identifier: str = ""


class ProvenanceConfig(Section):
    """`[provenance]`: how the service handles changes without a stamp. A stamp says who made a change.

    `[entities.X.provenance]` replaces this section for one entity.
    """

    missing: Literal["default", "warn", "stop"] = "default"
    default: StampConfig = StampConfig()


class SchemasConfig(Section):
    """`[schemas]`: how the service handles altered columns.

    `[entities.X.schemas]` replaces this section for one entity.
    """

    compatibility: Mode = Mode.FULL_TRANSITIVE
    on_incompatible: Literal["stop", "publish"] = "stop"
    on_restated: Literal["read", "ask"] = "read"


class DriftConfig(Section):
    """`[drift]`: how differences between the changelog and a table (drift) are repaired.

    For one entity, keys in `[entities.X.drift]` replace the keys of the same name in `[drift]`.
    """

    republish_keys_max: int = Field(default=1000, ge=0, le=10_000_000)
    rebuild_ppm: float = Field(default=1000.0, ge=0, le=1_000_000)
    rebuild_columns: bool = True
    severe_ppm: float = Field(default=10_000.0, ge=0, le=1_000_000)
    on_schema_mismatch: Literal["stop", "rebuild", "ignore"] = "stop"


class EntityConfig(Section):
    """`[entities.X]`: one entity. Without `table`, the section adds settings to the entity X, which `[tables]`
    defines.
    """

    table: Text | None = None
    key: Columns | None = None
    partition_by: Columns | None = None
    partitions: int = Field(default=1, ge=1, le=10_000)
    columns: Columns = ("*",)
    exclude_columns: tuple[Text, ...] = ()
    where: Text | None = None
    mask: dict[str, Mask] = Field(default={})
    immutable: bool = False
    on_change_of_immutable: Literal["stop", "ignore"] = "stop"
    on_truncate: Literal["stop", "publish"] = "stop"
    on_unlogged: Literal["rebuild", "stop", "ignore"] = "rebuild"
    provenance: ProvenanceConfig | None = None
    schemas: SchemasConfig | None = None
    drift: DriftConfig | None = None
    profile: Literal["changelog", "aggressive", "history"] = "changelog"
    retention_days: int = Field(default=3, ge=1, le=36_500)
    topic_settings: dict[str, str] = Field(default={})
    types: dict[Text, Text] = Field(default={})
