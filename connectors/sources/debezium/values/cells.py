"""Reads the cells in the events of Debezium's connector for Cassandra.

A cell has the value of one column, the time of its deletion if it was deleted, and a flag `set`. The flag says whether
the statement wrote the column. A column that the statement did not write has no cell, or a cell whose `set` is false.
The value of such a column is unknown.
https://debezium.io/documentation/reference/stable/connectors/cassandra.html
"""

from typing import Any, Final

import msgspec
from msgspec import Raw

from changelog.connectors.capture.rows.row_change import UNCHANGED, Value
from changelog.connectors.sources.debezium.values.tokens import Convert, ConvertValue
from changelog.envelope.connect.schema import ConnectSchema

_NULL: Final = Raw(b"null")


class _Cell(msgspec.Struct):
    value: Raw = _NULL
    set: bool | None = True


_cells: Final = msgspec.json.Decoder(_Cell)


def cell_of(schema: ConnectSchema) -> ConnectSchema | None:
    """Returns the schema of the value in a cell; None if the schema is not that of a cell."""
    if schema.type != "struct" or {name for name, _ in schema.fields} != {"value", "deletion_ts", "set"}:
        return None
    return dict(schema.fields)["value"]


def cell_converter(convert: Convert) -> Convert:
    """Returns a function that converts cells in JSON. `convert` converts the values in the cells."""

    def convert_cell(token: bytes) -> Value:
        if token == b"null":
            return UNCHANGED
        cell = _cells.decode(token)
        return convert(bytes(cell.value)) if cell.set is not False else UNCHANGED

    return convert_cell


def cell_value_converter(convert: ConvertValue) -> ConvertValue:
    """Returns a function that converts cells from an Avro decoder. `convert` converts the values in the cells."""

    def convert_cell(cell: Any) -> Value:
        return UNCHANGED if cell is None or cell.get("set") is False else convert(cell.get("value"))

    return convert_cell
