"""Turns rows of any source that Spark can read (JDBC, Parquet, Cassandra, …) into the form that rows have in the
changelog.

The values get the types that the columns have in the changelog. If the Spark type of a column cannot hold all values of
such a type exactly, an error names the column. The functions here only make DataFrames and columns; they read no rows.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it
from pyspark.sql import types as spark

from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.mask import MaskKind
from changelog.envelope.versions import Version
from changelog.schemas.spark import DIGITS_MAX, to_spark
from changelog.schemas.types import ColumnType, Decimal, Primitive
from changelog.spark_jobs.drift.mask_task import hashed
from changelog.spark_jobs.reading.spark_types import quoted

_TIME: Final = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
_INTEGERS: Final = (spark.ByteType, spark.ShortType, spark.IntegerType, spark.LongType)


@dataclass(frozen=True, slots=True, kw_only=True)
class Masks:
    """The masks that the configuration has for columns. `hmac_key` is the key for the mask `sha256`."""

    kinds: Mapping[str, MaskKind]
    hmac_key: bytes = field(repr=False)

    def hashed(self, name: str, token: Column) -> Column:
        """Returns what the service publishes for a value of the column `name`. `token` is the value as JSON.

        If the column has the mask `sha256`, this is a hash of the value; otherwise, it is `token`. Null stays null.
        """
        if self.kinds.get(name) != "sha256":
            return token
        return F.udf(partial(hashed, hmac_key=self.hmac_key))(token)


def rows_of(frame: DataFrame, version: Version, masks: Masks) -> DataFrame:
    """Converts the rows of the source to rows with the columns `changelog.connectors.sources.fences.ROWS`.

    The state of a row is masked, and has only the columns that `version` lists.

    Raises ChangelogError (USAGE) if `frame` lacks such a column. Also raises it if the column's Spark type cannot hold
    every value that the column's type in the changelog allows.
    """
    entity, columns = version.entity, dict(version.columns.fields)
    types = {field.name: field.dataType for field in frame.schema.fields}
    tokens: dict[str, Column] = {}
    nulls = []
    for name, type_ in columns.items():
        if masks.kinds.get(name) == "null":
            tokens[name] = F.lit("null")
            continue
        value, plain = F.col(quoted(name)), _plain_type(entity, name, None if name in masks.kinds else type_, types)
        tokens[name] = F.coalesce(masks.hashed(name, _token(value, plain)), F.lit("null"))
        if plain is Primitive.JSON:
            nulls.append(F.when(F.trim(value) == "null", F.lit(_literal(name))))
    members = [
        F.concat(F.lit(("," if number else "{") + _literal(name) + ":"), token)
        for number, (name, token) in enumerate(tokens.items())
    ]
    names = F.concat_ws(",", *nulls) if nulls else F.lit("")
    return frame.select(
        F.lit(entity).alias("entity"),
        _key([(F.col(quoted(name)), columns[name]) for name in version.key]).alias("key"),
        F.concat(*members, F.lit("}")).alias("current"),
        F.when(names != "", F.concat(F.lit("["), names, F.lit("]"))).alias("json_null"),
        F.lit(0).alias("leaf"),
        F.lit(None).cast("string").alias("locator"),
    )


def _plain_type(entity: str, name: str, type_: ColumnType | None, types: Mapping[str, spark.DataType]) -> ColumnType:
    """Returns the type of a column's values before masking.

    If the column is not masked, this is `type_`, the column's type in the changelog. For a masked column, `type_` is
    None, and the result follows from the column's Spark type in the source. `types` has the Spark types of all columns
    of the source.
    """
    if name not in types:
        column_names = ", ".join(types)
        raise ChangelogError(
            Kind.USAGE, f"--source has no column {name} of the entity {entity}", hint=f"it has: {column_names}"
        )
    plain = _hashed_type(types[name]) if type_ is None else type_
    if not _is_faithful(plain, types[name]):
        raise ChangelogError(
            Kind.USAGE,
            f"column {name} of the entity {entity}: {types[name].simpleString()} cannot hold the changelog's values",
            hint=_remedy(plain, masked=type_ is None),
        )
    return plain


def _remedy(type_: ColumnType, *, masked: bool) -> str:
    """Returns a hint that says which Spark type the column would need to hold every value of `type_`."""
    spark_type = to_spark(type_)
    if not isinstance(spark_type, str) or (isinstance(type_, Decimal) and type_.precision > DIGITS_MAX):
        return "no Spark type can represent them; leave out --source to compare with the service's own database"
    if spark_type != "string":
        return f"change the source so that Spark reads the column as {spark_type}"
    spelling = "as messages would spell it if it were not masked" if masked else "as messages spell it"
    return f"change the source so that Spark reads the column as string, with each value {spelling}"


def _hashed_type(spark_type: spark.DataType) -> Primitive:
    """Returns the type of a masked column that has this Spark type. Its values are hashed in the JSON of this type."""
    if isinstance(spark_type, spark.BooleanType):
        return Primitive.BOOLEAN
    return Primitive.LONG if isinstance(spark_type, _INTEGERS) else Primitive.STRING


def _is_faithful(type_: ColumnType, spark_type: spark.DataType) -> bool:
    match type_:
        case Decimal(scale=scale):
            return isinstance(spark_type, spark.DecimalType) and spark_type.scale == scale
        case Primitive.BOOLEAN:
            return isinstance(spark_type, spark.BooleanType)
        case Primitive.INT | Primitive.LONG:
            return isinstance(spark_type, _INTEGERS)
        case Primitive.FLOAT:
            return isinstance(spark_type, spark.FloatType)
        case Primitive.DOUBLE:
            return isinstance(spark_type, spark.DoubleType)
        case Primitive.BYTES:
            return isinstance(spark_type, spark.BinaryType)
        case Primitive.DATE:
            return isinstance(spark_type, spark.DateType)
        case Primitive.TIMESTAMP:
            return isinstance(spark_type, spark.TimestampNTZType)
        case Primitive.TIMESTAMP_TZ:
            return isinstance(spark_type, spark.TimestampType)
        case Primitive():
            return isinstance(spark_type, spark.StringType)
    return False


def _token(value: Column, type_: ColumnType) -> Column:
    """Returns the JSON of a value, and null for null. A float is written as Spark prints it. The database may print the
    same number differently, so floats have to be compared as numbers.
    """
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
    return token


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
    """Returns a text as a JSON string. For this, Spark writes an array with the text, and the brackets are cut off."""
    array = F.to_json(F.array(text))
    return F.when(text.isNotNull(), F.substring(array, F.lit(2), F.length(array) - 2))


def _literal(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)


def _key(columns: Sequence[tuple[Column, ColumnType]]) -> Column:
    texts = [_text(value, type_) for value, type_ in columns]
    return texts[0] if len(texts) == 1 else F.to_json(F.array(*texts))
