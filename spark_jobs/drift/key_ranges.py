"""Limits a comparison to keys between two values of their first column, on both sides.

Texts are ordered by their bytes, as in collation "C". The database can use an index on the column if the index has that
order; then a range of a very large table is compared without reading the rest.
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
    """Keys whose first column is at least `first` and less than `end`, as the user wrote them; None means no bound."""

    first: str | None = None
    end: str | None = None

    def __str__(self) -> str:
        bounds = [("from", self.first), ("below", self.end)]
        return " ".join(["keys", *(f"{word} {value}" for word, value in bounds if value is not None)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """A range of an entity's keys, which have `columns` columns, first `column`; both bounds have its type."""

    column: str
    columns: int
    type: Primitive
    first: int | str | None
    end: int | str | None

    def holds(self, key: Column) -> Column:
        """The condition that a key's canonical text is in the range; null for a text that is not such a key."""
        text = key if self.columns == 1 else F.get(F.from_json(key, "array<string>"), F.lit(0))
        value = text.try_cast("long") if self.type in (Primitive.INT, Primitive.LONG) else text
        in_range = F.lit(True) if self.first is None else value >= F.lit(self.first)
        return in_range if self.end is None else in_range & (value < F.lit(self.end))

    def of_source(self) -> KeyBounds:
        """The same range of the table's rows."""
        return KeyBounds(column=self.column, by_bytes=self.type is Primitive.STRING, first=self.first, end=self.end)


def bounds(key_range: KeyRange, entity: str, key: Sequence[tuple[str, ColumnType]]) -> Bounds:
    """The range for an entity with these key columns. Raises ChangelogError (USAGE) if their type allows no range."""
    column, type_ = key[0]
    if type_ not in (Primitive.INT, Primitive.LONG, Primitive.STRING, Primitive.UUID):
        type_name = type_ if isinstance(type_, Primitive) else type(type_).__name__
        raise ChangelogError(
            Kind.USAGE,
            f"{entity}: its key begins with {column}, which is of type {type_name}",
            hint="ranges work with integers, texts and UUIDs; --sample SHARE works with all keys",
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
        raise ChangelogError(Kind.USAGE, f"{text!r} is not a value of {column}: give {what}") from None
    return integer
