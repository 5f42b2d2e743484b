"""Tests the decoder with recorded events. MySQL and MariaDB wrote these events when they executed the statements in
`binlog_statements`.

The decoder must decode each event to the last byte, and the decoded events must fit the statements.
"""

import struct
from collections.abc import Iterator, Sequence

import pytest

from changelog.connectors.capture.rows.row_change import UNCHANGED
from changelog.connectors.servers.mysql import Flavour
from changelog.connectors.sources.mysql.decode.events.event_reader import EventReader
from changelog.connectors.sources.mysql.decode.events.events import (
    AlterPhase,
    Event,
    FormatDescription,
    GtidList,
    MariadbGtid,
    MysqlGtid,
    Operation,
    Query,
    Rotate,
    RowsEvent,
    RowsQuery,
    TableMap,
    XaId,
    XaPrepare,
)
from changelog.connectors.sources.mysql.decode.rows.row_images import Image, PartialJson, RawValue, images
from changelog.connectors.sources.mysql.values.text.collations import charset_name
from changelog.connectors.sources.mysql.values.type_codes import TypeCode
from tests.servers.binlog_statements import columns
from tests.servers.mysql import FLAVOURS
from tests.unit.mysql.record_binlog import SENT, captured_events

EACH_FLAVOUR = pytest.mark.parametrize("flavour", FLAVOURS)

Change = tuple[Operation, Image | None, Image | None]


def events(recording: str) -> Sequence[Event]:
    reader = EventReader()
    return [event for packet in captured_events(recording) for event in reader.read(packet)]


def table_maps(recording: str) -> dict[str, list[TableMap]]:
    maps: dict[str, list[TableMap]] = {}
    for event in events(recording):
        if isinstance(event, TableMap):
            maps.setdefault(event.table, []).append(event)
    return maps


def changes(recording: str, table: str) -> Iterator[Change]:
    table_map = None
    for event in events(recording):
        if isinstance(event, TableMap):
            table_map = event
        elif isinstance(event, RowsEvent) and table_map is not None and table_map.table == table:
            assert event.table_id == table_map.table_id
            for old, new in images(table_map, event):
                yield event.operation, old, new


def plain(value: RawValue) -> object:
    return bytes(value) if isinstance(value, memoryview) else value


@EACH_FLAVOUR
def test_a_recording_begins_with_a_format_description_and_ends_with_a_rotation(flavour: Flavour) -> None:
    first, *_, last = events(flavour)
    assert isinstance(first, FormatDescription)
    assert first.has_checksums
    assert first.dialect.geometry_has_collation is (flavour == "mariadb")
    assert isinstance(last, Rotate)
    assert last.position == 4
    assert last.file.startswith("binlog.0000")


@EACH_FLAVOUR
def test_each_event_ends_where_the_sizes_of_all_events_say(flavour: Flavour) -> None:
    place = 4
    for event in events(flavour):
        place += event.header.size
        assert event.header.end_log_pos in ((place, 0) if flavour == "mariadb" else (place,))


@EACH_FLAVOUR
def test_statements_are_in_the_log_as_they_were_sent(flavour: Flavour) -> None:
    queries = [event for event in events(flavour) if isinstance(event, Query)]
    sent = {statement for statement in SENT[flavour] if statement.startswith(("CREATE", "ALTER", "TRUNCATE"))}
    logged = {query.sql.decode() for query in queries}
    assert sent - {"CREATE SEQUENCE numbers"} <= logged
    assert {query.database for query in queries} == {"shop"}
    changing = {statement for statement in SENT[flavour] if statement.startswith(("INSERT", "UPDATE", "DELETE"))}
    assert changing <= {event.sql.decode() for event in events(flavour) if isinstance(event, RowsQuery)}


@EACH_FLAVOUR
def test_the_log_has_the_settings_that_decide_how_a_statement_is_parsed(flavour: Flavour) -> None:
    ansi, other = (
        next(event for event in events(flavour) if isinstance(event, Query) and event.sql.startswith(beginning))
        for beginning in (b'ALTER TABLE "pair"', b"CREATE TABLE pair")
    )
    assert (ansi.ansi_quotes, ansi.no_backslash_escapes, ansi.client_collation) == (True, True, 8)
    assert (other.ansi_quotes, other.no_backslash_escapes) == (False, False)
    assert other.client_collation != 8
    assert ansi.microseconds in range(1_000_000)


