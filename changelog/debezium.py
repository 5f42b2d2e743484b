"""Debezium for Python programs: `DebeziumEngine` runs a connector and passes its events to a function."""

from changelog.connectors.debezium.engine import DebeziumEngine
from changelog.connectors.debezium.events import ChangeEvent
from changelog.connectors.debezium.store import FileStore, Progress, Store

__all__ = ["ChangeEvent", "DebeziumEngine", "FileStore", "Progress", "Store"]
