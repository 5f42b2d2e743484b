"""Tests which event the translator makes from each kind of message. The messages are like those in the documentation of
Debezium's connectors.
"""

from typing import Any

import pytest

from changelog.connectors.capture.rows.row_change import UNCHANGED
from changelog.connectors.sources.debezium.decode.events import (
    Boundary,
    Emitted,
    EventFacts,
    IgnoredRecord,
    RowsTruncated,
    SourceRecord,
)
from changelog.connectors.sources.debezium.decode.settings import TranslationSettings
from changelog.connectors.sources.debezium.decode.translate import Translator
from changelog.envelope.errors import ChangelogError, Kind
from tests.unit.debezium.messages import POSTGRES, changed, event, plain, scalar, source, struct, text, translate, typed

ORDERS = {("public", "orders"): {"id": "int", "note": "string"}}

SOURCES: list[tuple[dict[str, Any], tuple[str, str], EventFacts]] = [
    (
        source(
            "postgresql",
            db="app",
            schema="public",
            table="orders",
            txId=556,
            lsn=46523128,
            xmin=None,
            ts_ms=1,
            ts_us=1002,
            ts_ns=1003004,
        ),
        ("public", "orders"),
        EventFacts(connector="postgresql", database="app", transaction="556", committed_at=1003),
    ),
    (
        source("mysql", db="shop", table="orders", gtid="8ee8-1:12", file="b.000003", pos=805, row=0, ts_ms=1),
        ("shop", "orders"),
        EventFacts(connector="mysql", database="shop", transaction="8ee8-1:12", committed_at=1000),
    ),
    (
        source("mariadb", db="shop", table="orders", gtid="0-1-5", file="b.000003", pos=805, row=0, ts_us=7, ts_ms=1),
        ("shop", "orders"),
        EventFacts(connector="mariadb", database="shop", transaction="0-1-5", committed_at=7),
    ),
    (
        source("mysql", db="shop", table="orders", gtid=None, file="b.000003", pos=805, row=0, ts_ms=1),
        ("shop", "orders"),
        EventFacts(connector="mysql", database="shop", transaction="", committed_at=1000),
    ),
    (
        source(
            "sqlserver",
            db="shop",
            schema="dbo",
            table="orders",
            change_lsn="00000027:00000758:0003",
            commit_lsn="00000027:00000758:0005",
            event_serial_no="1",
            ts_ms=1,
        ),
        ("dbo", "orders"),
        EventFacts(connector="sqlserver", database="shop", transaction="00000027:00000758:0005", committed_at=1000),
    ),
    (
        source(
            "oracle", db="ORCL", schema="SALES", table="ORDERS", txId="6.28.807", scn="2122185", commit_scn="2122190"
        ),
        ("SALES", "ORDERS"),
        EventFacts(connector="oracle", database="ORCL", transaction="6.28.807", committed_at=5000),
    ),
    (
        source("db2", db="shop", schema="DB2INST1", table="ORDERS", change_lsn="00:01", commit_lsn="00:02", ts_ms=1),
        ("DB2INST1", "ORDERS"),
        EventFacts(connector="db2", database="shop", transaction="00:02", committed_at=1000),
    ),
    (
        source(
            "informix", db="shop", schema="informix", table="orders", commitLsn="12", changeLsn="11", txId="8", ts_ms=1
        ),
        ("informix", "orders"),
        EventFacts(connector="informix", database="shop", transaction="8", committed_at=1000),
    ),
    (
        source("vitess", db="", keyspace="commerce", table="orders", vgtid='[{"shard":"-80"}]', shard="-80", ts_ms=1),
        ("commerce", "orders"),
        EventFacts(connector="vitess", database="commerce", transaction='[{"shard":"-80"}]', committed_at=1000),
    ),
    (
        source(
            "spanner",
            db="database",
            table="orders",
            server_transaction_id="abc",
            mod_number=0,
            ts_ms=1,
            ts_ns=1_500_000,
        ),
        ("database", "orders"),
        EventFacts(connector="spanner", database="database", transaction="abc", committed_at=1500),
    ),
]


