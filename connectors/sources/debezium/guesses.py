"""Guesses the types of columns from sampled events in JSON without schemas, for `changelog init`.

In JSON, a number and a text look different, but a time may look like a number, and bytes like a text. So a person must
check the types.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import msgspec
from msgspec import Raw

from changelog.connectors.sources import TableName
from changelog.connectors.sources.debezium.decode.documents import CONNECTOR as DOCUMENTS
from changelog.connectors.sources.debezium.decode.events import Event, SourceRecord
from changelog.connectors.sources.debezium.decode.facts import table_of
from changelog.connectors.sources.debezium.decode.payloads import NULL, payloads
from changelog.connectors.sources.debezium.decode.settings import TranslationSettings
from changelog.connectors.sources.debezium.decode.tables import UNFIT
from changelog.connectors.sources.debezium.translation import translator

_members: Final = msgspec.json.Decoder(dict[str, Raw])

_LITERALS: Final[Mapping[bytes, str]] = {
    b"t": "boolean",
    b"f": "boolean",
    b'"': "string",
    b"{": "json",
    b"[": "json",
}
"""The types of values, by the first byte of their JSON. All other values except null are numbers."""

_NUMBERS: Final = frozenset({"long", "double"})


class Guesses:
    """Translates events. If messages carry no schema, guesses the types of their columns from the values."""

    def __init__(self, settings: TranslationSettings) -> None:
        self._settings = settings
        self._types: dict[TableName, dict[str, str | None]] = {}
        self._translate = translator(settings)

    def translate(self, messages: Sequence[SourceRecord]) -> Sequence[Event]:
        """Returns the events of the messages. Raises the errors of `Translator.translate`."""
        if sum(map(self._learns, messages)):
            types = {table: self.types(table) for table in self._types}
            self._translate = translator(replace(self._settings, types=types))
        return self._translate(messages)

    def types(self, table: TableName) -> Mapping[str, str]:
        """Returns the guessed types of a table's columns; no types if its messages carry schemas.

        A column that has had only nulls so far counts as text.
        """
        return {column: type_ or "string" for column, type_ in self._types.get(table, {}).items()}

    def _learns(self, message: SourceRecord) -> bool:
        """Looks at the values of a message. Returns whether they change the guessed type of a column."""
        try:
            payload = payloads.decode(message.value or b"null")
            source = payload.source
            name = None if source is None or source.connector == DOCUMENTS else table_of(source)
            sides = [_members.decode(side) for side in (payload.before, payload.after) if side != NULL]
        except UNFIT:
            return False  # not an event in plain JSON; the translation reports errors
        if name is None or not sides:
            return False
        types = self._types.setdefault(name, {})
        before = dict(types)
        value_of = _in_cell if source is not None and source.connector == "cassandra" else bytes
        for column, value in (item for side in sides for item in side.items()):
            types[column] = _joined(types.get(column), _type_of(value_of(value)))
        return types != before


def _in_cell(cell: Raw) -> bytes:
    """Returns the value in a cell of Cassandra."""
    return bytes(cell if cell == NULL else _members.decode(cell).get("value", NULL))


def _type_of(token: bytes) -> str | None:
    """Returns the type of a value in JSON; None for a null."""
    if token == b"null":
        return None
    if token[:1] in _LITERALS:
        return _LITERALS[token[:1]]
    return "long" if token.lstrip(b"-").isdigit() else "double"


def _joined(first: str | None, second: str | None) -> str | None:
    """Returns the type of a column that has values of both types."""
    if first is None or second is None or first == second:
        return first or second
    return "double" if {first, second} <= _NUMBERS else "json"
