"""The whole configuration, as `changelog.connectors.config.load` gives it."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Discriminator, Field, StringConstraints, Tag

from changelog.connectors.config.entities import (
    DriftConfig,
    EntityConfig,
    ProvenanceConfig,
    SchemasConfig,
    TablesConfig,
)
from changelog.connectors.config.fields import EntityName, Name, Section
from changelog.connectors.config.files import FilesConfig
from changelog.connectors.config.kafka import KafkaConfig
from changelog.connectors.config.postgres import PostgresConfig
from changelog.connectors.config.views import ViewConfig


def _listen(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdecimal() or int(port) > 65535:
        raise ValueError('should be "HOST:PORT", as in "127.0.0.1:9464"')
    return text


def _sink_kind(sink: Any) -> Any:
    return sink.get("kind", "files") if isinstance(sink, Mapping) else getattr(sink, "kind", "files")


SinkConfig = Annotated[
    Annotated[FilesConfig, Tag("files")] | Annotated[KafkaConfig, Tag("kafka")], Discriminator(_sink_kind)
]
"""`[sink]`: where the changelog goes."""


class MaskConfig(Section):
    """`[mask]`: the secret of the `sha256` masks."""

    key: Annotated[str, StringConstraints(min_length=16)] = Field(repr=False)


class SignalsConfig(Section):
    """`[signals]`: the secret that signals are signed with; without one, any role of the database may send them."""

    secret: Annotated[str, StringConstraints(min_length=16)] = Field(repr=False)


class ServiceConfig(Section):
    """`[service]`: where `/live`, `/ready` and `/metrics` are served."""

    listen: Annotated[str, AfterValidator(_listen)] = "127.0.0.1:9464"

    @property
    def address(self) -> tuple[str, int]:
        """Host and port; port 0 lets the system choose."""
        host, _, port = self.listen.rpartition(":")
        return host.strip("[]"), int(port)


class Config(Section):
    """The whole file; frozen. `slot` and `publication` are named after the service unless given."""

    name: Name
    source: PostgresConfig
    sink: SinkConfig
    tables: TablesConfig | None = None
    entities: dict[EntityName, EntityConfig] = Field(default={})
    provenance: ProvenanceConfig = ProvenanceConfig()
    schemas: SchemasConfig = SchemasConfig()
    mask: MaskConfig | None = None
    signals: SignalsConfig | None = None
    service: ServiceConfig = ServiceConfig()
    views: dict[Name, ViewConfig] = Field(default={})
    drift: DriftConfig = DriftConfig()

    def drift_of(self, entity: str) -> DriftConfig:
        """What `[entities.X.drift]` says, and `[drift]` where it says nothing."""
        own = self.entities[entity].drift if entity in self.entities else None
        return self.drift.model_copy(update=own.model_dump(exclude_unset=True)) if own else self.drift

    @property
    def slot(self) -> str:
        """The replication slot's name."""
        return self.source.slot or self.name.replace("-", "_")

    @property
    def publication(self) -> str:
        """The publication's name."""
        return self.source.publication or self.name.replace("-", "_")

    @property
    def hmac_key(self) -> bytes:
        """The secret of the `sha256` masks; empty where there is none."""
        return b"" if self.mask is None else self.mask.key.encode()

    @property
    def signals_secret(self) -> bytes | None:
        """What signals are signed with, None where they are not."""
        return None if self.signals is None else self.signals.secret.encode()

    @property
    def codec(self) -> str:
        """What the messages' values are: files hold JSON."""
        return self.sink.codec if isinstance(self.sink, KafkaConfig) else "json"

    @property
    def prefix(self) -> str:
        """What the names of all topics begin with."""
        return (self.sink.prefix if isinstance(self.sink, KafkaConfig) else None) or self.name
