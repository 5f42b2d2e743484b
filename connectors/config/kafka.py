"""`[sink] kind = "kafka"`, and what of the configuration is of topics alone."""

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field

from changelog.connectors.config.fields import CommitBytes, CommitRows, CommitSeconds, Prefix, Section, Text

TOPIC_KEYS = frozenset({"profile", "retention_days", "topic_settings"})
"""Keys of an entity that only a topic has."""

REGISTRY_KEYS = frozenset({"registry", "registry_client", "auto_register"})
"""Keys of a Kafka sink that only Avro needs."""


class KafkaConfig(Section):
    """`[sink] kind = "kafka"`: topics of one prefix. `client` and `registry_client` go to these clients as they are."""

    kind: Literal["kafka"]
    bootstrap_servers: Text
    prefix: Prefix | None = None
    codec: Literal["json", "avro"] = "json"
    registry: Text | None = Field(default=None, repr=False)
    registry_client: dict[str, Any] = Field(default={}, repr=False)
    auto_register: bool = False
    client: dict[str, str] = Field(default={}, repr=False)
    replication_factor: int | None = Field(default=None, ge=1, le=100)
    create_topics: bool = True
    on_too_large: Literal["stop", "dead-letter"] = "stop"
    transaction_timeout_seconds: int = Field(default=60, ge=10, le=900)
    commit_seconds: CommitSeconds = 0.02
    commit_bytes: CommitBytes = 64 << 20
    commit_rows: CommitRows = 100_000


def codec_problems(sink: KafkaConfig) -> Iterator[tuple[str, str]]:
    """What does not fit the codec: the key of `[sink]`, and what would be right."""
    if sink.codec == "avro" and sink.registry is None:
        yield "registry", 'is missing, and codec = "avro" needs one; add registry = "http://HOST:8081"'
    if sink.codec == "json":
        for key in sorted(REGISTRY_KEYS & sink.model_fields_set):
            yield key, 'is for codec = "avro" alone; set that, or leave it out'
