"""Defines the section `[source]` with kind = "debezium".

The service runs Debezium itself, or reads topics to which Debezium publishes. Some keys apply only to one of the two.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

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


IN_PROCESS = frozenset({"properties", "jars", "heap_mib"})
"""Keys that apply only if the service runs Debezium itself."""

FROM_TOPICS = frozenset({"unwrapped", "added_prefix", "tombstones_delete"})
"""Keys that apply only if the service reads topics to which Debezium publishes."""


_REPEATED = {"placeholder": "unavailable.value.placeholder", "binary_handling": "binary.handling.mode"}
"""Keys of the section, each with the property of Debezium that has the same meaning."""


def _flat(value: Any) -> Any:
    """Returns Debezium's properties as texts. TOML parses `database.port = 1` as a nested table, so this function joins
    the names of nested tables with dots again.
    """
    if not isinstance(value, dict):
        return value
    flat: dict[str, Any] = {}
    for name, inner in value.items():
        if isinstance(inner, dict):
            flat |= {f"{name}.{inner_name}": text for inner_name, text in _flat(inner).items()}
        elif isinstance(inner, list):
            flat[name] = ",".join(map(str, inner))
        else:
            flat[name] = str(inner).lower() if isinstance(inner, bool) else str(inner)
    return flat


class TopicsConfig(Section):
    """`[source.topics]`: the topics with Debezium's events.

    A message in Avro contains an id of `registry_id_bytes` bytes, under which `registry` has the schema of the message.
    The service also commits its offsets to the consumer group `group`, for tools that show how far the service has
    read. By default, the group has the name of the changelog. The options in `client` are passed unchanged to
    librdkafka, and those in `registry_client` to the client of the schema registry.

    Debezium can publish the beginning and the end of each transaction to a topic. `transactions` names this topic. If
    it is set, the service publishes each transaction whole, and the messages of one transaction may have at most
    `held_mib` MiB.
    """

    bootstrap_servers: Text
    include: Columns
    exclude: tuple[Text, ...] = ()
    registry: Text | None = Field(default=None, repr=False)
    registry_client: dict[str, Any] = Field(default={}, repr=False)
    registry_id_bytes: Literal[4, 8] = 4
    group: Text | None = None
    transactions: Text | None = None
    held_mib: int = Field(default=64, ge=1, le=4096)
    client: dict[str, str] = Field(default={}, repr=False)


class DebeziumConfig(Section):
    """`[source]`: a database whose events Debezium publishes.

    `connector` names Debezium's connector. `unwrapped` says that messages are flat rows, as the transformation
    ExtractNewRecordState makes them. The names of the fields that this transformation adds begin with `added_prefix`.
    `tombstones_delete` says that this transformation turns a delete into a message without a value. `placeholder` and
    `binary_handling` are Debezium's settings `unavailable.value.placeholder` and `binary.handling.mode`.

    Events come from `topics`, or from a Debezium that the service runs. In the second case, `properties` are those of
    the connector, `jars` is the folder with its jars, and `heap_mib` is the size of Java's heap. If `placeholder` or
    `binary_handling` is not set, and `properties` has Debezium's setting, the service takes the value from there.
    """

    kind: Literal["debezium"]
    connector: Connector
    unwrapped: bool = False
    added_prefix: str = "__"
    tombstones_delete: bool = False
    placeholder: Text = "__debezium_unavailable_value"
    binary_handling: Literal["bytes", "base64", "base64-url-safe", "hex"] = "bytes"
    topics: TopicsConfig | None = None
    properties: Annotated[dict[str, str], BeforeValidator(_flat)] = Field(default={}, repr=False)
    jars: Path | None = None
    heap_mib: int = Field(default=512, ge=64, le=65_536)

    @model_validator(mode="before")
    @classmethod
    def _repeated(cls, data: Any) -> Any:
        """Sets the keys in `_REPEATED` to the values of Debezium's properties, unless the section sets these keys."""
        properties = _flat(data.get("properties")) if isinstance(data, dict) else None
        if not isinstance(properties, dict):
            return data
        return {key: properties[name] for key, name in _REPEATED.items() if name in properties} | data

    @property
    def home(self) -> str:
        """The schema of tables that are named without a schema; empty if the connector has no usual schema."""
        return _HOMES.get(self.connector, "")


def source_problems(source: DebeziumConfig) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yields each setting of `[source]` that does not fit the others, and a text with the problem and the correction.

    A setting is given as the keys that lead to it from `[source]`.
    """
    set_keys = source.model_fields_set
    if source.topics is None and "properties" not in set_keys:
        yield (
            (),
            "does not say where events come from; add [source.topics], or [source.properties] to run Debezium itself",
        )
    if source.topics is not None:
        for key in sorted(IN_PROCESS & set_keys):
            yield (key,), "does not apply to topics; leave this key out, or leave out [source.topics]"
        for key in sorted({"registry_client", "registry_id_bytes"} & source.topics.model_fields_set):
            if source.topics.registry is None:
                yield ("topics", key), "applies only with a registry; name it, or leave this key out"
        if source.topics.transactions is None and "held_mib" in source.topics.model_fields_set:
            yield ("topics", "held_mib"), "applies only if transactions names a topic; name it, or leave this key out"
        if source.topics.transactions is not None and source.unwrapped:
            text = "flat rows do not say where they are in a transaction; leave this key out, or unwrapped"
            yield ("topics", "transactions"), text
    else:
        for key in sorted(FROM_TOPICS & set_keys):
            yield (key,), "applies only to topics; leave this key out"
    for key in sorted({"added_prefix", "tombstones_delete"} & set_keys):
        if not source.unwrapped:
            yield (key,), "applies only with unwrapped = true; set that, or leave this key out"
