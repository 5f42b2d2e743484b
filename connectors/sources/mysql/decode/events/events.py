"""Defines a dataclass for each kind of event in the binary log; `event_reader` decodes them.

No code changes an event. Still, the classes of frequent events are not frozen: objects of frozen classes take three
times as long to make, and a log of small transactions has five or six events for each change.

Sources: MySQL's source documentation, "Binlog Event", and MariaDB's "Replication Protocol".
"""

from dataclasses import dataclass
from enum import Enum, StrEnum
from functools import lru_cache
from uuid import UUID

from changelog.connectors.sources.mysql.decode.events.dialect import Dialect
from changelog.connectors.sources.mysql.decode.events.header import Header
from changelog.connectors.sources.mysql.decode.events.table_maps.table_description import TableDescription, describe
from changelog.connectors.sources.mysql.values.columns import LogColumn


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotate:
    """The log continues at the offset `position` of `file`. The server also sends this before a file's first event."""

    header: Header
    file: str
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatDescription:
    """The first event of a file. It says in which form the other events of the file are stored.

    `has_checksums` says that each event ends with a CRC32. Byte n - 1 of `header_sizes` is the size of the fixed part
    that follows the header in events of type n.
    """

    header: Header
    server_version: str
    created_s: int
    has_checksums: bool
    header_sizes: bytes

    @property
    def dialect(self) -> Dialect:
        """How the server writes table maps."""
        return Dialect.of(self.server_version)


@dataclass(slots=True, kw_only=True)
class MysqlGtid:
    """A transaction of MySQL begins. `number` counts the transactions of `server_uuid` and `tag`; `tag` may be empty.

    `original_commit_us` is when the server that first ran the transaction committed it, and `immediate_commit_us` is
    when the sending server committed it, both in microseconds since 1970 UTC. `transaction_bytes` is the transaction's
    size in the log, including this event. Each of these three is None if the server does not write it.
    """

    header: Header
    server_uuid: UUID
    tag: str = ""
    number: int
    original_commit_us: int | None
    immediate_commit_us: int | None
    transaction_bytes: int | None

    @property
    def text(self) -> str:
        """The id as the server prints it."""
        return f"{_printed(self.server_uuid)}{self.tag and ':'}{self.tag}:{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnonymousGtid:
    """A transaction of MySQL without an id begins; the server writes this while `gtid_mode` is not ON."""

    header: Header
    original_commit_us: int | None
    immediate_commit_us: int | None
    transaction_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class XaId:
    """The id of an XA transaction."""

    format_id: int
    gtrid: bytes
    bqual: bytes


class AlterPhase(Enum):
    """Which part of an ALTER a transaction is, if MariaDB logs the ALTER in two parts (`binlog_alter_two_phase`).

    The first part is START, and the second one COMMIT or ROLLBACK.
    """

    START = "start"
    COMMIT = "commit"
    ROLLBACK = "rollback"


@dataclass(slots=True, kw_only=True)
class MariadbGtid:
    """A transaction of MariaDB begins, with the id `domain_id`-`server_id`-`sequence`.

    - `standalone`: the transaction consists of the next event only, without a further event that ends it.
    - `transactional`: it can be rolled back, because it changed only tables of transactional engines.
    - `ddl`: it is a statement that changes definitions.
    - `xa_prepare`: it prepares the XA transaction `xa_id`. `xa_complete`: it commits this transaction or rolls it back.
    - `alter`: which part of a two-phase ALTER it is. `alter_start`: in the second part, the sequence of the first part.
    - `commit_id`: a number that is the same for all transactions that were committed together.
    """

    header: Header
    domain_id: int
    sequence: int
    standalone: bool
    transactional: bool
    ddl: bool
    xa_prepare: bool = False
    xa_complete: bool = False
    xa_id: XaId | None = None
    alter: AlterPhase | None = None
    alter_start: int | None = None
    commit_id: int | None = None

    @property
    def server_id(self) -> int:
        """The id of the server that first ran the transaction."""
        return self.header.server_id

    @property
    def text(self) -> str:
        """The id as the server prints it."""
        return f"{self.domain_id}-{self.server_id}-{self.sequence}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviousGtids:
    """The transactions in all files of MySQL's log before this one, as a set in the server's binary form."""

    header: Header
    encoded: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GtidList:
    """For each domain and server, the last transaction in the files of MariaDB's log before this one.

    Each transaction is given by its domain id, server id and sequence.
    """

    header: Header
    gtids: tuple[tuple[int, int, int], ...]


