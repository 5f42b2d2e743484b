"""Defines the section `[sink]` with kind = "kafka", and lists the settings that apply only to Kafka or only to Avro."""

from collections.abc import Iterator
from typing import Any, Final, Literal

from pydantic import Field

from changelog.connectors.config.fields import CommitBytes, CommitRows, CommitSeconds, Prefix, Section, Text

OWN_ENVELOPE: Final = "changelog"
"""The envelope (the form of messages) that our own readers and jobs need."""

TOPIC_KEYS = frozenset({"profile", "retention_days", "topic_settings"})
"""Settings of an entity that apply to its topic, and so only to Kafka."""

REGISTRY_KEYS = frozenset({"registry", "registry_client", "auto_register"})
"""Settings of a Kafka sink that apply only to Avro."""

_TIMEOUT_COMMITS_MIN = 2
"""The timeout of a transaction must be at least this many times `commit_seconds`.

A transaction begins with the first row of a commit, so it lasts for `commit_seconds` and then for the commit itself."""


class KafkaConfig(Section):
    """`[sink] kind = "kafka"`: topics whose names begin with one prefix.

    The options in `client` are passed unchanged to librdkafka, and those in `registry_client` to the client of the
    schema registry.
    """

    kind: Literal["kafka"]
    bootstrap_servers: Text
    prefix: Prefix | None = None
    envelope: Literal["changelog", "debezium", "flat"] = "changelog"
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


def sink_problems(sink: KafkaConfig) -> Iterator[tuple[str, str]]:
    """Yields each setting of `[sink]` that does not fit the others, and a text with the problem and the correction."""
    if sink.codec == "avro" and sink.registry is None:
        yield "registry", 'is missing, and codec = "avro" needs one; add registry = "http://HOST:8081"'
    if sink.codec == "json":
        for key in sorted(REGISTRY_KEYS & sink.model_fields_set):
            yield key, 'applies only to codec = "avro"; set that codec, or leave this key out'
    if sink.transaction_timeout_seconds < _TIMEOUT_COMMITS_MIN * sink.commit_seconds:
        text = (
            f"is less than {_TIMEOUT_COMMITS_MIN} times commit_seconds ({sink.commit_seconds:g}), so the broker could "
            "abort transactions before their commit; raise it, or lower commit_seconds"
        )
        yield "transaction_timeout_seconds", text
