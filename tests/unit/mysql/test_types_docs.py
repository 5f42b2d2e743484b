"""Tests that docs/reference/types.md lists every type of MySQL and MariaDB that can be published.

For each type, the page must name its *neutral type*: the type that such a column has in the changelog's schemas.
"""

import re
from pathlib import Path

import pytest

from changelog.connectors.sources.mysql.values.columns import LogColumn
from changelog.connectors.sources.mysql.values.type_codes import TypeCode
from changelog.connectors.sources.mysql.values.types import BINARY, DECLARED, codec_for
from changelog.envelope.errors import ChangelogError
from changelog.schemas.types import Array, Decimal, Primitive, Struct
from tests.unit.mysql.value_columns import UTF8MB4, column, decimal_meta

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "types.md"
SECTION = "## MySQL and MariaDB"
ROWS = "| `", "| MariaDB's"

NAMES = {
    TypeCode.TINY: "tinyint",
    TypeCode.SHORT: "smallint",
    TypeCode.INT24: "mediumint",
    TypeCode.LONG: "int",
    TypeCode.LONGLONG: "bigint",
    TypeCode.YEAR: "year",
    TypeCode.FLOAT: "float",
    TypeCode.DOUBLE: "double",
    TypeCode.NEWDECIMAL: "decimal(p,s)",
    TypeCode.BIT: "bit(n)",
    TypeCode.DATE: "date",
    TypeCode.NEWDATE: "date",
    TypeCode.TIME: "time(n)",
    TypeCode.TIME2: "time(n)",
    TypeCode.DATETIME: "datetime(n)",
    TypeCode.DATETIME2: "datetime(n)",
    TypeCode.TIMESTAMP: "timestamp(n)",
    TypeCode.TIMESTAMP2: "timestamp(n)",
    TypeCode.STRING: "char",
    TypeCode.VAR_STRING: "varchar",
    TypeCode.VARCHAR: "varchar",
    TypeCode.VARCHAR_COMPRESSED: "varchar",
    TypeCode.TINY_BLOB: "text",
    TypeCode.BLOB: "text",
    TypeCode.BLOB_COMPRESSED: "text",
    TypeCode.MEDIUM_BLOB: "text",
    TypeCode.LONG_BLOB: "text",
    TypeCode.ENUM: "enum",
    TypeCode.SET: "set",
    TypeCode.JSON: "json",
    TypeCode.GEOMETRY: "geometry",
    TypeCode.VECTOR: "vector",
}
"""For each type in the log: its name on the page. A text type and its binary type have the same code (see BYTES)."""

BYTES = {"char": "binary", "varchar": "varbinary", "text": "blob"}
"""Maps the name of a text type to the name of the binary type that has the same code in the log."""

OTHERS = [
    ("int unsigned", column(TypeCode.LONG, unsigned=True)),
    ("bigint unsigned", column(TypeCode.LONGLONG, unsigned=True)),
    *((name, column(TypeCode.STRING, 16, collation=BINARY, declared=name)) for name in DECLARED),
]


def page_types() -> dict[str, list[str]]:
    """Maps the name of each type on the page to its neutral types."""
    lines = PAGE.read_text("utf-8").partition(SECTION)[2].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith(ROWS)]
    return {name: re.split(r", (?![0-9])", row[-1].strip()) for row in rows for name in re.findall("`([^`]+)`", row[0])}


def known() -> list[TypeCode]:
    """Returns the codes of the types that can be published."""
    codes = []
    for code in TypeCode:
        try:
            codec_for(column(code, decimal_meta(9, 2), collation=UTF8MB4))
        except ChangelogError:
            continue
        codes.append(code)
    return codes


def neutral(of: LogColumn) -> str:
    """The neutral type of a column, as the page writes it."""
    match codec_for(of).column_type:
        case Decimal(precision=20, scale=0):
            return "decimal(20,0)"
        case Decimal():
            return "decimal(p,s)"
        case Struct():
            return "struct of long and bytes"
        case Array(element=Primitive() as element):
            return f"array of {element}"
        case other:
            return str(other)


def test_every_type_that_can_be_published_has_a_name_on_the_page() -> None:
    assert set(known()) == NAMES.keys()


@pytest.mark.parametrize("code", NAMES)
def test_the_page_names_the_neutral_type_of_each_type(code: TypeCode) -> None:
    types = page_types()
    assert neutral(column(code, decimal_meta(9, 2), collation=UTF8MB4)) in types[NAMES[code]]
    if NAMES[code] in BYTES:
        assert neutral(column(code, collation=BINARY)) in types[BYTES[NAMES[code]]]


@pytest.mark.parametrize(("name", "of"), OTHERS)
def test_the_page_names_the_neutral_type_of_each_variant(name: str, of: LogColumn) -> None:
    assert neutral(of) in page_types()[name]
