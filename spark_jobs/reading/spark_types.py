"""The Spark type of an entity's rows, from its columns or from `schemas/<entity>.avsc`."""

import json
from collections.abc import Iterable
from pathlib import Path

from pyspark.sql.types import StructType

from changelog.envelope.errors import ChangelogError, Kind
from changelog.schemas import avro, spark
from changelog.schemas.avro import Column
from changelog.schemas.types import Struct


def of_shape(shape: Struct) -> StructType:
    """The type of rows with these columns, all nullable."""
    return of_columns(Column(name=name, type=type_, nullable=True) for name, type_ in shape.fields)


def of_columns(columns: Iterable[Column]) -> StructType:
    """The type of rows with these columns."""
    return StructType.fromJson(spark.struct(columns))


def of_file(file: Path) -> StructType:
    """The type of an entity's rows by its schema file. Raises ChangelogError (USAGE) if the file is not one."""
    try:
        return of_columns(avro.state_columns(json.loads(file.read_text("utf-8"))))
    except OSError as error:
        hint = "write it with `changelog schemas generate`"
        raise ChangelogError(Kind.USAGE, f"{file} cannot be read ({error.strerror})", hint=hint) from error
    except ValueError as error:
        hint = "write it again with `changelog schemas generate`"
        raise ChangelogError(Kind.USAGE, f"{file} is not an entity's schema: {error}", hint=hint) from error


def columns(struct: StructType) -> tuple[Column, ...]:
    """The inverse of `of_columns`. Raises ValueError for a type that published values never have."""
    return spark.columns(struct.jsonValue())


def quoted(name: str) -> str:
    """A column's name as Spark's SQL takes it."""
    escaped = name.replace("`", "``")
    return f"`{escaped}`"