@EACH_FLAVOUR
def test_a_table_map_describes_all_columns(flavour: Flavour) -> None:
    every = table_maps(flavour)["every"][0]
    assert every.schema == "shop"
    assert every.columns is not None
    by_name = {column.name: column for column in every.columns}
    assert list(by_name) == list(columns(flavour))
    assert every.primary_key == (0,)
    assert [name for name, column in by_name.items() if not column.nullable] == ["id"]
    unsigned = {name for name, (definition, _) in columns(flavour).items() if "UNSIGNED" in definition}
    assert {name for name, column in by_name.items() if column.unsigned} - {"year_"} == unsigned
    assert (by_name["decimal_long"].precision, by_name["decimal_long"].scale) == (65, 30)
    assert [by_name[f"bit_{bits}"].bits for bits in (1, 11, 64)] == [1, 11, 64]
    assert (by_name["char_long"].type, by_name["char_long"].meta) == (TypeCode.STRING, 255 * 4)
    assert (by_name["enum_"].type, by_name["enum_"].labels) == (TypeCode.ENUM, (b"a", b"b"))
    assert (by_name["set_"].type, by_name["set_"].labels) == (TypeCode.SET, (b"x", b"y", b"z"))
    assert by_name["enum_large"].labels[299] == b"v299"
    assert by_name["set_64"].labels[63] == b"v63"
    latin1 = {name for name, (definition, _) in columns(flavour).items() if "latin1" in definition}
    assert {name for name, column in by_name.items() if column.collation == 8} >= latin1
    binary = {name for name, column in by_name.items() if column.collation == 63}
    assert {"binary_", "varbinary_", "medium_blob", "long_blob"} <= binary
    assert by_name["varchar_long"].collation == 46
    assert {by_name[name].collation for name in ("id", "geometry_", "bit_1", "date_")} == {None}
    assert every.description.geometry_types == (0, 1)
    assert every.description.invisible == frozenset()


@EACH_FLAVOUR
def test_the_order_of_columns_in_the_primary_key_is_kept(flavour: Flavour) -> None:
    assert table_maps(flavour)["pair"][0].primary_key == (1, 0)


@EACH_FLAVOUR
def test_equal_table_maps_share_their_description(flavour: Flavour) -> None:
    first, second, *_ = table_maps(flavour)["every"]
    assert first.description is second.description


VALUES = {
    "id": b"\1\0\0\0",
    "tiny_signed": b"\xff",
    "tiny_unsigned": b"\xff",
    "small": b"\xfe\xff",
    "medium": b"\7\0\0",
    "big": b"\xff" * 8,
    "year_": bytes([2024 - 1900]),
    "float_": struct.pack("<f", 1.5),
    "double_": struct.pack("<d", -2.5),
    "time_0": bytes.fromhex("80c8b8"),
    "datetime_0": bytes.fromhex("99b2420000"),
    "datetime_6": bytes.fromhex("99b2420000000001"),
    "timestamp_2": struct.pack(">IB", 1704067200, 25),
    "bit_1": b"\1",
    "bit_11": b"\4\5",
    "bit_64": b"\xff" * 8,
    "enum_": b"\2",
    "enum_large": struct.pack("<H", 300),
    "set_": b"\5",
    "set_64": struct.pack("<Q", 1 << 63 | 1),
    "char_": b"caf",
    "char_long": b"cl",
    "varchar_": b"vch",
    "varchar_long": b"v" * 300,
    "varbinary_": b"\xff\0",
    "tiny_text": b"tiny",
    "text_": b"text",
    "medium_blob": b"m" * 300,
    "long_blob": b"\0",
    "point_": struct.pack("<IBIdd", 0, 1, 1, 3.0, 4.0),
}
"""The bytes that the log should have for a row of the table `every`, by column. The definition of each type's format
gives them.
"""


@EACH_FLAVOUR
def test_rows_are_split_into_the_values_that_were_inserted(flavour: Flavour) -> None:
    inserted, nulls, updated, deleted, deleted_nulls = changes(flavour, "every")
    assert [change[0] for change in (inserted, updated, deleted)] == ["insert", "update", "delete"]
    names = list(columns(flavour))
    old, new = inserted[1:]
    assert old is None
    assert new is not None
    row = dict(zip(names, map(plain, new), strict=True))
    assert {name: row[name] for name in VALUES} == VALUES
    assert nulls[2] is not None
    assert [plain(value) for value in nulls[2]] == [b"\2\0\0\0"] + [None] * (len(names) - 1)
    assert updated[1] == new
    assert updated[2] is not None
    changed = {name: plain(value) for name, value, old in zip(names, updated[2], new, strict=True) if value != old}
    assert changed == {"tiny_signed": None, "varchar_": b"new"}
    assert deleted[1:] == (updated[2], None)
    assert deleted_nulls[1:] == (nulls[2], None)