@pytest.mark.parametrize(("block", "table", "facts"), SOURCES)
def test_the_facts_of_an_event_are_read_from_its_source_block(
    block: dict[str, Any], table: tuple[str, str], facts: EventFacts
) -> None:
    message = plain(event("c", None, {"id": 1}, block), {"id": 1}, timestamp_ms=5)
    row = changed(message, types={table: {"id": "int"}})
    assert row.table.name == table
    assert row.facts == facts


@pytest.mark.parametrize(
    ("marker", "snapshot"),
    [
        ("true", "true"),
        ("first", "true"),
        ("first_in_data_collection", "true"),
        ("last_in_data_collection", "true"),
        ("last", "last"),
        ("incremental", ""),
        ("false", ""),
        (None, ""),
        (True, "true"),
        (False, ""),
    ],
)
def test_events_say_whether_they_belong_to_a_snapshot(marker: Any, snapshot: str) -> None:
    message = plain(event("r", None, {"id": 1}, {**POSTGRES, "snapshot": marker}))
    row = changed(message, types=ORDERS)
    assert (row.op, row.facts.snapshot) == ("r", snapshot)


def test_old_rows_may_be_missing() -> None:
    updated = changed(plain(event("u", None, {"id": 1}), {"id": 1}), types=ORDERS)
    assert (updated.before, updated.after, updated.key) == (None, (b"1",), (b"1",))
    columns = {"id": scalar("int32"), "note": scalar("string")}
    deleted = changed(typed(columns, event("d", None, None), ({"id": scalar("int32")}, {"id": 1})))
    assert (deleted.before, deleted.after, deleted.key) == (None, None, (b"1",))


def test_a_key_column_may_be_missing_in_the_row() -> None:
    key = {"id": scalar("int32"), "shard": scalar("string")}
    message = typed({"id": scalar("int32")}, event("c", None, {"id": 1}), (key, {"id": 1, "shard": "a"}))
    row = changed(message)
    assert (row.table.key, row.key) == (("id", "shard"), (b"1", b'"a"'))


@pytest.mark.parametrize("with_schema", [True, False])
def test_headers_mark_the_two_events_of_a_move(*, with_schema: bool) -> None:
    def key(number: int) -> bytes:
        content = {"id": number}
        return text({"schema": struct("Key", {"id": scalar("int32")}), "payload": content} if with_schema else content)

    def header(name: str, number: int) -> dict[str, Any]:
        return {"headers": [("other", None), (f"__debezium.{name}", key(number))]}

    deleted = changed(plain(event("d", {"id": 1}, None), {"id": 1}, **header("newkey", 2)), types=ORDERS)
    created = changed(plain(event("c", None, {"id": 2}), {"id": 2}, **header("oldkey", 1)), types=ORDERS)
    assert (deleted.moves, deleted.key, deleted.other_key) == ("to", (b"1",), (b"2",))
    assert (created.moves, created.key, created.other_key) == ("from", (b"2",), (b"1",))


def test_a_move_with_an_unreadable_header_has_no_other_key() -> None:
    message = plain(event("d", {"id": 1}, None), {"id": 1}, headers=[("__debezium.newkey", b"Struct{id=2}")])
    row = changed(message, types=ORDERS)
    assert (row.moves, row.other_key) == ("to", ())


@pytest.mark.parametrize("value", [None, b"", b"null", text({"schema": scalar("string"), "payload": None})])
def test_tombstones_are_ignored(value: bytes | None) -> None:
    assert translate(SourceRecord(topic="t", key=b'{"id":1}', value=value)) == IgnoredRecord(reason="tombstone")


def test_a_truncate_is_translated() -> None:
    truncated = translate(plain(event("t", None, None)))
    assert isinstance(truncated, RowsTruncated)
    assert truncated.name == ("public", "orders")


def test_a_logical_message_is_translated() -> None:
    block = {**POSTGRES, "schema": "", "table": ""}
    payload = {"op": "m", "ts_ms": 1, "source": block, "message": {"prefix": "provenance", "content": "e30="}}
    emitted = translate(plain(payload, {"prefix": "provenance"}))
    assert isinstance(emitted, Emitted)
    assert (emitted.prefix, emitted.content, emitted.facts.transaction) == ("provenance", b"{}", "7")


