"""Binds a table of the log to its entity, and says how each of the table's columns is published.

A tuple is the values of one row as the log has them, in the order of the table's columns. A place is the index of a
column in the tuple.
"""

from dataclasses import dataclass

from changelog.connectors.capture.rows.codec import Codec
from changelog.envelope.entity import Entity
from changelog.schemas.types import Struct


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One published column: `index` is its place in the tuple, `label` its name in JSON, with the colon."""

    index: int
    name: str
    label: bytes
    codec: Codec
    json: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """What turns the tuples of one table into the messages of an entity.

    - `relid`: the number of the table in the log. `width`: the number of columns in a tuple.
    - `fields`: the published columns. `key`, `partition`: the columns of the entity key and of the partition key.
    - `full`: whether the log has whole old rows of the table (its replica identity is FULL).
    - `identity`: the places of the columns that an old tuple holds if it does not hold the whole row.
    - `lost`: why the rows of the table have no key, for an error; `key` and `partition` are then empty. Otherwise None.
    - `unlogged`: the names of key and partition columns that the log may leave out of an old row. `whole_rows`: the
      statement after which the log has whole old rows, for hints.
    - `crossing`: whether rows may move between partitions of the table. `leaves`: for each partition that does not log
      whole old rows, the places of the columns that it logs.
    - `mask`: the id of the masks and their secret, None without masks.
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
        """The names and the types of the published columns, in order."""
        return Struct(fields=tuple((field.name, field.codec.column_type) for field in self.fields))

    @property
    def placed_by_key(self) -> bool:
        """Whether the entity key is also the partition key."""
        return self.partition == self.key