@EACH_FLAVOUR
def test_columns_that_an_event_does_not_contain_are_unchanged(flavour: Flavour) -> None:
    *_, (operation, old, new) = changes(flavour, "pair")
    assert operation is Operation.UPDATE
    assert old is not None
    assert new is not None
    assert [plain(value) for value in old] == [b"two", struct.pack("<i", 12), UNCHANGED]
    assert [plain(value) for value in new] == [b"other", UNCHANGED, UNCHANGED]


@EACH_FLAVOUR
def test_the_rows_of_an_event_with_several_rows_are_decoded(flavour: Flavour) -> None:
    inserts = [new for operation, _, new in changes(flavour, "pair") if operation is Operation.INSERT]
    assert [plain(new[0]) for new in inserts if new] == [b"one", b"two", b"three", b"once"]
    assert all(event.ends_statement for event in events(flavour) if isinstance(event, RowsEvent))


@EACH_FLAVOUR
def test_a_prepared_transaction_has_its_id(flavour: Flavour) -> None:
    xa_id = XaId(format_id=7, gtrid=b"left", bqual=b"right")
    prepares = [event for event in events(flavour) if isinstance(event, XaPrepare)]
    assert [event.xa_id for event in prepares if not event.one_phase] == [xa_id]
    if flavour == "mysql":
        assert [event.xa_id.gtrid for event in prepares if event.one_phase] == [b"once"]
    if flavour == "mariadb":
        gtids = [event for event in events(flavour) if isinstance(event, MariadbGtid)]
        assert [gtid.xa_id for gtid in gtids if gtid.xa_prepare] == [xa_id]
        assert [gtid.xa_id for gtid in gtids if gtid.xa_complete] == [xa_id]


def test_gtids_of_mysql_have_consecutive_numbers_times_and_sizes() -> None:
    gtids = [event for event in events("mysql") if isinstance(event, MysqlGtid)]
    first = gtids[0].number
    assert [gtid.number for gtid in gtids] == list(range(first, first + len(gtids)))
    assert gtids[0].text == f"{gtids[0].server_uuid}:{first}"
    for gtid in gtids:
        assert gtid.original_commit_us is not None
        assert gtid.original_commit_us == gtid.immediate_commit_us
        assert abs(gtid.original_commit_us / 1e6 - gtid.header.timestamp_s) < 60
    ends = [gtid.header.end_log_pos - gtid.header.size for gtid in gtids[1:]]
    ends.append(events("mysql")[-1].header.end_log_pos - events("mysql")[-1].header.size)
    begins = [gtid.header.end_log_pos - gtid.header.size for gtid in gtids]
    assert [gtid.transaction_bytes for gtid in gtids] == [end - begin for begin, end in zip(begins, ends, strict=True)]


def test_gtids_of_mariadb_have_consecutive_numbers_and_flags() -> None:
    gtids = [event for event in events("mariadb") if isinstance(event, MariadbGtid)]
    first = gtids[0].sequence
    assert [gtid.sequence for gtid in gtids] == list(range(first, first + len(gtids)))
    assert gtids[0].text == f"0-1-{first}"
    lists = [event for event in events("mariadb") if isinstance(event, GtidList)]
    assert [event.gtids for event in lists] == [((0, 1, first - 1),)]
    assert (gtids[0].ddl, gtids[0].standalone, gtids[0].transactional) == (True, True, False)
    assert (gtids[1].ddl, gtids[1].standalone, gtids[1].transactional) == (False, False, True)
    start, commit = (gtid for gtid in gtids if gtid.alter is not None)
    assert (start.alter, commit.alter) == (AlterPhase.START, AlterPhase.COMMIT)
    assert commit.alter_start == start.sequence


def test_partial_updates_of_json_are_found_in_rows() -> None:
    *_, one, two, other = changes("mysql", "document")
    for operation, old, new in (one, two):
        assert operation is Operation.UPDATE
        assert old is not None
        assert new is not None
        assert isinstance(old[1], memoryview)
        assert isinstance(new[1], PartialJson)
        assert b"$.a" in bytes(new[1].diffs)
        assert new[2] is None
    assert other[2] is not None
    unchanged, replaced = other[2][1:3]
    assert isinstance(unchanged, PartialJson)
    assert unchanged.diffs.nbytes == 0
    assert isinstance(replaced, memoryview)