@pytest.mark.parametrize(
    ("id_", "transaction"),
    [("571:53195829", "571"), ("8ee8-1:12", "8ee8-1:12"), ("00000025:00000d08:0025", "00000025:00000d08:0025")],
)
def test_the_begin_and_the_end_of_a_transaction_are_translated(id_: str, transaction: str) -> None:
    begin = {"status": "BEGIN", "id": id_, "event_count": None, "data_collections": None, "ts_ms": 1}
    end = {**begin, "status": "END", "event_count": 2}
    assert translate(plain(begin)) == Boundary(transaction=transaction, ends=False, events=None)
    assert translate(plain(end)) == Boundary(transaction=transaction, ends=True, events=2)


def test_other_messages_are_ignored() -> None:
    assert translate(plain({"ts_ms": 5}, {"serverName": "shop"})) == IgnoredRecord(reason="heartbeat")
    ddl = {"source": POSTGRES, "ts_ms": 1, "databaseName": "shop", "ddl": "CREATE …", "tableChanges": []}
    assert translate(plain(ddl)) == IgnoredRecord(reason="schema change")
    other = plain(event("c", None, {"id": 1}))
    assert translate(other, tables=frozenset({("public", "guests")})) == IgnoredRecord(reason="other table")


CELLS = {
    "id": {"value": 1001, "deletion_ts": None, "set": True},
    "name": None,
    "email": {"value": None, "deletion_ts": 1562202972545, "set": True},
}
CASSANDRA = {
    "version": "3.6.3.Final",
    "connector": "cassandra",
    "cluster": "cluster-1",
    "snapshot": False,
    "keyspace": "shop",
    "table": "guests",
    "file": "commitlog-6-1.log",
    "pos": 54,
    "ts_ms": 1562202942666382,
}


def _cell(name: str, value: dict[str, Any]) -> dict[str, Any]:
    return struct(name, {"value": value, "deletion_ts": scalar("int64"), "set": scalar("boolean")}, optional=True)


@pytest.mark.parametrize("with_schema", [True, False])
def test_events_of_cassandra_are_translated(*, with_schema: bool) -> None:
    columns = {
        "id": _cell("id", scalar("int64")),
        "name": _cell("name", scalar("string")),
        "email": _cell("email", scalar("string")),
    }
    payload = {"op": "u", "ts_ms": 1, "after": CELLS, "source": CASSANDRA}
    deleted = {**payload, "op": "d", "after": {**CELLS, "email": None}}
    types = {("shop", "guests"): {"id": "long", "name": "string", "email": "string"}}
    key = ({"id": scalar("int64")}, {"id": 1001})
    rows = [
        changed(typed(columns, of, key) if with_schema else plain(of, key[1]), types={} if with_schema else types)
        for of in (payload, deleted)
    ]
    assert rows[0].after == (b"1001", UNCHANGED, None)
    assert (rows[0].table.name, rows[0].facts.committed_at) == (("shop", "guests"), 1562202942666382)
    assert (rows[1].op, rows[1].before, rows[1].after, rows[1].key) == ("d", None, None, (b"1001",))


MONGODB = source("mongodb", db="shop", collection="orders", rs="rs0", ord=31, lsid="{}", txnNumber=4, ts_ms=1)


@pytest.mark.parametrize("with_schema", [True, False])
def test_events_of_mongodb_are_translated(*, with_schema: bool) -> None:
    document = '{"_id": {"$oid": "58385328e4b001431e4e497a"},"n": {"$numberLong": "5"}}'
    id_ = '{"$oid": "58385328e4b001431e4e497a"}'

    def message(op: str, before: str | None, after: str | None) -> SourceRecord:
        payload = event(op, before, after, MONGODB, updateDescription=None)
        if not with_schema:
            return plain(payload, {"id": id_})
        side = scalar("string", "io.debezium.data.Json")
        schema = struct("Envelope", {"before": side, "after": side})
        key = {"schema": struct("Key", {"id": scalar("string")}), "payload": {"id": id_}}
        return SourceRecord(topic="t", key=text(key), value=text({"schema": schema, "payload": payload}))

    created = changed(message("c", None, document))
    assert [column.name for column in created.table.columns] == ["id", "document"]
    assert created.table.name == ("shop", "orders")
    assert created.after == (id_.encode(), document.encode())
    assert (created.key, created.facts.transaction) == ((id_.encode(),), "{}:4")
    assert changed(message("u", None, None)).after == (id_.encode(), UNCHANGED)
    assert changed(message("d", None, None)).key == (id_.encode(),)
    assert changed(message("d", document, None)).before == (id_.encode(), document.encode())


