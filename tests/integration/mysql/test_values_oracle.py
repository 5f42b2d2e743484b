"""Tests random values of every type. Each value is read both from the log and by a query.

Both must give the same text. If the published JSON of a value is inserted into another table, that table must then have
the same value.
"""

import base64
import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from pymysql.cursors import Cursor

from changelog.connectors.servers.mysql import Flavour, MysqlServer
from changelog.connectors.sources.mysql.admin.catalog import read_tables
from changelog.connectors.sources.mysql.decode.events.event_reader import EventReader
from changelog.connectors.sources.mysql.decode.events.events import RowsEvent, TableMap
from changelog.connectors.sources.mysql.decode.rows.row_images import images
from changelog.connectors.sources.mysql.session.flavour import Flavour as SourceFlavour
from changelog.connectors.sources.mysql.values.catalog_columns import COLLATIONS, FIELDS, CatalogColumn, column_of
from changelog.connectors.sources.mysql.values.columns import LogColumn
from changelog.connectors.sources.mysql.values.printed import printer_for
from changelog.connectors.sources.mysql.values.selected import SETTINGS, selected
from changelog.connectors.sources.mysql.values.type_codes import TypeCode
from changelog.connectors.sources.mysql.values.types import codec_for, lacks_size
from changelog.schemas.types import Array, Decimal, Primitive, Struct
from tests.integration.mysql.sessions import rows, session
from tests.integration.mysql.typed_values import Typed, old_types, types
from tests.servers.binlog import logged
from tests.servers.mysql import EVERY_VERSION, fresh_mysql_database, version_of

