"""Describes where a changelog is stored: in a file log, in an archive, or in Kafka."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from changelog.connectors.config import Config, FilesConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """A file log in the folder `path`. The same folder has the archive of the log's older files."""

    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """An archive that `spark_jobs/archive.py` has written. `path` is a path, or a URI that Spark supports."""

    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Kafka:
    """The topics of a Kafka cluster whose names begin with `prefix` and a dot.

    `name` is the name of the service. `bootstrap_servers`, `codec`, `registry` and `registry_client` are the settings
    in `[sink]` with the same names; `options` is the setting `client`.
    """

    bootstrap_servers: str
    prefix: str
    name: str | None = None
    codec: str = "json"
    registry: str | None = field(default=None, repr=False)
    registry_client: Mapping[str, Any] = field(default_factory=dict, repr=False)
    options: Mapping[str, str] = field(default_factory=dict, repr=False)


Where = Files | Archive | Kafka


def where_of(config: Config) -> Files | Kafka:
    """Returns where a service with this configuration stores its changelog."""
    sink = config.sink
    if isinstance(sink, FilesConfig):
        return Files(path=sink.path)
    return Kafka(
        bootstrap_servers=sink.bootstrap_servers,
        prefix=config.prefix,
        name=config.name,
        codec=sink.codec,
        registry=sink.registry,
        registry_client=sink.registry_client,
        options=sink.client,
    )


def name_of(where: Where) -> str:
    """Returns the name of the changelog in the texts of errors."""
    match where:
        case Files():
            return f"the changelog in {where.path}"
        case Archive():
            return f"the archive in {where.path}"
        case Kafka():
            return f"the changelog {where.prefix} at {where.bootstrap_servers}"
