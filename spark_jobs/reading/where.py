"""Where a changelog is: the file log, an archive, Kafka."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from changelog.connectors.config import Config, FilesConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """The file log in the folder `path`, with its archive."""

    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """The archive that `spark_jobs/archive.py` keeps at `path`: a path, or a URI of any file system of Spark's."""

    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Kafka:
    """The topics of `prefix`. `name` is the source's name; `options` and `registry_client` are as in `[sink]`."""

    bootstrap_servers: str
    prefix: str
    name: str | None = None
    codec: str = "json"
    registry: str | None = field(default=None, repr=False)
    registry_client: Mapping[str, Any] = field(default_factory=dict, repr=False)
    options: Mapping[str, str] = field(default_factory=dict, repr=False)


Where = Files | Archive | Kafka


def where_of(config: Config) -> Files | Kafka:
    """The changelog that the service publishes to, by its configuration."""
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
    """The changelog's name in errors and plans."""
    match where:
        case Files():
            return f"the changelog in {where.path}"
        case Archive():
            return f"the archive in {where.path}"
        case Kafka():
            return f"the changelog {where.prefix} at {where.bootstrap_servers}"
