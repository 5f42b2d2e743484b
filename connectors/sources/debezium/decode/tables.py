"""Reads the rows of one table; describes the table and converts its columns, as the schema of the events says."""

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Final

import msgspec
from msgspec import Raw

from changelog.connectors.capture.rows.codec import Codec, Shape, raw
from changelog.connectors.capture.rows.row_change import Value
from changelog.connectors.sources.debezium.decode.events import Column, Row, Table
from changelog.connectors.sources.debezium.values.placeholders import Placeholders
from changelog.connectors.sources.debezium.values.semantics import Semantics
from changelog.connectors.sources.debezium.values.tokens import Convert, token_converter
from changelog.envelope.connect.schema import ConnectSchema
from changelog.envelope.errors import ChangelogError, Kind

_numbers = count(1)

_members: Final = msgspec.json.Decoder(dict[str, Raw])

UNFIT: Final = (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError)
"""What converters raise for values that do not fit."""


class ReadColumn(msgspec.Struct, frozen=True):
    """A column with the schema of its values, and how they are published."""

    name: str
    schema: ConnectSchema
    semantics: Semantics


class Rows:
    """Reads rows with these columns."""

    def __init__(self, columns: Sequence[ReadColumn], placeholders: Placeholders) -> None:
        self.columns = tuple(columns)
        self._json: list[tuple[str, Convert]] = [
            (column.name, token_converter(column.semantics, placeholders.tokens(column.schema))) for column in columns
        ]

    def from_json(self, text: Raw | bytes) -> Row:
        """Returns the row in a JSON object. Raises ChangelogError (MALFORMED), with the name of the column."""
        members = _members.decode(text)
        row: list[Value] = []
        for name, convert in self._json:
            token = members.pop(name, None)
            try:
                row.append(None if token is None else convert(bytes(token)))
            except UNFIT:
                raise unfit(name) from None
        if members:
            raise ChangelogError(Kind.MALFORMED, "a row has a column that its schema lacks")
        return tuple(row)

    def converters(self) -> Mapping[str, Convert]:
        """Returns the converter of each column's JSON tokens."""
        return dict(self._json)


def unfit(column: str) -> ChangelogError:
    """Returns the error of a value that does not fit the type of its column."""
    return ChangelogError(Kind.MALFORMED, f"a value of column {column} does not fit its type")


def described(name: tuple[str, str], columns: Sequence[ReadColumn], key: Sequence[str]) -> Table:
    """Describes a table, with a new number."""
    return Table(
        name=name,
        number=next(_numbers),
        columns=tuple(
            Column(
                name=column.name,
                codec=Codec(shape=Shape.RAW, to_json=raw, column_type=column.semantics.column_type),
                optional=column.schema.optional,
            )
            for column in columns
        ),
        key=tuple(key),
    )