ADDED = {"__op": "u", "__db": "app", "__schema": "public", "__table": "orders", "__source_ts_us": 5, "__txId": 9}


def test_the_facts_of_a_flat_row_are_read_from_added_fields() -> None:
    row = changed(plain({"id": 1, "note": "x", **ADDED, "__deleted": "false"}, {"id": 1}), types=ORDERS, unwrapped=True)
    assert (row.op, row.before, row.after, row.key) == ("u", None, (b"1", b'"x"'), (b"1",))
    assert (row.facts.transaction, row.facts.committed_at, row.facts.database) == ("9", 5, "app")


def test_the_facts_of_a_flat_row_are_read_from_headers() -> None:
    headers = [(name, text(value)) for name, value in {**ADDED, "__op": "r", "__source_snapshot": "last"}.items()]
    row = changed(plain({"id": 1}, {"id": 1}, headers=headers), types=ORDERS, unwrapped=True)
    assert (row.op, row.after, row.facts.snapshot, row.table.name) == ("r", (b"1",), "last", ("public", "orders"))


def test_headers_of_the_simple_converter_are_read() -> None:
    headers = [("__op", b"d"), ("__table", b"orders"), ("__schema", b"public"), ("__source_ts_ms", b"3")]
    row = changed(plain({"id": 1}, {"id": 1}, headers=headers), types=ORDERS, unwrapped=True)
    assert (row.op, row.before, row.facts.committed_at) == ("d", (b"1",), 3000)


def test_a_flat_row_without_added_fields_belongs_to_the_table_that_its_topic_names() -> None:
    row = changed(plain({"id": 1}, {"id": 1}, timestamp_ms=4), types=ORDERS, unwrapped=True)
    assert (row.op, row.table.name, row.facts.committed_at) == ("u", ("public", "orders"), 4000)


def test_a_delete_that_was_rewritten_as_a_row_is_a_delete() -> None:
    row = changed(plain({"id": 1, "note": None, "__deleted": "true"}, {"id": 1}), types=ORDERS, unwrapped=True)
    assert (row.op, row.before, row.after, row.key) == ("d", (b"1", None), None, (b"1",))


def test_a_null_is_a_delete_if_a_setting_or_a_header_says_so() -> None:
    null = SourceRecord(topic="shop.public.orders", key=b'{"id":1}', value=None)
    null_with_op = SourceRecord(topic="shop.public.orders", key=b'{"id":1}', value=b"null", headers=[("__op", b'"d"')])
    assert translate(null, types=ORDERS, unwrapped=True) == IgnoredRecord(reason="tombstone")
    for message, settings in ((null, {"tombstones_delete": True}), (null_with_op, {})):
        row = changed(message, types=ORDERS, unwrapped=True, **settings)
        assert (row.op, row.before, row.after, row.key) == ("d", None, None, (b"1",))


def test_a_null_belongs_to_the_table_of_the_last_row() -> None:
    translator = Translator(TranslationSettings(types=ORDERS, unwrapped=True, tombstones_delete=True))
    null = SourceRecord(topic="shop.public.orders", key=b'{"id":1}', value=None)
    created, deleted = translator.translate([plain({"id": 1, "note": "x"}, {"id": 1}), null])
    assert created.table is deleted.table  # type: ignore[union-attr]


def test_messages_that_are_not_rows_are_translated_among_flat_rows() -> None:
    begin = {"status": "BEGIN", "id": "5", "event_count": None, "data_collections": None, "ts_ms": 1}
    assert translate(plain(begin), unwrapped=True) == Boundary(transaction="5", ends=False, events=None)
    assert translate(plain({"ts_ms": 1}), unwrapped=True) == IgnoredRecord(reason="heartbeat")