@dataclass(slots=True, kw_only=True)
class Query:
    """A statement. `sql` is its text, in the character set of the collation with the id `client_collation`.

    `database` is the session's current database. `sql_mode` has the server's bits for this setting. The statement began
    `microseconds` after the header's timestamp. `sql_mode`, `client_collation` and `microseconds` are None if the event
    lacks them.
    """

    header: Header
    thread_id: int
    error_code: int
    database: str
    sql: bytes
    sql_mode: int | None = None
    client_collation: int | None = None
    microseconds: int | None = None

    @property
    def ansi_quotes(self) -> bool:
        """Whether double quotes enclose names instead of texts (the SQL mode `ANSI_QUOTES`)."""
        return bool((self.sql_mode or 0) & 1 << 2)

    @property
    def no_backslash_escapes(self) -> bool:
        """Whether a backslash in a text is an ordinary character."""
        return bool((self.sql_mode or 0) & 1 << 20)


@dataclass(slots=True, kw_only=True)
class Xid:
    """A transaction was committed. `number` is the server's internal number of the transaction."""

    header: Header
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class XaPrepare:
    """An XA transaction was prepared; with `one_phase`, it was committed instead, without being prepared first."""

    header: Header
    xa_id: XaId
    one_phase: bool


@dataclass(slots=True, kw_only=True)
class TableMap:
    """Describes a table. Up to the end of the statement, events with rows refer to this table by `table_id`.

    The names are decoded together with the event, but the columns only when a property needs them. So a table that
    nobody publishes cannot stop the reader, even if it has columns of an unknown type. `body` has the encoded names and
    columns. Each property raises ChangelogError (MALFORMED) if the columns cannot be decoded.
    """

    header: Header
    table_id: int
    flags: int
    schema: str
    table: str
    body: bytes
    dialect: Dialect

    @property
    def description(self) -> TableDescription:
        """Everything that the event says of the table. Events with the same `body` share one cached object."""
        return describe(self.body, self.dialect)

    @property
    def columns(self) -> tuple[LogColumn, ...] | None:
        """The columns; None if the server does not log their names (`binlog_row_metadata` is not FULL)."""
        return self.description.columns

    @property
    def primary_key(self) -> tuple[int, ...]:
        """The indexes of the primary key's columns, in the order of the key; empty if there is none."""
        return self.description.primary_key


class Operation(StrEnum):
    """What happened to rows."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"


ENDS_STATEMENT = 1
"""The flag that marks a statement's last event with rows."""


@dataclass(slots=True, kw_only=True)
class RowsEvent:
    """Rows of one table that were inserted, updated or deleted. The module `row_images` decodes the rows.

    - `width`: the number of columns of the table.
    - `before`, `after`: bitmaps of the columns that the old rows and the new rows contain; None if there are no such
      rows. Column 0 is the lowest bit of byte 0. Unused bits are 0.
    - `partial`: new rows can contain JSON diffs (`PARTIAL_UPDATE_ROWS`).
    - `body`: the rows, decompressed if they were compressed. `offset`: where the rows, compressed or not, begin in the
      event.
    - `ends_statement`: it is the statement's last event with rows; after it, the table maps are no longer valid.
    """

    header: Header
    table_id: int
    operation: Operation
    flags: int
    width: int
    before: bytes | None
    after: bytes | None
    partial: bool
    body: bytes | memoryview
    offset: int

    @property
    def ends_statement(self) -> bool:
        """Whether this is the statement's last event with rows."""
        return bool(self.flags & ENDS_STATEMENT)


@dataclass(slots=True, kw_only=True)
class RowsQuery:
    """The text of the statement whose rows follow: `ROWS_QUERY` of MySQL, `ANNOTATE_ROWS` of MariaDB."""

    header: Header
    sql: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """The server has sent everything up to the offset `position` of `file`, and is waiting for new events."""

    header: Header
    file: str
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """The server could not log something, so the log may lack changes."""

    header: Header
    number: int
    message: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStop:
    """The server shut down; the log continues in another file."""

    header: Header


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementContext:
    """A value that the next statement uses (`INTVAR`, `RAND`, `USER_VAR`).

    Such an event shows that the server logged a change as a statement, and not as the changed rows.
    """

    header: Header
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsupported:
    """An event of a change that is not logged as rows, although `binlog_format = ROW` demands rows."""

    header: Header
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Other:
    """An event that says nothing about changes. `name` is its type, or its number if the type is not known."""

    header: Header
    name: str


_printed = lru_cache(maxsize=64)(UUID.__str__)

Event = (
    Rotate
    | FormatDescription
    | MysqlGtid
    | AnonymousGtid
    | MariadbGtid
    | PreviousGtids
    | GtidList
    | Query
    | Xid
    | XaPrepare
    | TableMap
    | RowsEvent
    | RowsQuery
    | Heartbeat
    | Incident
    | ServerStop
    | StatementContext
    | Unsupported
    | Other
)
