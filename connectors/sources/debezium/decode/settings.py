"""Defines the settings by which Debezium's messages are translated to events."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from changelog.envelope.errors import ChangelogError, Kind

PLACEHOLDER = "__debezium_unavailable_value"
"""The default of Debezium's setting `unavailable.value.placeholder`."""


def _unknown_schema(number: int) -> Any:
    raise ChangelogError(
        Kind.PRECONDITION,
        f"a message seems to be in Avro with schema {number}, and no registry is configured",
        hint="name the registry in [source.topics] registry",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslationSettings:
    """The settings of the translation.

    - `tables`: the tables whose rows are translated; None for all. Rows of other tables are ignored.
    - `types`: the declared types of columns, by table and column. A declared type is one of our own types, such as
      `long`, or a semantic type of Debezium, such as `MicroTimestamp` (see `declared_types`). It replaces the type that
      the column has in the schema of a message.
    - `unwrapped`: whether messages are flat rows, as the transformation ExtractNewRecordState makes them.
      `added_prefix` is the prefix of the fields and the headers that the transformation adds. `tombstones_delete` says
      that a message without a value deletes the row: the transformation turned the delete into this message.
      `connector` is the connector of rows that do not name one.
    - `placeholder`: Debezium's setting `unavailable.value.placeholder`.
    - `schema_of`: returns the Avro schema with the given id in the registry, as JSON. `id_bytes`: how many bytes of a
      message hold the id. This is 4; with converters of Apicurio's registry, it may be 8, or 0 if the id is in the
      headers.
    - `binary`: Debezium's setting `binary.handling.mode`, for the content of logical messages.
    - `warn`: takes a sentence about something that is translated, but may not be what the user expects. Each sentence
      is passed once.
    """

    tables: frozenset[tuple[str, str]] | None = None
    types: Mapping[tuple[str, str], Mapping[str, str]] = field(default_factory=dict)
    unwrapped: bool = False
    added_prefix: str = "__"
    tombstones_delete: bool = False
    connector: str = ""
    placeholder: str = PLACEHOLDER
    schema_of: Callable[[int], Any] = _unknown_schema
    id_bytes: Literal[0, 4, 8] = 4
    binary: Literal["bytes", "base64", "base64-url-safe", "hex"] = "bytes"
    warn: Callable[[str], None] = lambda _: None
