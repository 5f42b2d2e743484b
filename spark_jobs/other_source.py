"""Rows of any other source that Spark reads (JDBC, Parquet, Cassandra, …) as the changelog would have them.

The changelog's own columns say what the values are; a column whose type in Spark cannot give them faithfully is refused
by its name. Every function here is from frame to frame.
"""

import json
from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it
from pyspark.sql import types as spark

from envelope.errors import ChangelogError, Kind
from envelope.versions import Version
from schemas.types import ColumnType, Decimal, Primitive
from spark_jobs.views import quoted

_TIME: Final = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
_WHOLE: Final = (spark.ByteType, spark.ShortType, spark.IntegerType, spark.LongType)


def rows_of(frame: DataFrame, version: Version) -> DataFrame:
    """The frame's rows as `spark_jobs.source_rows.ROWS`, without the columns that the changelog lacks.

    Raises ChangelogError (USAGE) for a column that the frame lacks, or has in a type that loses something.
    """
    entity = version.entity
    types = {field.name: field.dataType for field in frame.schema.fields}
    for name, type_ in version.columns.fields:
        if name not in types:
            known = ", ".join(types)
            raise ChangelogError(Kind.USAGE, f"--source has no column {name} of {entity}", hint=f"it has: {known}")
        if not _is_faithful(type_, types[name]):
            raise ChangelogError(
                Kind.USAGE,
                f"column {name} of {entity}: {types[name].simpleString()} cannot give what the changelog holds",
                hint="cast it in the source: of numbers, times and json the text that the database prints",
            )
    columns = dict(version.columns.fields)
    members = [
        F.concat(F.lit(("," if number else "{") + _literal(name) + ":"), _token(F.col(quoted(name)), type_))
        for number, (name, type_) in enumerate(columns.items())
    ]
    nulls = [
        F.when(F.trim(F.col(quoted(name))) == "null", F.lit(_literal(name)))
        for name, type_ in columns.items()
        if type_ is Primitive.JSON
    ]
    names = F.concat_ws(",", *nulls) if nulls else F.lit("")
    return frame.select(
        F.lit(entity).alias("entity"),
        _key([(F.col(quoted(name)), columns[name]) for name in version.key]).alias("key"),
        F.concat(*members, F.lit("}")).alias("current"),
        F.when(names != "", F.concat(F.lit("["), names, F.lit("]"))).alias("json_null"),
        F.lit(0).alias("leaf"),
        F.lit(None).cast("string").alias("ctid"),
    )


def _is_faithful(type_: ColumnType, given: spark.DataType) -> bool:
    match type_:
        case Decimal(scale=scale):
            return isinstance(given, spark.DecimalType) and given.scale == scale
        case Primitive.BOOLEAN:
            return isinstance(given, spark.BooleanType)
        case Primitive.INT | Primitive.LONG:
            return isinstance(given, _WHOLE)
        case Primitive.FLOAT:
            return isinstance(given, spark.FloatType)
        case Primitive.DOUBLE:
            return isinstance(given, spark.DoubleType)
        case Primitive.BYTES:
            return isinstance(given, spark.BinaryType)
        case Primitive.DATE:
            return isinstance(given, spark.DateType)
        case Primitive.TIMESTAMP:
            return isinstance(given, spark.TimestampNTZType)
        case Primitive.TIMESTAMP_TZ:
            return isinstance(given, spark.TimestampType)
        case Primitive():
            return isinstance(given, spark.StringType)
    return False


def _token(value: Column, type_: ColumnType) -> Column:
    """The JSON of a value; floats in Spark's spelling, which is compared by their bits."""
    match type_:
        case Primitive.BOOLEAN | Primitive.INT | Primitive.LONG | Primitive.JSON:
            token = value.cast("string")
        case Primitive.FLOAT | Primitive.DOUBLE:
            text = value.cast("string")
            token = F.when(text.isin("NaN", "Infinity", "-Infinity"), _plain(text)).otherwise(text)
        case Primitive.STRING | Primitive.UUID | Primitive.TIME:
            token = _string(value)
        case _:
            token = _plain(_text(value, type_))
    return F.coalesce(token, F.lit("null"))


def _text(value: Column, type_: ColumnType) -> Column:
    match type_:
        case Primitive.TIMESTAMP:
            return F.date_format(value, _TIME)
        case Primitive.TIMESTAMP_TZ:
            return F.concat(F.date_format(value, _TIME), F.lit("Z"))
        case Primitive.BYTES:
            return F.base64(value)
    return value.cast("string")


def _plain(text: Column) -> Column:
    return F.concat(F.lit('"'), text, F.lit('"'))


def _string(text: Column) -> Column:
    """In quotes, escaped: what stands between the brackets of an array of it."""
    array = F.to_json(F.array(text))
    return F.when(text.isNotNull(), F.substring(array, F.lit(2), F.length(array) - 2))


def _literal(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)


def _key(columns: Sequence[tuple[Column, ColumnType]]) -> Column:
    texts = [_text(value, type_) for value, type_ in columns]
    return texts[0] if len(texts) == 1 else F.to_json(F.array(*texts))