def test_a_hidden_column_of_an_index_is_never_sent() -> None:
    (_, _, row), *_ = changes("mysql", "document")
    assert table_maps("mysql")["document"][0].description.width == 5
    assert row is not None
    assert [value is UNCHANGED for value in row] == [False, False, False, False, True]


def test_compressed_events_are_decompressed() -> None:
    compressed = [event for event in events("mariadb") if event.header.type in range(165, 172)]
    assert [event.header.type for event in compressed] == [165, 166, 167, 168]
    inserted = [new for operation, _, new in changes("mariadb", "compressed") if operation is Operation.INSERT]
    assert [plain(new[1]) for new in inserted[:2] if new] == [b"x" * 400, b"y" * 400]


def test_with_full_nodup_the_new_row_has_only_the_changed_columns() -> None:
    *_, (operation, old, new) = changes("mariadb", "compressed")
    assert operation is Operation.UPDATE
    assert old is not None
    assert new is not None
    assert [plain(value) for value in old] == [b"\3\0\0\0", b"x", b"\1\0\0\0"]
    assert [plain(value) for value in new] == [UNCHANGED, UNCHANGED, b"\2\0\0\0"]


def test_a_tagged_gtid_is_decoded() -> None:
    *_, before, tagged, after = (event for event in events("mysql_9") if isinstance(event, MysqlGtid))
    assert (before.tag, tagged.tag, after.tag) == ("", "night_shift", "")
    assert tagged.text == f"{before.server_uuid}:night_shift:1"
    assert tagged.original_commit_us is not None
    assert abs(tagged.original_commit_us / 1e6 - tagged.header.timestamp_s) < 60
    assert tagged.transaction_bytes == place(after) - place(tagged)


def place(event: Event) -> int:
    return event.header.end_log_pos - event.header.size


def test_the_events_of_a_compressed_transaction_are_decoded() -> None:
    inner = events("mysql_9")
    end = inner[-2].header.end_log_pos
    assert [event.sql.split()[0] for event in inner if isinstance(event, RowsQuery)][-4:] == [
        b"INSERT",
        b"UPDATE",
        b"UPDATE",
        b"DELETE",
    ]
    assert {event.header.end_log_pos for event in inner if isinstance(event, RowsEvent)} > {end}
    *_, first_deleted, second_deleted, third_deleted = changes("mysql_9", "modern")
    keys = [old[0] for _, old, _ in (first_deleted, second_deleted, third_deleted) if old is not None]
    assert [plain(key) for key in keys] == [b"\1\0\0\0", b"\2\0\0\0", b"\3\0\0\0"]


def test_columns_of_newer_types_are_decoded() -> None:
    [(_, _, row), *_] = changes("mysql_9", "modern")
    description = table_maps("mysql_9")["modern"][0].description
    assert description.columns is not None
    assert [column.name for column in description.columns] == [
        "id",
        "v",
        "hidden",
        "tags",
        "name",
        "born",
        "number",
        "signed_",
    ]
    assert description.invisible == {2}
    assert description.columns[1].type == TypeCode.VECTOR
    assert [column.collation for column in description.columns] == [None, None, None, None, 255, None, None, None]
    assert [column.unsigned for column in description.columns[-2:]] == [True, False]
    assert row is not None
    assert plain(row[1]) == struct.pack("<3f", 1, 2.5, -3)


def test_a_vector_and_a_newer_collation_of_mariadb_are_decoded() -> None:
    """In MariaDB's log, columns of the types VECTOR, UUID and INET6 have other types: VARCHAR or STRING."""
    before, *_, after = table_maps("mariadb_11_8")["modern"]
    assert before.description.columns is not None
    assert after.description.columns is not None
    assert [column.type for column in before.description.columns] == [
        TypeCode.STRING,
        TypeCode.VARCHAR,
        TypeCode.STRING,
        TypeCode.VARCHAR,
    ]
    collations = [columns[3].collation for columns in (before.description.columns, after.description.columns)]
    assert collations[0] != collations[1]
    assert {charset_name(collation, {}) for collation in collations if collation is not None} == {"utf8mb4"}
    [(_, _, row), *_] = changes("mariadb_11_8", "modern")
    assert row is not None
    assert plain(row[1]) == struct.pack("<3f", 1, 2.5, -3)