def test_cloud_events_are_translated() -> None:
    attributes = {
        "id": "name:shop;lsn:1;txId:7",
        "source": "/debezium/postgresql/shop",
        "specversion": "1.0",
        "type": "io.debezium.connector.postgresql.DataChangeEvent",
        "datacontenttype": "application/json",
        "iodebeziumop": "u",
        "iodebeziumconnector": "postgresql",
        "iodebeziumname": "shop",
        "iodebeziumtsms": "1578923739738",
        "iodebeziumtsus": "1578923739738001",
        "iodebeziumsnapshot": "false",
        "iodebeziumdb": "app",
        "iodebeziumschema": "public",
        "iodebeziumtable": "orders",
        "iodebeziumtxId": "7",
        "data": {"before": None, "after": {"id": 1}},
    }
    row = changed(plain(attributes, {"id": 1}), types=ORDERS)
    assert (row.op, row.after, row.table.name) == ("u", (b"1",), ("public", "orders"))
    assert row.facts == EventFacts(
        connector="postgresql", database="app", transaction="7", committed_at=1578923739738001
    )


@pytest.mark.parametrize(
    "payload",
    [
        {},
        {"op": "x", "source": POSTGRES, "after": {"id": 1}},
        {"op": "c", "after": {"id": 1}},
        {"op": "c", "source": POSTGRES, "after": None},
        {"op": "c", "source": {**POSTGRES, "table": None}, "after": {"id": 1}},
        {"op": "m", "source": POSTGRES, "message": {"prefix": "p", "content": "?"}},
        {"op": "m", "source": POSTGRES},
        {"status": "HALF", "id": "5"},
        {"status": "BEGIN", "id": 5},
        {"op": "c", "source": POSTGRES, "after": [1]},
        [],
        5,
        "text",
    ],
)
def test_a_message_that_is_no_change_event_is_malformed(payload: Any) -> None:
    with pytest.raises(
        ChangelogError, match=r"a message of topic shop\.public\.orders is not a change event"
    ) as caught:
        translate(plain(payload), types=ORDERS)
    assert caught.value.kind is Kind.MALFORMED


def test_messages_with_the_same_schema_share_their_table() -> None:
    translator = Translator(TranslationSettings())
    columns = {"id": scalar("int32")}
    first, second = translator.translate([typed(columns, event("c", None, {"id": number})) for number in (1, 2)])
    (other,) = translator.translate([typed({**columns, "x": scalar("int32")}, event("c", None, {"id": 1, "x": 2}))])
    assert first.table is second.table  # type: ignore[union-attr]
    assert first.table.number != other.table.number  # type: ignore[union-attr]


def test_the_columns_of_messages_without_a_schema_may_differ() -> None:
    translator = Translator(TranslationSettings(types=ORDERS))
    rows = [{"id": 1}, {"id": 1, "note": "x"}, {"id": 2}, {"note": "y", "id": 3}]
    events = translator.translate([plain(event("c", None, row)) for row in rows])
    names = [[column.name for column in of.table.columns] for of in events]  # type: ignore[union-attr]
    assert names == [["id"], ["id", "note"], ["id"], ["note", "id"]]


def test_white_space_and_the_order_of_members_do_not_matter() -> None:
    message = typed({"id": scalar("int32")}, event("c", None, {"id": 1}))
    assert message.value is not None
    expected = changed(message)
    schema, _, payload = message.value[len(b'{"schema":') : -1].partition(b',"payload":')
    spaced = b'{ "payload" : %b , "schema" : %b }' % (payload, schema)
    row = changed(SourceRecord(topic=message.topic, key=None, value=spaced))
    assert (row.after, row.table.columns[0].name) == (expected.after, "id")


def test_a_topic_may_have_messages_with_different_schemas() -> None:
    translator = Translator(TranslationSettings())
    one = typed({"id": scalar("int32")}, event("c", None, {"id": 1}))
    two = typed({"id": scalar("string")}, event("c", None, {"id": "1"}))
    rows = [of.after for of in translator.translate([one, two, one, two])]  # type: ignore[union-attr]
    assert rows == [(b"1",), (b'"1"',)] * 2
