"""Tests the decoder of binary logs. Each server writes every kind of event that it can, and the decoder must read every
byte of the log.
"""

from collections.abc import Iterator, Sequence

import pytest

from changelog.connectors.servers.mysql import Flavour, MysqlServer
from changelog.connectors.sources.mysql.decode.events.event_reader import EventReader
from changelog.connectors.sources.mysql.decode.events.events import (
    Event,
    FormatDescription,
    Heartbeat,
    Query,
    Rotate,
    RowsEvent,
    TableMap,
)
from changelog.connectors.sources.mysql.decode.rows.row_images import images
from tests.servers.binlog import Cursor, logged, packets, streamed
from tests.servers.binlog_statements import columns, statements
from tests.servers.mysql import EVERY_VERSION, FLAVOURS, version_of
from tests.servers.mysql import mysql_server as own_server

EACH_FLAVOUR = pytest.mark.parametrize("flavour", FLAVOURS)


def decoded(contents: Sequence[bytes]) -> Iterator[Event]:
    """Decodes all events, and the rows in them."""
    reader = EventReader()
    table_maps: dict[int, TableMap] = {}
    for content in contents:
        for event in reader.read(content):
            if isinstance(event, TableMap):
                table_maps[event.table_id] = event
            elif isinstance(event, RowsEvent):
                assert all(old or new for old, new in images(table_maps[event.table_id], event))
            yield event


def run_all(cursor: Cursor, statements: Sequence[str]) -> None:
    for statement in statements:
        cursor.execute(statement)


@EVERY_VERSION
def test_every_byte_of_the_log_is_decoded(mysql_server: MysqlServer, mysql_database: str) -> None:
    all_statements = statements(mysql_server.flavour, version_of(mysql_server))
    contents = logged(mysql_server, mysql_database, lambda cursor: run_all(cursor, all_statements))
    events = list(decoded(contents))
    tables = {event.table for event in events if isinstance(event, TableMap)}
    assert {"every", "pair"} <= tables


@EVERY_VERSION
def test_a_column_has_its_sign_and_collation_after_a_column_of_any_type(
    mysql_server: MysqlServer, mysql_database: str
) -> None:
    """The log lists signs only for numbers and collations only for texts, without the names of these columns. So the
    decoder must know which columns are in each list.

    If the decoder is wrong about one type, all columns after a column of this type get the sign or the collation of
    another column.
    """
    definitions = [definition for definition, _ in columns(mysql_server.flavour).values()]
    tables = [
        f"CREATE TABLE t{index} (a {definition.removesuffix(' PRIMARY KEY')}, number INT UNSIGNED, signed INT,"
        f" text_ VARCHAR(9) CHARACTER SET latin1, bytes_ VARBINARY(9), flag ENUM('x') CHARACTER SET latin1)"
        for index, definition in enumerate(definitions)
    ]
    inserts = [f"INSERT INTO t{index} (number) VALUES (1)" for index in range(len(definitions))]
    contents = logged(mysql_server, mysql_database, lambda cursor: run_all(cursor, [*tables, *inserts]))
    maps = [event for event in decoded(contents) if isinstance(event, TableMap)]
    assert len(maps) == len(definitions)
    for table_map in maps:
        assert table_map.columns is not None
        first, number, signed, text, binary, flag = table_map.columns
        assert (number.unsigned, signed.unsigned) == (True, False), first
        assert (text.collation, binary.collation, flag.collation, flag.labels) == (8, 63, 8, (b"x",)), first


@EVERY_VERSION
def test_a_replica_receives_the_events_of_a_file_and_then_heartbeats(
    mysql_server: MysqlServer, mysql_database: str
) -> None:
    with mysql_server.connect(mysql_database) as connection, connection.cursor() as cursor:
        cursor.execute("FLUSH BINARY LOGS")
        cursor.execute("SHOW BINARY LOGS")
        file = cursor.fetchall()[-1][0]
        cursor.execute("CREATE TABLE sent (a INT)")
    reader = EventReader()
    events: list[Event] = []
    with streamed(mysql_server, file) as contents:
        while not events or not isinstance(events[-1], Heartbeat):
            events += reader.read(next(contents))
    first, second, *_, last = events
    assert isinstance(first, Rotate)
    assert first.header.artificial
    assert isinstance(second, FormatDescription)
    assert b"CREATE TABLE sent (a INT)" in [event.sql for event in events if isinstance(event, Query)]
    assert isinstance(last, Heartbeat)
    assert (last.file, last.position) == (file, events[-2].header.end_log_pos)


@EACH_FLAVOUR
@pytest.mark.usefixtures("starts_servers")
def test_a_log_without_checksums_and_names_is_decoded(flavour: Flavour) -> None:
    names = {"mariadb": "NO_LOG", "mysql": "MINIMAL"}[flavour]
    with own_server(flavour, {"binlog_checksum": "NONE", "binlog_row_metadata": names}) as server:
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("CREATE TABLE mysql.t (a INT)")
            cursor.execute("INSERT INTO mysql.t VALUES (1)")
        contents = list(packets((server.data_dir / "binlog.000001").read_bytes()))
    reader = EventReader()
    events = [event for content in contents for event in reader.read(content)]
    assert isinstance(events[0], FormatDescription)
    assert not events[0].has_checksums
    assert events[0].header.flags == 1, "the file is in use"
    [table_map] = [event for event in events if isinstance(event, TableMap)]
    assert (table_map.schema, table_map.table, table_map.columns) == ("mysql", "t", None)
    assert table_map.description.width == 1
