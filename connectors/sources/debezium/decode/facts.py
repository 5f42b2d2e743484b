"""Reads the block `source` of an event: which transaction made the change, when, and in which table.

Each connector of Debezium writes a block of its own. `SourceBlock` has the members of all of them.
https://debezium.io/documentation/reference/stable/connectors/index.html
"""

import re
from typing import Final, Literal

import msgspec

from changelog.connectors.sources.debezium.decode.events import EventFacts

_POSTGRES_ID: Final = re.compile(r"([0-9]+):[0-9]+")
_SNAPSHOTS: Final[dict[str | bool | None, Literal["", "true", "last"]]] = {
    "last": "last",
    **dict.fromkeys(("incremental", "false", "", False, None), ""),
}

Text = str | int | None
"""The JSON of an id. Connectors write some ids as numbers."""


class SourceBlock(msgspec.Struct, gc=False):
    """The members of the block `source` that say where a change is from. A connector has only some of them."""

    connector: str = ""
    name: str | None = None
    db: str | None = None
    schema: str | None = None
    table: str | None = None
    collection: str | None = None
    keyspace: str | None = None
    keyspace_name: str | None = None
    table_name: str | None = None
    cluster: str | None = None
    database_name: str | None = None
    ts_ms: int | None = None
    ts_us: int | None = None
    ts_ns: int | None = None
    snapshot: str | bool | None = None
    txId: Text = None  # noqa: N815 - as Debezium spells it
    gtid: str | None = None
    commit_lsn: Text = None
    commit_scn: Text = None
    vgtid: str | None = None
    server_transaction_id: str | None = None
    lsid: str | None = None
    txnNumber: Text = None  # noqa: N815


class TransactionBlock(msgspec.Struct, gc=False):
    """The block `transaction` of an event. `total_order` is the number of the event in the transaction."""

    id: str = ""
    total_order: int | None = None


def facts_of(source: SourceBlock, transaction: TransactionBlock | None, timestamp_ms: int) -> EventFacts:
    """Returns the facts of an event. `timestamp_ms` is the time of the message; it is used if `source` has no time."""
    block_id = "" if transaction is None else transaction_id(transaction.id)
    order = 0 if transaction is None else transaction.total_order or 0
    return EventFacts(
        connector=source.connector,
        database=source.db or source.database_name or source.keyspace or source.keyspace_name or "",
        transaction=_transaction(source) or block_id,
        committed_at=_microseconds(source, timestamp_ms),
        snapshot=_SNAPSHOTS.get(source.snapshot, "true"),
        counted_in=block_id if order else "",
        order=order,
    )


def table_of(source: SourceBlock) -> tuple[str, str] | None:
    """Returns the table: its schema (or database, or keyspace) and its name; None if the block names no table."""
    table = source.table or source.collection or source.table_name
    if table is None:
        return None
    return source.schema or source.keyspace or source.keyspace_name or source.db or "", table


def transaction_id(text: str) -> str:
    """Returns the id of a transaction as `EventFacts.transaction` has it.

    In PostgreSQL's topic of transactions, a log position follows the id. This position is removed, because it differs
    between the BEGIN and the END of a transaction.
    """
    match = _POSTGRES_ID.fullmatch(text)
    return match[1] if match else text


def _transaction(source: SourceBlock) -> str:
    if source.connector in ("mysql", "mariadb"):
        return source.gtid or ""
    if source.connector == "mongodb":
        return f"{source.lsid}:{source.txnNumber}" if source.lsid and source.txnNumber is not None else ""
    number = source.txId or source.commit_lsn or source.server_transaction_id or source.vgtid or source.commit_scn
    return "" if number is None else str(number)


def _microseconds(source: SourceBlock, timestamp_ms: int) -> int:
    if source.ts_ns is not None:
        return source.ts_ns // 1000
    if source.ts_us is not None:
        return source.ts_us
    if source.ts_ms is None:
        return timestamp_ms * 1000
    return source.ts_ms if source.connector == "cassandra" else source.ts_ms * 1000  # Cassandra's are microseconds
