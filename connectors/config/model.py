"""Defines the complete configuration, which `changelog.connectors.config.load` returns."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Discriminator, Field, StringConstraints, Tag

from changelog.connectors.config.console import ConsoleConfig
from changelog.connectors.config.debezium import DebeziumConfig
from changelog.connectors.config.entities import (
    DriftConfig,
    EntityConfig,
    ProvenanceConfig,
    SchemasConfig,
    TablesConfig,
)
from changelog.connectors.config.fields import EntityName, Name, Section
from changelog.connectors.config.files import FilesConfig
from changelog.connectors.config.kafka import OWN_ENVELOPE, KafkaConfig
from changelog.connectors.config.mysql import MysqlConfig
from changelog.connectors.config.postgres import PostgresConfig
from changelog.connectors.config.state import StateConfig
from changelog.connectors.config.views import ServeConfig, ViewConfig


def _listen(text: str) -> str:
    host, _, port = text.rpartition(":")
    is_bare_ipv6 = ":" in host and (host[0], host[-1]) != ("[", "]")
    if not host or is_bare_ipv6 or not port.isascii() or not port.isdecimal() or int(port) > 65535:
        raise ValueError('should be "HOST:PORT", as in "127.0.0.1:9464" or "[::1]:9464"')
    return text


def _source_kind(source: Any) -> Any:
    return source.get("kind", "postgres") if isinstance(source, Mapping) else getattr(source, "kind", "postgres")


SourceConfig = Annotated[
    Annotated[PostgresConfig, Tag("postgres")]
    | Annotated[MysqlConfig, Tag("mysql")]
    | Annotated[DebeziumConfig, Tag("debezium")],
    Discriminator(_source_kind),
]
"""`[source]`: the database that is read."""


def _sink_kind(sink: Any) -> Any:
    return sink.get("kind", "files") if isinstance(sink, Mapping) else getattr(sink, "kind", "files")


SinkConfig = Annotated[
    Annotated[FilesConfig, Tag("files")] | Annotated[KafkaConfig, Tag("kafka")], Discriminator(_sink_kind)
]
"""`[sink]`: where the changelog goes."""


class MaskConfig(Section):
    """`[mask]`: the HMAC key that `sha256` masks use."""

    key: Annotated[str, StringConstraints(min_length=16)] = Field(repr=False)


class SignalsConfig(Section):
    """`[signals]`: the secret that signs signals. Without it, every role of the database can send signals."""

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
    """The complete configuration file."""

    name: Name
    source: SourceConfig
    sink: SinkConfig
    tables: TablesConfig | None = None
    entities: dict[EntityName, EntityConfig] = Field(default={})
    provenance: ProvenanceConfig = ProvenanceConfig()
    schemas: SchemasConfig = SchemasConfig()
    mask: MaskConfig | None = None
    signals: SignalsConfig | None = None
    service: ServiceConfig = ServiceConfig()
    state: StateConfig | None = None
    views: dict[Name, ViewConfig] = Field(default={})
    drift: DriftConfig = DriftConfig()
    console: ConsoleConfig = ConsoleConfig()
    serve: ServeConfig = ServeConfig()

    def drift_of(self, entity: str) -> DriftConfig:
        """Returns the settings of `[entities.X.drift]`. Settings that this section lacks are taken from `[drift]`."""
        entity_drift = self.entities[entity].drift if entity in self.entities else None
        if entity_drift is None:
            return self.drift
        return self.drift.model_copy(update=entity_drift.model_dump(exclude_unset=True))

    @property
    def hmac_key(self) -> bytes:
        """The secret of the `sha256` masks; empty if none is configured."""
        return b"" if self.mask is None else self.mask.key.encode()

    @property
    def signals_secret(self) -> bytes | None:
        """The secret with which signals are signed; None if they are not signed."""
        return None if self.signals is None else self.signals.secret.encode()

    @property
    def codec(self) -> str:
        """The encoding of the values of messages, `json` or `avro`; always `json` if the sink is files.

        If the envelope is not our own, its name comes first, as in `debezium-json`.
        """
        codec = self.sink.codec if isinstance(self.sink, KafkaConfig) else "json"
        return codec if self.envelope == OWN_ENVELOPE else f"{self.envelope}-{codec}"

    @property
    def envelope(self) -> str:
        """The form of the messages: `OWN_ENVELOPE`, or an envelope that consumers of other products expect."""
        return self.sink.envelope if isinstance(self.sink, KafkaConfig) else OWN_ENVELOPE

    @property
    def prefix(self) -> str:
        """The prefix of the names of all topics; by default the name of the service."""
        return (self.sink.prefix if isinstance(self.sink, KafkaConfig) else None) or self.name
