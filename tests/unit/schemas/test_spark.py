"""Tests that column types are converted to Spark's types and back as docs/reference/types.md says."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from changelog.schemas import avro, spark
from changelog.schemas.avro import Column
from changelog.schemas.types import Array, ColumnType, Decimal, Map, Primitive, Struct
from tests.unit.schemas.strategies import shapes

P = Primitive
DOCS = Path(__file__).parents[3] / "docs" / "reference" / "types.md"


def column(name: str, type_: ColumnType, *, nullable: bool = True) -> Column:
    return Column(name=name, type=type_, nullable=nullable)


@pytest.mark.parametrize(
    ("type_", "spark_type"),
    [
        (P.BOOLEAN, "boolean"),
        (P.INT, "integer"),
        (P.LONG, "long"),
        (P.FLOAT, "float"),
        (P.DOUBLE, "double"),
        (P.STRING, "string"),
        (P.BYTES, "binary"),
        (P.DATE, "date"),
        (P.TIMESTAMP, "timestamp_ntz"),
        (P.TIMESTAMP_TZ, "timestamp"),
        (Decimal(precision=38, scale=2), "decimal(38,2)"),
        (Array(element=P.INT), {"type": "array", "elementType": "integer", "containsNull": True}),
        (
            Map(value=P.STRING),
            {"type": "map", "keyType": "string", "valueType": "string", "valueContainsNull": True},
        ),
        (
            Struct(fields=(("n", P.INT),)),
            {"type": "struct", "fields": [{"name": "n", "type": "integer", "nullable": True, "metadata": {}}]},
        ),
    ],
)
def test_each_type_maps_to_a_spark_type_and_back(type_: ColumnType, spark_type: Any) -> None:
    assert spark.to_spark(type_) == spark_type
    assert spark.of_spark(spark_type) == type_


@pytest.mark.parametrize("type_", [P.UUID, P.TIME, P.JSON, Decimal(precision=39, scale=2)])
def test_types_that_are_strings_in_spark_are_kept_as_metadata(type_: ColumnType) -> None:
    assert spark.to_spark(type_) == "string"
    row = spark.struct([column("a", type_), column("b", Array(element=type_)), column("c", P.STRING)])
    assert [bool(field["metadata"]) for field in row["fields"]] == [True, True, False]
    assert spark.columns(row) == (column("a", type_), column("b", Array(element=type_)), column("c", P.STRING))


def test_the_narrow_integers_of_other_writers_are_integers() -> None:
    assert [spark.of_spark(name) for name in ("byte", "short", "integer")] == [P.INT] * 3


@pytest.mark.parametrize(
    "spark_type",
    ["void", "variant", "interval day", {"type": "udt"}, {"type": "map", "keyType": "integer", "valueType": "long"}],
)
def test_a_type_that_no_value_has_is_refused(spark_type: Any) -> None:
    with pytest.raises(ValueError, match="no published value has"):
        spark.of_spark(spark_type)


def test_only_a_row_has_columns() -> None:
    with pytest.raises(ValueError, match="is not a struct"):
        spark.columns("long")


@given(shapes)
def test_any_row_survives_the_round_trip(shape: Struct) -> None:
    columns = tuple(column(name, type_, nullable=number > 0) for number, (name, type_) in enumerate(shape.fields))
    assert spark.columns(spark.struct(columns)) == columns


NAMES = {"int": "integer", "bigint": "long"}


def test_the_documentation_names_the_same_spark_types() -> None:
    """For each Avro type, the table on the page names the Spark type that the code returns."""
    documented = {}
    for line in DOCS.read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == 7 and re.match(r"^(?:`|anything|enum)", cells[1]):
            documented[cells[4]] = cells[5]
    simple = {
        "boolean": P.BOOLEAN, "int": P.INT, "long": P.LONG, "float": P.FLOAT, "double": P.DOUBLE, "string": P.STRING,
        "bytes": P.BYTES, "int, date": P.DATE, "long, time-micros": P.TIME, "string, uuid": P.UUID,
        "long, local-timestamp-micros": P.TIMESTAMP, "long, timestamp-micros": P.TIMESTAMP_TZ,
    }  # fmt: skip
    for text, type_ in simple.items():
        assert spark.to_spark(type_) == NAMES.get(documented[text], documented[text]), text
    assert documented["map of string or null"] == "map<string,string>"
    assert avro.has_outside(P.DATE)
