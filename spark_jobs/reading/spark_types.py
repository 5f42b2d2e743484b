"""Makes the Spark type for the rows of an entity, from its columns or from its file `schemas/<entity>.avsc`."""

import json
from collections.abc import Iterable
from pathlib import Path

from pyspark.sql.types import StructType

from changelog.envelope.errors import ChangelogError, Kind
from changelog.schemas import avro, spark
from changelog.schemas.avro import Column
from changelog.schemas.types import Struct


def of_shape(shape: Struct) -> StructType:
    """Returns the type of rows with these columns. All columns are nullable."""
    return of_columns(Column(name=name, type=type_, nullable=True) for name, type_ in shape.fields)


def of_columns(columns: Iterable[Column]) -> StructType:
    """Returns the type of rows with these columns."""
    return StructType.fromJson(spark.struct(columns))


def of_file(file: Path) -> StructType:
    """Returns the type of an entity's rows, from the entity's schema file.

    Raises ChangelogError (USAGE) if the file cannot be read or is not a schema of an entity.
    """
    try:
        return of_columns(avro.state_columns(json.loads(file.read_text("utf-8"))))
    except OSError as error:
        hint = "write it with `changelog schemas generate`"
        raise ChangelogError(Kind.USAGE, f"{file} cannot be read ({error.strerror})", hint=hint) from error
    except ValueError as error:
        hint = "write it again with `changelog schemas generate`"
        raise ChangelogError(Kind.USAGE, f"{file} is not the schema of an entity: {error}", hint=hint) from error


def columns(struct: StructType) -> tuple[Column, ...]:
    """Returns the columns from which `of_columns` makes this type.

    Raises ValueError if a column has a type that no published value has.
    """
    return spark.columns(struct.jsonValue())


def quoted(name: str) -> str:
    """Returns the name of a column, quoted for Spark's SQL."""
    escaped = name.replace("`", "``")
    return f"`{escaped}`"
