"""Defines the messages of the output plugin pgoutput as frozen dataclasses. The module `pgoutput` decodes them.

Source: PostgreSQL's documentation, "Logical Replication Message Formats", protocol versions 1 to 4.
"""

from dataclasses import dataclass

from changelog.connectors.capture.rows.row_change import Delete, Insert, Update

DDL_PREFIX = "changelog-ddl"
"""The prefix of the logical messages that the event trigger of `admin.ddl` writes. Their content is a JSON object with
`command` (the tag of a statement) and `objects` (the names of its objects).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """A transaction begins.

    `final_lsn` is where its commit record begins. `committed_at` is in microseconds since 2000-01-01 UTC. `xid` has 32
    bits.
    """

    final_lsn: int
    committed_at: int
    xid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A transaction ends at `end_lsn`."""

    flags: int
    commit_lsn: int
    end_lsn: int
    committed_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationOrigin:
    """The transaction was replicated from another server."""

    commit_lsn: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RelationColumn:
    """A column as the stream describes it. `key` says that the column is in the replica identity."""

    key: bool
    name: str
    type_oid: int
    typmod: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """Describes the rows of the relation `relid` in all later messages. `replica_identity` is d (the primary key), n
    (nothing), f (the full row) or i (an index).
    """

    relid: int
    namespace: str
    name: str
    replica_identity: str
    columns: tuple[RelationColumn, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeName:
    """The name of a type that is not built in."""

    type_oid: int
    namespace: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncate:
    """Tables were truncated."""

    relids: tuple[int, ...]
    cascade: bool
    restart_identity: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LogicalMessage:
    """A logical message (`pg_logical_emit_message`)."""

    transactional: bool
    lsn: int
    prefix: str
    content: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStart:
    """A block of messages begins. They belong to a transaction that is still in progress."""

    xid: int
    first: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStop:
    """The end of a block that a `StreamStart` began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamCommit:
    """A streamed transaction committed."""

    xid: int
    flags: int
    commit_lsn: int
    end_lsn: int
    committed_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamAbort:
    """A streamed transaction, or its subtransaction `subxid`, was rolled back.

    `abort_lsn` and `aborted_at` are only sent to subscribers that apply in parallel.
    """

    xid: int
    subxid: int
    abort_lsn: int | None = None
    aborted_at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoPhaseMessage:
    """The fields that all messages of a two-phase commit share. `gid` is the name that the client gave."""

    lsn: int
    end_lsn: int
    at: int
    xid: int
    gid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginPrepare(TwoPhaseMessage):
    """A prepared transaction begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare(TwoPhaseMessage):
    """The transaction is prepared."""

    flags: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitPrepared(TwoPhaseMessage):
    """The prepared transaction commits."""

    flags: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackPrepared(TwoPhaseMessage):
    """The transaction that was prepared at `prepared_at` is rolled back."""

    flags: int
    prepared_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPrepare(TwoPhaseMessage):
    """A streamed transaction is prepared."""

    flags: int


Decoded = (
    Begin
    | Commit
    | ReplicationOrigin
    | Relation
    | TypeName
    | Insert
    | Update
    | Delete
    | Truncate
    | LogicalMessage
    | StreamStart
    | StreamStop
    | StreamCommit
    | StreamAbort
    | BeginPrepare
    | Prepare
    | CommitPrepared
    | RollbackPrepared
    | StreamPrepare
)