COUNT = 100
FLAVOURS: Mapping[Flavour, SourceFlavour] = {"mariadb": SourceFlavour.MARIADB, "mysql": SourceFlavour.MYSQL}


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The only column of a table, as the log and as the catalogue describe it, and the column's values in the order of
    insertion.

    `log` has the bytes of each value in the log, and `printed` has the text that our code makes of these bytes. `query`
    has the text that a query returns for each value.
    """

    in_log: LogColumn
    in_catalog: LogColumn
    log: Sequence[bytes]
    printed: Sequence[bytes]
    query: Sequence[bytes]


def logged_values(packets: Sequence[bytes], schema: str) -> dict[str, tuple[LogColumn, list[bytes]]]:
    """For each table of a database, returns its column and the values that were inserted. Each table has one column."""
    reader, tables = EventReader(), dict[int, TableMap]()
    result: dict[str, tuple[LogColumn, list[bytes]]] = {}
    for packet in packets:
        for event in reader.read(packet):
            if isinstance(event, TableMap):
                tables[event.table_id] = event
            elif isinstance(event, RowsEvent) and tables[event.table_id].schema == schema:
                table = tables[event.table_id]
                assert table.columns is not None
                (column,) = table.columns
                values = result.setdefault(table.table, (column, []))[1]
                for _, new in images(table, event):
                    assert new is not None
                    assert isinstance(new[0], memoryview), column
                    values.append(bytes(new[0]))
    return result


def catalog_columns(server: MysqlServer, schema: str) -> dict[str, LogColumn]:
    """For each table of a database, returns its column as the catalogue describes it."""
    with server.connect() as connection, connection.cursor() as cursor:

        def query(sql: str, parameters: Sequence[object]) -> Sequence[tuple[Any, ...]]:
            cursor.execute(sql, parameters)
            return cursor.fetchall()

        collations = dict(query(COLLATIONS[FLAVOURS[server.flavour]], ()))
        column_types = {table.name: table.columns[0].declared for table in read_tables(query) if table.schema == schema}
        column_rows = query(
            f"SELECT TABLE_NAME, {FIELDS} FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s", (schema,)
        )
    return {
        table: column_of(CatalogColumn(*fields)._replace(column_type=column_types[table]), collations)
        for table, *fields in column_rows
    }


def query_values(cursor: Cursor, table: str, column: LogColumn) -> list[bytes]:
    """Returns the text that a query gives for each value. InnoDB returns the values in the order of insertion."""
    selection = selected(column)
    values = [value for (value,) in rows(cursor, f"SELECT {selection.sql} FROM `{table}`")]
    return [selection.convert(value) for value in values] if selection.convert else values


def insert(cursor: Cursor, table: str, expressions: Sequence[str]) -> None:
    cursor.execute(f"INSERT INTO `{table}` VALUES {','.join(f'({expression})' for expression in expressions)}")


def read_back(server: MysqlServer, cursor: Cursor, schema: str, packets: Sequence[bytes]) -> dict[str, Table]:
    """Reads all tables into which the packets of the log insert rows. Reads each table both from the log and by a
    query.
    """
    columns = catalog_columns(server, schema)
    result = {}
    for name, (column, values) in logged_values(packets, schema).items():
        in_log = replace(column, declared=columns[name].declared)
        printer = printer_for(in_log, {})
        result[name] = Table(
            in_log=in_log,
            in_catalog=columns[name],
            log=values,
            printed=[printer(value) for value in values],
            query=query_values(cursor, name, columns[name]),
        )
    return result


def check(table: Table, definition: str) -> None:
    """Checks that the log and the query agree on the column of a table and on its values."""
    unsigned = table.in_log.unsigned and table.in_log.type != TypeCode.YEAR
    in_log = replace(table.in_log, labels=(), unsigned=unsigned)
    if table.in_catalog.type == TypeCode.VECTOR and in_log.type == TypeCode.VARCHAR:  # MariaDB's vectors
        in_log = replace(in_log, type=TypeCode.VECTOR, meta=table.in_catalog.meta, collation=table.in_catalog.collation)
    assert in_log == table.in_catalog, definition
    assert codec_for(table.in_log) == codec_for(table.in_catalog), definition
    values = zip(table.log, table.printed, table.query, strict=True)
    wrong = [(raw.hex(), log, query) for raw, log, query in values if log != query]
    assert not wrong, f"{definition}: {wrong[:5]}"


def expression(column: LogColumn, text: bytes) -> str:
    """Returns an SQL expression of the value that a reader finds in the JSON that is published for this text."""
    codec = codec_for(column)
    token = codec.to_json(text).decode()
    value = json.loads(token)
    match codec.column_type:
        case Primitive.INT | Primitive.LONG:
            return token
        case Primitive.FLOAT | Primitive.DOUBLE:
            return f"'{token}'"
        case Primitive.BYTES:
            return f"x'{base64.b64decode(value).hex()}'"
        case Primitive.TIMESTAMP_TZ:
            return f"'{value.removesuffix('Z')}'"
        case Primitive.JSON:
            return f"CONVERT(x'{token.encode().hex()}' USING utf8mb4)"
        case Decimal():
            return f"'{value}'"
        case Array():
            elements = json.loads(token, parse_int=float)  # so that -0 does not become 0
            return f"x'{struct.pack(f'<{len(elements)}f', *elements).hex()}'"
        case Struct():
            return f"ST_GeomFromWKB(x'{base64.b64decode(value['wkb']).hex()}', {value['srid']})"
    if column.declared.startswith("bit"):
        return f"b'{value}'"
    return f"CONVERT(x'{value.encode().hex()}' USING utf8mb4)"


def run(
    server: MysqlServer, schema: str, all_types: Sequence[Typed], random: Random
) -> Iterator[tuple[str, Table, Table]]:
    """For each type, inserts random values into one table, and the values of their published JSON into a second table.

    Yields the definition of each type, and both tables.
    """
    with session(server, schema) as connection, connection.cursor() as cursor:
        for statement in SETTINGS:
            cursor.execute(statement)
        for number, typed in enumerate(all_types):
            for name in ("first", "second"):
                cursor.execute(f"CREATE TABLE {name}_{number} (`a ``b``` {typed.definition})")

        def fill(_: object) -> None:
            for number, typed in enumerate(all_types):
                insert(cursor, f"first_{number}", [typed.draw(random) for _ in range(COUNT)])

        first = read_back(server, cursor, schema, logged(server, schema, fill))

        def write_back(_: object) -> None:
            for number in range(len(all_types)):
                table = first[f"first_{number}"]
                insert(cursor, f"second_{number}", [expression(table.in_catalog, text) for text in table.printed])

        second = read_back(server, cursor, schema, logged(server, schema, write_back))
    for number, typed in enumerate(all_types):
        yield typed.definition, first[f"first_{number}"], second[f"second_{number}"]


def has_text(column: LogColumn) -> bool:
    """Returns whether a column has a character set. If a value of such a column is written back, its text stays the
    same, but its bytes may differ.

    The bytes differ if several characters of the set stand for the same character of Unicode, or if a character has no
    equivalent in Unicode.
    """
    return column.collation is not None and column.collation != 63


def rounded(document: bytes) -> object:
    """Returns a document with fewer digits in its doubles, because MySQL misreads the last digit of some doubles."""
    return json.loads(document, parse_float=lambda token: f"{float(token):.12e}")


def check_results(results: Iterable[tuple[str, Table, Table]], *, zero: bytes = b"-0") -> None:
    """Checks both tables of each type. `zero` is the text that the second table has where the first one has -0."""
    for definition, first, second in results:
        assert len(first.log) == len(second.log) == COUNT
        check(first, definition)
        check(second, definition)
        if definition == "JSON":
            assert list(map(rounded, second.printed)) == list(map(rounded, first.printed))
        elif has_text(first.in_log):
            assert list(second.printed) == list(first.printed), definition
        elif b"-0" in first.printed:
            assert list(second.printed) == [zero if text == b"-0" else text for text in first.printed], definition
        else:
            assert second.log == first.log, definition


@EVERY_VERSION
def test_values_of_all_types_are_the_same_in_the_log_and_in_a_query(
    mysql_server: MysqlServer, mysql_database: str, seed: int
) -> None:
    with session(mysql_server, mysql_database) as connection, connection.cursor() as cursor:
        listed = rows(cursor, "SELECT CHARACTER_SET_NAME FROM information_schema.CHARACTER_SETS")
        charsets = sorted(name.decode() for (name,) in listed if name != b"binary")
        [(zero,)] = rows(cursor, "SELECT '-0' * 1e0")
    all_types = list(types(mysql_server.flavour, version_of(mysql_server), charsets))
    results = list(run(mysql_server, mysql_database, all_types, Random(seed)))
    assert len(results) == len(all_types)
    check_results(results, zero=zero)
    with session(mysql_server, mysql_database) as connection, connection.cursor() as cursor:
        server_types, test_types = (
            {name for (name,) in rows(cursor, f"SELECT DATA_TYPE FROM information_schema.COLUMNS WHERE {condition}")}
            for condition in ("TABLE_SCHEMA <> DATABASE()", "TABLE_SCHEMA = DATABASE()")
        )
    assert server_types <= test_types


def test_settings_of_the_server_do_not_change_values(mysql_server: MysqlServer, mysql_database: str) -> None:
    definitions = {"c": "CHAR(5) CHARACTER SET utf8mb4", "t": "TIMESTAMP(1) NULL", "b": "CHAR(2) CHARACTER SET latin1"}
    with session(mysql_server, mysql_database) as connection, connection.cursor() as cursor:
        for name, definition in definitions.items():
            cursor.execute(f"CREATE TABLE {name} (v {definition})")
        cursor.execute(
            "SET time_zone = '+05:00', sql_mode = 'PAD_CHAR_TO_FULL_LENGTH,ANSI_QUOTES', sql_select_limit = 1"
        )
        cursor.execute("SET NAMES latin1")
        cursor.execute("INSERT INTO c VALUES (_utf8mb4 x'e6bca2'), ('a')")
        cursor.execute("INSERT INTO t VALUES ('2024-01-31 10:00:00.5'), (0)")
        cursor.execute("INSERT INTO b VALUES (_latin1 x'e4'), ('b')")
        for statement in SETTINGS:
            cursor.execute(statement)
        columns = catalog_columns(mysql_server, mysql_database)
        assert query_values(cursor, "c", columns["c"]) == ["漢".encode(), b"a"]
        assert query_values(cursor, "t", columns["t"]) == [b"2024-01-31 05:00:00.5+00", b"0000-00-00 00:00:00.0"]
        assert query_values(cursor, "b", columns["b"]) == ["ä".encode(), b"b"]


def test_times_in_the_older_layouts_are_the_same_in_the_log_and_in_a_query(mariadb: MysqlServer, seed: int) -> None:
    with fresh_mysql_database(mariadb) as schema, mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET GLOBAL mysql56_temporal_format = OFF")
        try:
            results = list(run(mariadb, schema, list(old_types()), Random(seed)))
        finally:
            cursor.execute("SET GLOBAL mysql56_temporal_format = ON")
    assert {first.in_log.type for _, first, _ in results} == {TypeCode.TIME, TypeCode.DATETIME, TypeCode.TIMESTAMP}
    check_results(results)


def test_alter_table_force_converts_a_column_whose_size_is_not_in_the_log(mariadb: MysqlServer) -> None:
    with fresh_mysql_database(mariadb) as schema, mariadb.connect(schema) as connection, connection.cursor() as cursor:
        cursor.execute("SET GLOBAL mysql56_temporal_format = OFF")
        try:
            cursor.execute("CREATE TABLE old (at TIME(3))")
        finally:
            cursor.execute("SET GLOBAL mysql56_temporal_format = ON")
        assert lacks_size(catalog_columns(mariadb, schema)["old"].declared)
        cursor.execute("ALTER TABLE old FORCE")
        assert catalog_columns(mariadb, schema)["old"].declared == "time(3)"
