"""A table of the log bound to the entity that it feeds: how each of its columns is published."""

from dataclasses import dataclass

from changelog.connectors.capture.rows.codec import Codec
from changelog.envelope.entity import Entity
from changelog.schemas.types import Struct


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One published column: its place in the tuple, and `label`, its name as a JSON member."""

    index: int
    name: str
    label: bytes
    codec: Codec
    json: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """What turns the tuples of one table into an entity's messages.

    `width` is the number of columns in a tuple. `identity` holds the places of the columns that a key-only old tuple
    carries. `lost` says why no row of the table has a key, which is then empty; `unlogged` are the columns of key and
    partition that the log may leave out of an old row, and `whole_rows` is the statement that changes that, for hints.
    `crossing` says that rows may move between partitions of the table, and `leaves` holds the identities of those
    partitions that do not log their whole old rows.
    """

    entity: Entity
    table: str
    relid: int
    width: int
    fields: tuple[Field, ...]
    key: tuple[Field, ...]
    partition: tuple[Field, ...]
    identity: frozenset[int]
    full: bool
    lost: str | None
    unlogged: tuple[str, ...]
    whole_rows: str
    crossing: bool
    leaves: frozenset[frozenset[int]]
    mask: str | None

    @property
    def shape(self) -> Struct:
        """The published columns and their types, in order."""
        return Struct(fields=tuple((field.name, field.codec.column_type) for field in self.fields))

    @property
    def placed_by_key(self) -> bool:
        """Whether the partition follows from the entity key alone."""
        return self.partition == self.key
