"""Reads the rows of one table, and describes the table, from the schema of its events."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

import msgspec
from msgspec import Raw

from changelog.connectors.capture.rows.codec import Codec, Shape, raw
from changelog.connectors.capture.rows.row_change import Value
from changelog.connectors.sources.debezium.decode.events import EventColumn, EventTable, Row
from changelog.connectors.sources.debezium.decode.payloads import NULL
from changelog.connectors.sources.debezium.decode.row_reader import ValueColumn, compiled, compiled_for_values
from changelog.connectors.sources.debezium.values.cells import cell_converter, cell_value_converter
from changelog.connectors.sources.debezium.values.placeholders import Placeholders
from changelog.connectors.sources.debezium.values.semantics import Semantics
from changelog.connectors.sources.debezium.values.tokens import Convert, ConvertValue, token_converter, value_converter
from changelog.envelope.connect.schema import ConnectSchema
from changelog.envelope.errors import ChangelogError, Kind
from changelog.schemas.types import Primitive

_numbers = count(1)

_members: Final = msgspec.json.Decoder(dict[str, Raw])

_TEXT: Final = ConnectSchema(type="string")

UNFIT: Final = (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError)
"""What converters raise for values that do not fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadColumn:
    """A column, with the schema of its values. `semantics` says how the values are published. `cell` says that they
    come from Cassandra, where each value is inside a cell.
    """

    name: str
    schema: ConnectSchema
    semantics: Semantics
    cell: bool = False


class RowsReader:
    """Reads rows with these columns.

    `converters` has the converter of each column's JSON tokens. `exact` reads rows in JSON that have exactly these
    columns; for other rows, and for values that do not fit, it raises one of `UNFIT`.
    """

    def __init__(self, columns: Sequence[ReadColumn], placeholders: Placeholders) -> None:
        self.columns = tuple(columns)
        self._placeholders = placeholders
        self._of_values = [(column.name, self._value_converter(column)) for column in columns]
        self.converters: dict[str, Convert] = {column.name: self._converter(column) for column in columns}
        passing = [_passing(column) for column in columns]
        self.exact = compiled([*self.converters], passing, [*self.converters.values()], placeholders.texts)
        self._values = compiled_for_values(
            [
                ValueColumn(convert=convert, type=column.schema.type, passing=_passing(column), in_cell=column.cell)
                for column, (_, convert) in zip(columns, self._of_values, strict=True)
            ],
            [value for value in placeholders.values(_TEXT) if isinstance(value, str)],
        )

    def read(self, row: Any) -> Row:
        """Reads `row`, which is JSON, or a dict or a tuple of values from an Avro decoder.

        Raises the error of `from_json`.
        """
        if isinstance(row, tuple):
            row = dict(zip(self.converters, row, strict=True))
        return self.from_values(row) if isinstance(row, dict) else self.from_json(row)

    def read_change(self, before: Any, after: Any) -> tuple[Row | None, Row | None]:
        """Returns the rows before and after a change; None for a `NULL` row. Raises the error of `from_json`."""
        try:
            if type(before) is type(after) is Raw:
                return self.exact_change(before, after)
            if type(before) is tuple or type(after) is tuple:
                return self._change_of_values(before, after)
        except UNFIT:
            pass
        return None if before == NULL else self.read(before), None if after == NULL else self.read(after)

    def exact_change(self, before: Raw, after: Raw) -> tuple[Row | None, Row | None]:
        """Does the same as `read_change`, but only for JSON with exactly these columns. Raises one of `UNFIT`."""
        if before == NULL or after == NULL:
            return None if before == NULL else self.exact.row(before), None if after == NULL else self.exact.row(after)
        return self.exact.change(before, after)

    def _change_of_values(self, before: Any, after: Any) -> tuple[Row | None, Row | None]:
        """Does the same as `read_change`, but only for rows that are tuples of values. Raises one of `UNFIT`."""
        if before is NULL or after is NULL:
            return None if before is NULL else self._values.row(*before), None if after is NULL else self._values.row(
                *after
            )
        return self._values.change(*before, *after)

    def from_json(self, text: Raw | bytes) -> Row:
        """Returns the row in a JSON object.

        Raises ChangelogError (MALFORMED) if a value does not fit its column, or if the table lacks a column of the row.
        """
        try:
            return self.exact.row(text)
        except UNFIT:  # also msgspec.ValidationError, if the row lacks a column
            return self.from_members(_members.decode(text))

    def from_members(self, members: dict[str, Raw]) -> Row:
        """Returns the row with these members, and removes them from `members`. Raises the error of `from_json`."""
        row: list[Value] = []
        for name, convert in self.converters.items():
            token = members.pop(name, None)
            try:
                row.append(convert(b"null" if token is None else bytes(token)))
            except UNFIT:
                raise unfit(name) from None
        if members:
            raise ChangelogError(Kind.MALFORMED, "a row has a column that its schema lacks")
        return tuple(row)

    def from_values(self, values: Mapping[str, Any]) -> Row:
        """Returns the row with these values, as an Avro decoder returns them. Raises the error of `from_json`."""
        try:
            return tuple([convert(values[name]) for name, convert in self._of_values])
        except UNFIT:
            raise unfit(self._wrong(values)) from None

    def _wrong(self, values: Mapping[str, Any]) -> str:
        """Returns the name of the first column whose value does not fit."""
        for name, convert in self._of_values:
            try:
                convert(values[name])
            except UNFIT:
                return name
        raise AssertionError("all values fit")

    def _value_converter(self, column: ReadColumn) -> ConvertValue:
        convert = value_converter(column.semantics, self._placeholders.values(column.schema))
        return cell_value_converter(convert) if column.cell else convert

    def _converter(self, column: ReadColumn) -> Convert:
        convert = token_converter(column.semantics, self._placeholders.tokens(column.schema))
        return cell_converter(convert) if column.cell else convert


def _passing(column: ReadColumn) -> Primitive | None:
    """Returns the type of a column if JSON tokens of the usual form are published as they are, otherwise None."""
    type_ = column.semantics.column_type
    return type_ if column.semantics.passes and not column.cell and isinstance(type_, Primitive) else None


def unfit(column: str) -> ChangelogError:
    """Returns the error of a value that does not fit the type of its column."""
    return ChangelogError(Kind.MALFORMED, f"a value of column {column} does not fit its type")


def described(name: tuple[str, str], columns: Sequence[ReadColumn], key: Sequence[str]) -> EventTable:
    """Returns the description of a table, with a number that no other description has."""
    return EventTable(
        name=name,
        number=next(_numbers),
        columns=tuple(
            EventColumn(
                name=column.name,
                codec=Codec(shape=Shape.RAW, to_json=raw, column_type=column.semantics.column_type),
                optional=column.schema.optional,
            )
            for column in columns
        ),
        key=tuple(key),
    )
