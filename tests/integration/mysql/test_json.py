"""Decodes JSON documents from MySQL's log, and compares them with the texts that the server prints for them."""

import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from changelog.connectors.servers.mysql import MysqlServer
from changelog.connectors.sources.mysql.decode.events.event_reader import EventReader
from changelog.connectors.sources.mysql.decode.events.events import RowsEvent, TableMap
from changelog.connectors.sources.mysql.decode.rows.row_images import PartialJson, RawValue, images
from changelog.connectors.sources.mysql.values.documents.json_diff import apply_diffs
from changelog.connectors.sources.mysql.values.documents.json_text import json_text
from tests.servers.binlog import Cursor, logged
from tests.servers.mysql import fresh_mysql_database

NAMES = ["a", "b", "", "größe", "a b", '"', "\\", "c\n", "$.a", "日本", "😀", "x" * 300]
TEXTS = [*NAMES, "\x00\x1f\x7f", "/", "\u2028", "y" * 127, "y" * 128, "é" * 20_000]
INTEGERS = [sign * (1 << bits) + add for sign in (1, -1) for bits in (7, 8, 15, 16, 31, 32, 62) for add in (-1, 0, 1)]
NUMBERS = [*INTEGERS, (1 << 63) - 1, -(1 << 63), 1 << 63, (1 << 64) - 1]
DOUBLES = [
    0.0,
    -0.0,
    1.0,
    0.1,
    1e14,
    1e15,
    1e16,
    1e-5,
    1e-15,
    1.5e-15,
    1e-16,
    5e-324,
    1.7976931348623157e308,
    1e100,
    123456789.125,
    -2.5,
]


def random_value(random: Random, depth: int = 0) -> Any:
    kind = random.randrange(7 if depth < 4 else 5)
    if kind == 0:
        return random.choice([None, True, False])
    if kind == 1:
        return random.choice(NUMBERS)
    if kind == 2:
        return random.choice(
            [*DOUBLES, random.uniform(-1e6, 1e6), random.gauss(0, 1) * 10 ** random.randrange(-300, 300)]
        )
    if kind in (3, 4):
        return random.choice(TEXTS)
    if random.random() < 0.02:  # a value of more than 64 KiB, for which MySQL has another layout
        return [random.choice(NUMBERS) for _ in range(30_000)] if kind == 5 else {f"n{n}": n for n in range(9_000)}
    values = [random_value(random, depth + 1) for _ in range(random.randrange(5))]
    return values if kind == 5 else {random.choice(NAMES): value for value in values}


def read(text: bytes | str) -> Any:
    """Parses JSON so that values can be compared strictly: the order of members matters, and 1 is not equal to 1.0."""
    return json.loads(text, object_pairs_hook=lambda pairs: ["object", *pairs], parse_int=str)


def stored(cursor: Cursor) -> str:
    cursor.execute("SELECT doc FROM t")
    row = cursor.fetchone()
    assert row is not None
    return str(row[0])


def texts(server: MysqlServer, database: str, run: Callable[[Cursor], object]) -> Iterator[tuple[str, bool]]:
    """Calls `run`, whose statements change rows of the table `t`. For each changed row in the server's log, yields the
    new document, and whether the log has only the differences from the old document (a partial update).
    """
    table_map: TableMap | None = None
    reader = EventReader()
    for event in (event for packet in logged(server, database, run) for event in reader.read(packet)):
        if isinstance(event, TableMap):
            table_map = event
        elif isinstance(event, RowsEvent) and table_map is not None and table_map.table == "t":
            for old, new in images(table_map, event):
                assert new is not None
                yield new_text(old[0] if old else None, new[0]), isinstance(new[0], PartialJson)


def new_text(old: RawValue, new: RawValue) -> str:
    if isinstance(new, PartialJson):
        assert isinstance(old, memoryview)
        return apply_diffs(old, new.diffs).decode()
    assert isinstance(new, memoryview)
    return json_text(new).decode()


@pytest.fixture
def database(mysql: MysqlServer) -> Iterator[str]:
    with fresh_mysql_database(mysql) as name:
        yield name


def test_decoded_documents_equal_the_texts_that_the_server_prints(mysql: MysqlServer, database: str, seed: int) -> None:
    random = Random(seed)
    printed: list[str] = []

    def run(cursor: Cursor) -> None:
        cursor.execute("CREATE TABLE t (doc JSON)")
        for _ in range(150):
            text = json.dumps(random_value(random), ensure_ascii=random.random() < 0.5)
            cursor.execute("INSERT INTO t VALUES (%s)", (text,))
            printed.append(stored(cursor))
            cursor.execute("TRUNCATE t")

    assert [text for text, _ in texts(mysql, database, run)] == printed


