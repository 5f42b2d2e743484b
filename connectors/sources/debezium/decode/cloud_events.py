"""Reads CloudEvents, as Debezium's CloudEventsConverter writes them in JSON.

The attributes `iodebezium…` have the members of the blocks `source` and `transaction`, mostly as strings. An
attribute's name is `iodebezium` and the name of the member without underscores, such as `iodebeziumtsms` for `ts_ms`.
For the block `transaction`, `tx` comes in between: `iodebeziumtxid`. `data` has the rows, with or without a schema.
https://debezium.io/documentation/reference/stable/integrations/cloudevents.html
"""

from typing import Final, Literal

import msgspec
from msgspec import Raw

from changelog.connectors.sources.debezium.decode.facts import SourceBlock, TransactionBlock

_NAMES: Final = {
    "connector": "iodebeziumconnector",
    "name": "iodebeziumname",
    "db": "iodebeziumdb",
    "schema": "iodebeziumschema",
    "table": "iodebeziumtable",
    "collection": "iodebeziumcollection",
    "keyspace": "iodebeziumkeyspace",
    "database_name": "iodebeziumdatabasename",
    "snapshot": "iodebeziumsnapshot",
    "tx_id": "iodebeziumtxId",
    "gtid": "iodebeziumgtid",
    "commit_lsn": "iodebeziumcommitlsn",
    "commit_scn": "iodebeziumcommitscn",
    "vgtid": "iodebeziumvgtid",
    "server_transaction_id": "iodebeziumservertransactionid",
    "lsid": "iodebeziumlsid",
    "txn_number": "iodebeziumtxnNumber",
    "ts_ms": "iodebeziumtsms",
    "ts_us": "iodebeziumtsus",
    "ts_ns": "iodebeziumtsns",
    "transaction": "iodebeziumtxid",
    "total_order": "iodebeziumtxtotalorder",
    "op": "iodebeziumop",
}

Text = str | int | None


class CloudEvent(msgspec.Struct, rename=_NAMES, gc=False):
    """The attributes of an event that the translation needs."""

    specversion: Literal["1.0"]
    data: Raw
    op: str
    connector: str
    name: str | None = None
    db: str | None = None
    schema: str | None = None
    table: str | None = None
    collection: str | None = None
    keyspace: str | None = None
    database_name: str | None = None
    snapshot: str | bool | None = None
    tx_id: Text = None
    gtid: str | None = None
    commit_lsn: Text = None
    commit_scn: Text = None
    vgtid: str | None = None
    server_transaction_id: str | None = None
    lsid: str | None = None
    txn_number: Text = None
    ts_ms: Text = None
    ts_us: Text = None
    ts_ns: Text = None
    transaction: str | None = None
    total_order: Text = None

    def source(self) -> SourceBlock:
        """Returns the block `source`. Raises ValueError if a time is not a number."""
        return SourceBlock(
            connector=self.connector,
            name=self.name,
            db=self.db,
            schema=self.schema,
            table=self.table,
            collection=self.collection,
            keyspace=self.keyspace,
            database_name=self.database_name,
            snapshot=self.snapshot,
            txId=self.tx_id,
            gtid=self.gtid,
            commit_lsn=self.commit_lsn,
            commit_scn=self.commit_scn,
            vgtid=self.vgtid,
            server_transaction_id=self.server_transaction_id,
            lsid=self.lsid,
            txnNumber=self.txn_number,
            ts_ms=_number(self.ts_ms),
            ts_us=_number(self.ts_us),
            ts_ns=_number(self.ts_ns),
        )

    def block_transaction(self) -> TransactionBlock | None:
        """Returns the block `transaction`, None if there is none."""
        if self.transaction is None:
            return None
        return TransactionBlock(id=self.transaction, total_order=_number(self.total_order))


cloud_events: Final = msgspec.json.Decoder(CloudEvent)


def _number(text: Text) -> int | None:
    return None if text is None else int(text)
