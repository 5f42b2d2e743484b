"""The section `[source]` with kind = "debezium", and the settings of entities that apply only to it."""

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field

from changelog.connectors.config.fields import Columns, Section, Text

Connector = Literal[
    "cassandra",
    "cockroachdb",
    "db2",
    "ibmi",
    "informix",
    "mariadb",
    "mongodb",
    "mysql",
    "oracle",
    "postgresql",
    "spanner",
    "sqlserver",
    "vitess",
    "yashandb",
]

_HOMES = {"cockroachdb": "public", "postgresql": "public", "sqlserver": "dbo"}


class TopicsConfig(Section):
    """`[source.topics]`: the topics with Debezium's events.

    Messages in Avro have the ids of their schemas in `registry`, which take up `registry_id_bytes`. Offsets are also
    committed to the consumer group `group`, for tools that show how far it is; by default it is named as the changelog.
    The options in `client` are passed unchanged to librdkafka, and those in `registry_client` to the client of the
    schema registry.
    """

    bootstrap_servers: Text
    include: Columns
    exclude: tuple[Text, ...] = ()
    registry: Text | None = Field(default=None, repr=False)
    registry_client: dict[str, Any] = Field(default={}, repr=False)
    registry_id_bytes: Literal[4, 8] = 4
    group: Text | None = None
    client: dict[str, str] = Field(default={}, repr=False)


class DebeziumConfig(Section):
    """`[source]`: a database whose events Debezium publishes.

    `connector` is Debezium's connector. `unwrapped` says that messages are flat rows, as the transformation
    ExtractNewRecordState makes them; the fields that it adds have the prefix `added_prefix`. `tombstones_delete` says
    that this transformation leaves only a message without value of a delete. `placeholder` is Debezium's setting
    `unavailable.value.placeholder`.
    """

    kind: Literal["debezium"]
    connector: Connector
    unwrapped: bool = False
    added_prefix: str = "__"
    tombstones_delete: bool = False
    placeholder: Text = "__debezium_unavailable_value"
    topics: TopicsConfig

    @property
    def home(self) -> str:
        """The schema of the tables that are named without a schema; empty if the connector has no usual one."""
        return _HOMES.get(self.connector, "")


def source_problems(source: DebeziumConfig) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yields each setting of `[source]` that does not fit the others, and a text with the problem and the correction.

    A setting is given as its keys below `[source]`.
    """
    for key in sorted({"registry_client", "registry_id_bytes"} & source.topics.model_fields_set):
        if source.topics.registry is None:
            yield ("topics", key), "applies only with a registry; name it, or leave this key out"
    for key in sorted({"added_prefix", "tombstones_delete"} & source.model_fields_set):
        if not source.unwrapped:
            yield (key,), "applies only with unwrapped = true; set that, or leave this key out"