OPAQUE = [
    *("12.340", "-0.5", "0.0", "123456789012345678901234567890"),
    f"CAST(-{'9' * 35}.{'9' * 30} AS DECIMAL(65,30))",
    *("DATE '2024-02-29'", "TIME '-838:59:59'", "TIME '00:00:00.000001'", "TIME '-00:00:00.5'"),
    *("TIMESTAMP '9999-12-31 23:59:59.999999'", "CAST('1000-01-01' AS DATETIME)"),
    *("x'00FF'", "x''", "REPEAT(x'ff', 57)", "REPEAT(x'ff', 58)", "REPEAT(x'ff', 400)", "b'101'"),
    *("CAST('ab' AS BINARY(5))", "ST_GeomFromText('POINT(1 2.5)')"),
    *(f"(SELECT {name} FROM o)" for name in ("y", "b", "e", "s", "ts", "bl", "f", "vb", "d", "dt")),
]
"""SQL expressions of types that JSON lacks. MySQL stores such a value in a document with its SQL type, or converts it
to a type of JSON.
"""


def test_decoded_values_of_other_types_equal_the_texts_that_the_server_prints(
    mysql: MysqlServer, database: str
) -> None:
    printed: list[str] = []

    def run(cursor: Cursor) -> None:
        cursor.execute("SET sql_mode = ''")
        cursor.execute(
            "CREATE TABLE o (y YEAR, b BIT(9), e ENUM('p','q'), s SET('p','q'), ts TIMESTAMP(3), bl BLOB, f FLOAT,"
            " vb VARBINARY(9), d DATE, dt DATETIME(2))"
        )
        cursor.execute(
            "INSERT INTO o VALUES (2024, 257, 'q', 'p,q', '2024-01-02 03:04:05.678', 'ab', 1.5, 'cd', '2024-00-00', 0)"
        )
        cursor.execute("CREATE TABLE t (doc JSON)")
        for expression in OPAQUE:
            cursor.execute(f"INSERT INTO t VALUES (JSON_ARRAY({expression}))")
            printed.append(stored(cursor))
            cursor.execute("TRUNCATE t")

    assert [text for text, _ in texts(mysql, database, run)] == printed


CHANGES = [
    *("JSON_SET(doc, %s, {})", "JSON_REPLACE(doc, %s, {})", "JSON_REMOVE(doc, %s)", "JSON_ARRAY_INSERT(doc, %s, {})"),
    "JSON_SET(JSON_REMOVE(doc, %s), '$.new', {})",
]
VALUES = ["7", "'text'", "CAST('[1, {\"k\": 2.5}]' AS JSON)", "1.50"]


def path_into(document: Any, random: Random) -> str:
    """Returns the path of a value in the document, or of a member or an element that the document lacks."""
    path = "$"
    while isinstance(document, dict | list) and (path == "$" or random.random() < 0.8):
        if isinstance(document, dict):
            name = random.choice([*document, "a", "new"])
            path, document = f"{path}.{json.dumps(name, ensure_ascii=False)}", document.get(name)
        else:
            index = random.randrange(len(document) + 2)
            path += random.choice([f"[{index}]", f"[last-{index}]"])
            document = document[index] if index < len(document) else None
    return path


def change(cursor: Cursor, random: Random) -> bool:
    """Executes a random update, unless the SQL function would refuse the path. Returns whether the update changed the
    document.
    """
    expression = random.choice(CHANGES).format(random.choice(VALUES))
    path = path_into(json.loads(stored(cursor)), random)
    if "REMOVE" in expression and path == "$":
        return False
    if "ARRAY_INSERT" in expression and not path.endswith("]"):
        path += "[0]"
    return bool(cursor.execute(f"UPDATE t SET doc = {expression}", (path,)))


def test_partial_updates_give_what_the_server_stores(mysql: MysqlServer, database: str, seed: int) -> None:
    random = Random(seed)
    printed: list[str] = []

    def run(cursor: Cursor) -> None:
        cursor.execute("CREATE TABLE t (doc JSON)")
        cursor.execute("SET SESSION binlog_row_value_options = 'PARTIAL_JSON'")
        for _ in range(60):
            lists = [random_value(random, 2) for _ in range(3)]
            start = {"a": random_value(random, 1), "list": lists, "größe": {"b c": random_value(random, 2)}}
            cursor.execute("INSERT INTO t VALUES (%s)", (json.dumps(start),))
            printed.append(stored(cursor))
            printed.extend(stored(cursor) for _ in range(5) if change(cursor, random))
            cursor.execute("TRUNCATE t")

    documents = list(texts(mysql, database, run))
    assert [read(text) for text, _ in documents] == list(map(read, printed))
    assert sum(partial for _, partial in documents) > 50
