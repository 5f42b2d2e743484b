"""Reads and checks the configuration, a TOML file. Environment variables can override its settings. The file is read
once, at the start.

`load` reports all problems at once. The file refers to secrets by `"env:NAME"` or `"file:PATH"`. No error message and
no `repr` shows a secret.
"""

from changelog.connectors.config.console import ConsoleConfig
from changelog.connectors.config.debezium import DebeziumConfig, TopicsConfig
from changelog.connectors.config.entities import (
    DriftConfig,
    EntityConfig,
    ProvenanceConfig,
    SchemasConfig,
    StampConfig,
    TablesConfig,
)
from changelog.connectors.config.files import FilesConfig
from changelog.connectors.config.kafka import OWN_ENVELOPE, KafkaConfig
from changelog.connectors.config.loading import load, raise_problems, secret_of
from changelog.connectors.config.model import Config, MaskConfig, ServiceConfig, SignalsConfig, SinkConfig
from changelog.connectors.config.mysql import MysqlConfig
from changelog.connectors.config.postgres import PostgresConfig
from changelog.connectors.config.state import StateConfig
from changelog.connectors.config.views import (
    NestedConfig,
    ServeConfig,
    ServedConfig,
    SessionConfig,
    StreamsConfig,
    ThrottleConfig,
    TotalsConfig,
    ViewConfig,
    WindowConfig,
)
from changelog.connectors.config.web import WebConfig

__all__ = [
    "OWN_ENVELOPE",
    "Config",
    "ConsoleConfig",
    "DebeziumConfig",
    "DriftConfig",
    "EntityConfig",
    "FilesConfig",
    "KafkaConfig",
    "MaskConfig",
    "MysqlConfig",
    "NestedConfig",
    "PostgresConfig",
    "ProvenanceConfig",
    "SchemasConfig",
    "ServeConfig",
    "ServedConfig",
    "ServiceConfig",
    "SessionConfig",
    "SignalsConfig",
    "SinkConfig",
    "StampConfig",
    "StateConfig",
    "StreamsConfig",
    "TablesConfig",
    "ThrottleConfig",
    "TopicsConfig",
    "TotalsConfig",
    "ViewConfig",
    "WebConfig",
    "WindowConfig",
    "load",
    "raise_problems",
    "secret_of",
]
