"""Defines the effects that a logged statement can have on tables and transactions."""

from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from changelog.connectors.sources.mysql.decode.events.events import XaId


class TableName(NamedTuple):
    """The name of a table.

    `schema` is empty if the statement names no database for the table, and the session has no current database.
    """

    schema: str
    table: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Created:
    """A table was created. `if_missing`: the statement changes nothing if the table exists."""

    table: TableName
    if_missing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Altered:
    """The columns, keys or options of a table may have changed."""

    table: TableName


@dataclass(frozen=True, slots=True, kw_only=True)
class Renamed:
    """A table was renamed, or moved to another database.

    If a statement renames several tables, the order of its `Renamed` effects matters.
    """

    table: TableName
    new: TableName


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """A table was removed, if it existed. The name may be that of a view."""

    table: TableName


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseDropped:
    """All tables of a database were removed."""

    schema: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncated:
    """A table lost all of its rows."""

    table: TableName


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionTruncated:
    """A table lost all rows of some partitions; the partitions may be gone, too."""

    table: TableName


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionExchanged:
    """Rows moved between a partition of a table and another table, which the statement may have created or removed."""

    table: TableName
    other: TableName


@dataclass(frozen=True, slots=True, kw_only=True)
class TablespaceReplaced:
    """DISCARD TABLESPACE removed a file with rows of a table, or IMPORT TABLESPACE put another file in its place."""

    table: TableName


@dataclass(frozen=True, slots=True, kw_only=True)
class Dml:
    """The statement changed rows, and the log does not contain these rows.

    `tables` has the changed table, or all names in the statement that could be the changed table. It is None if any
    table may have changed. Triggers and foreign keys can also have changed tables that are not in `tables`.
    """

    tables: frozenset[TableName] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsure:
    """The statement may have changed `table` in any way; None means any table."""

    table: TableName | None


class Verb(Enum):
    """What a statement does to a transaction."""

    BEGIN = auto()
    COMMIT = auto()
    ROLLBACK = auto()
    SAVEPOINT = auto()
    ROLLBACK_TO = auto()
    RELEASE = auto()
    XA_START = auto()
    XA_END = auto()
    XA_PREPARE = auto()
    XA_COMMIT = auto()
    XA_ROLLBACK = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Transactional:
    """A step of a transaction. Steps of savepoints have a `savepoint`, and steps of XA transactions an `xa_id`."""

    verb: Verb
    savepoint: str = ""
    xa_id: XaId | None = None


Effect = (
    Created
    | Altered
    | Renamed
    | Dropped
    | DatabaseDropped
    | Truncated
    | PartitionTruncated
    | PartitionExchanged
    | TablespaceReplaced
    | Dml
    | Unsure
    | Transactional
)
