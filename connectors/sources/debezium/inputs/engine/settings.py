"""Defines the settings of a Debezium that the service runs itself, and the defaults of Debezium's properties."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

_NAMES: Mapping[str, str] = {"postgresql": "postgres"}
"""The names of connectors in the file names of Debezium's jars, where these differ from the usual names."""

_TABLES = frozenset({"db2", "mariadb", "mysql", "oracle", "postgresql", "sqlserver", "informix", "ibmi", "cockroachdb"})
"""The connectors that choose tables by `table.include.list`."""

_WITH_HISTORY = frozenset({"db2", "ibmi", "informix", "mariadb", "mysql", "oracle", "sqlserver"})
"""The connectors that keep a history of schemas."""


_BEGINS_AGAIN = frozenset({"db2", "informix", "mariadb", "mysql", "oracle", "postgresql", "sqlserver"})
"""The connectors that repeat an aborted snapshot from its beginning, with all tables."""

TABLES = "table.include.list"
"""The property that names the tables."""

MODE = "publication.autocreate.mode"
"""The property that says whether Debezium makes PostgreSQL's publication, and for which tables."""


def jar_name(connector: str) -> str:
    """Returns the name that a connector has in the file names of its jars."""
    return _NAMES.get(connector, connector)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """How Debezium runs.

    `properties` are those of the connector, as Debezium documents them. `jars` is the folder with Debezium's jars; None
    means the folder of `changelog debezium install`. `heap_mib` is the size of Java's heap.
    """

    properties: Mapping[str, str] = field(repr=False)
    jars: Path | None = None
    heap_mib: int = 512


def snapshot_id(connector: str, properties: Mapping[str, str]) -> str:
    """Returns a hash of the properties, except for secrets. If the hash changes, snapshots may read other rows.

    The result is empty for connectors that may continue a snapshot. It is also empty if a snapshot's rows come from
    several threads or databases, because then no event marks the end of the entire snapshot.
    """
    several = properties.get("snapshot.max.threads", "1") != "1" or "," in properties.get("database.names", "")
    if several or connector not in _BEGINS_AGAIN:
        return ""
    public_items = sorted(item for item in properties.items() if "password" not in item[0] and "secret" not in item[0])
    return sha256(repr(public_items).encode()).hexdigest()[:16]


def defaults(
    connector: str, java_class: str | None, name: str, tables: Collection[tuple[str, str]]
) -> Mapping[str, str]:
    """Returns the connector's properties that apply unless the configuration sets them.

    Connectors that choose tables by `table.include.list` read only `tables`. Debezium sends heartbeats, so that the
    offset also advances while these tables do not change, and the database can discard its log before the offset.
    `java_class` is the connector's class, if it is known.
    """
    properties = {
        "topic.prefix": name,
        "tombstones.on.delete": "false",
        "heartbeat.interval.ms": "10000",
        **({} if java_class is None else {"connector.class": java_class}),
    }
    if connector in _TABLES:
        properties[TABLES] = ",".join(re.escape(".".join(table)) for table in sorted(tables))
    if connector in _WITH_HISTORY:
        properties["schema.history.internal.store.only.captured.tables.ddl"] = "true"
    if connector == "postgresql":
        own = re.sub(r"[^a-z0-9_]", "_", name)
        properties |= {
            "plugin.name": "pgoutput",
            "slot.name": own,
            "publication.name": own,
            MODE: "filtered",
            "publish.via.partition.root": "true",
        }
    return properties
