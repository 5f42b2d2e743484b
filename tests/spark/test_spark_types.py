"""Tests that the columns of an entity become types of Spark, and can be read back from Spark's types."""

import importlib.resources
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import DecimalType, LongType, StringType, StructField, StructType

from changelog.envelope.errors import ChangelogError
from changelog.schemas.avro import Column
from changelog.schemas.types import Array, Decimal, Primitive, Struct
from changelog.spark_jobs.reading import spark_types

P = Primitive


def test_a_schema_in_the_package_becomes_a_type_of_rows() -> None:
    file = Path(str(importlib.resources.files("changelog.schemas").joinpath("order.avsc")))
    order = spark_types.of_file(file)
    assert order["id"] == StructField("id", LongType(), nullable=False)
    assert order["amount"] == StructField("amount", DecimalType(10, 2), nullable=True)
    assert [column.type for column in spark_types.columns(order)][:3] == [P.LONG, P.LONG, P.STRING]


def test_spark_returns_the_columns_that_it_stored(spark: SparkSession, tmp_path: Path) -> None:
    columns = (
        Column(name="id", type=P.UUID, nullable=True),
        Column(name="a b", type=Array(element=Struct(fields=(("at", P.TIME), ("doc", P.JSON)))), nullable=True),
        Column(name="long", type=Decimal(precision=50, scale=3), nullable=True),
    )
    spark.createDataFrame([], spark_types.of_columns(columns)).write.parquet(str(tmp_path / "rows"))
    assert spark_types.columns(spark.read.parquet(str(tmp_path / "rows")).schema) == columns


def test_columns_without_a_key_may_all_be_null() -> None:
    type_ = spark_types.of_shape(Struct(fields=(("id", P.STRING),)))
    assert type_ == StructType([StructField("id", StringType(), nullable=True)])


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "cannot be read"), ("{", "is not the schema of an entity"), ('"int"', "is not the schema of an entity")],
)
def test_a_file_that_is_no_schema_is_reported_in_one_line(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "order.avsc").write_text(text, "utf-8")
    with pytest.raises(ChangelogError, match=f"order.avsc {message}.*changelog schemas generate") as caught:
        spark_types.of_file(tmp_path / "order.avsc")
    assert "\n" not in str(caught.value)
