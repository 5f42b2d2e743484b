"""Binds a table to its entity, and says how each of the table's columns is published.

*Log* means the database's log. A *tuple* has the values of one row, as the log has them, in the order of the table's
columns. The *place* of a column is its index in the tuple.
"""

from dataclasses import dataclass

from changelog.connectors.capture.rows.codec import Codec
from changelog.envelope.entity import Entity
from changelog.schemas.types import Struct


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One published column.

    `index` is its place in the tuple. `label` is its name in a JSON object, with quotes and colon: `"name":`. `json` is
    true if the column has a JSON type and is not masked.
    """

    index: int
    name: str
    label: bytes
    codec: Codec
    json: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """The facts that are needed to turn the tuples of one table into the messages of an entity.

    - `relid`: the number of the table in the log. `width`: the number of columns in a tuple.
    - `fields`: the published columns. `key`, `partition`: the columns of the entity key and of the partition key.
    - `full`: whether the log has complete old rows of the table (because its replica identity is FULL).
    - `identity`: the places of the columns in the table's replica identity. An old tuple that is not a complete row has
      only the values of these columns.
    - `lost`: the error message that says why the table's rows have no key, and None if they have one. If it is set,
      `key` and `partition` are empty.
    - `unlogged`: the names of key and partition columns that the log may leave out of an old row. `whole_rows`: the
      SQL statement that makes the database log complete old rows; hints quote it.
    - `crossing`: whether rows may move between partitions of the table. `leaves`: the replica identities of those
      partitions whose old rows are incomplete in the log. Each identity is given as the places of its columns.
    - `mask`: an id of the masks and their secret; None if nothing is masked.
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
