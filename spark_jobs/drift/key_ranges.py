"""Limits a comparison to a range of keys. A key is in the range if its first column is between two values.

Strings are ordered by their bytes, as in the collation "C". With an index of the column in this order, the database
need not read the rest of the table.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

from changelog.connectors.sources.fences import KeyBounds
from changelog.envelope.errors import ChangelogError, Kind
from changelog.schemas.types import ColumnType, Primitive

_LONG = range(-(2**63), 2**63)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRange:
    """The range for which a user asks: keys whose first column is at least `first`, and less than `end`.

    `first` and `end` are the texts that the user gave; None means no bound.
    """

    first: str | None = None
    end: str | None = None

    def __str__(self) -> str:
        bounds = [("from", self.first), ("below", self.end)]
        return " ".join(["keys", *(f"{word} {value}" for word, value in bounds if value is not None)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """A range of an entity's keys. `column` is the first column of the key, and `type` is the type of this column.
    `columns` says how many columns the key has. `first` and `end` are values of the column; None means no bound.
    """

    column: str
    columns: int
    type: Primitive
    first: int | str | None
    end: int | str | None

    def holds(self, key: Column) -> Column:
        """Returns the condition that a key is in the range. `key` has the canonical texts of keys. If the range has a
        bound, and the first column's value cannot be read from a text, the condition is null for this text.
        """
        text = key if self.columns == 1 else F.get(F.from_json(key, "array<string>"), F.lit(0))
        value = text.try_cast("long") if self.type in (Primitive.INT, Primitive.LONG) else text
        in_range = F.lit(True) if self.first is None else value >= F.lit(self.first)
        return in_range if self.end is None else in_range & (value < F.lit(self.end))

    def of_source(self) -> KeyBounds:
        """Returns the range in the form in which sources take it. With it, the source reads only rows in the range."""
        return KeyBounds(column=self.column, by_bytes=self.type is Primitive.STRING, first=self.first, end=self.end)


def bounds(key_range: KeyRange, entity: str, key: Sequence[tuple[str, ColumnType]]) -> Bounds:
    """Returns the range of an entity's keys. `key` has the name and the type of each key column.

    Raises ChangelogError (USAGE) if ranges do not work with the first column's type, or if a bound is not of this type.
    """
    column, type_ = key[0]
    if type_ not in (Primitive.INT, Primitive.LONG, Primitive.STRING, Primitive.UUID):
        type_name = type_ if isinstance(type_, Primitive) else type(type_).__name__
        raise ChangelogError(
            Kind.USAGE,
            f"the key of the entity {entity} begins with column {column}, whose type is {type_name}",
            hint="ranges work with integers, strings and UUIDs; --sample SHARE works with all keys",
        )
    assert isinstance(type_, Primitive)
    first, end = (None if text is None else _value(text, column, type_) for text in (key_range.first, key_range.end))
    return Bounds(column=column, columns=len(key), type=type_, first=first, end=end)


def _value(text: str, column: str, type_: Primitive) -> int | str:
    try:
        if type_ is Primitive.STRING:
            return text
        if type_ is Primitive.UUID:
            return str(uuid.UUID(text))
        if (integer := int(text)) not in _LONG:
            raise ValueError
    except ValueError:
        what = "a UUID" if type_ is Primitive.UUID else "an integer of 64 bits"
        raise ChangelogError(Kind.USAGE, f"{text!r} is not a value of column {column}: give {what}") from None
    return integer
