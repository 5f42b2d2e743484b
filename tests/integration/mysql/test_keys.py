"""Tests keys of all types that a column can have.

The service must read each row of a table with such a key once, and must find the rows of given keys.
"""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from changelog.connectors.capture.rows.row_records import Origin
from changelog.connectors.capture.tables.key_lookup import LookupKeys
from changelog.connectors.servers.mysql import MysqlServer
from changelog.connectors.sources.mysql.admin.columns import ColumnCatalog
from changelog.connectors.sources.mysql.decode.rows.binder import Binder
from changelog.connectors.sources.mysql.settings import Settings
from changelog.connectors.sources.mysql.snapshot import read_table as read_table_module
from changelog.connectors.sources.mysql.snapshot.key_rows import read_keys
from changelog.connectors.sources.mysql.snapshot.read_table import read_table
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError, Kind
from tests.integration.mysql.site import MysqlSite
from tests.integration.test_repair_keys import HOSTILE, HOSTILE_SAMPLE, HUGE
from tests.servers.mysql import EVERY_VERSION, on_versions, version_of
from tests.unit.postgres.messages import entity as make_entity

ENTITY = """
[entities.{name}]
table = "{database}.{name}"
key = {key}
"""

TEXTS = ["a", "A", "ä", "b'", 'c"', "d\\", "", "ß", "ss", "日本", "😀", "z" * 40]


def hexadecimal(value: bytes) -> str:
    return f"x'{value.hex()}'"


def text(value: str) -> str:
    return f"CONVERT(_utf8mb4 x'{value.encode().hex()}' USING utf8mb4)"


KEYS = {
    "BIGINT UNSIGNED": [str(number) for number in (0, 1, 2**63 - 1, 2**63, 2**64 - 1)],
    "SMALLINT": [str(number) for number in range(-20, 25)],
    "DECIMAL(20,4)": ["-1.5", "0", "0.0001", "99999999999999.9999", "1.25", "3"],
    "FLOAT": ["-1.5e30", "0", "1e-7", "0.1", "16777217", "3"],
    "DOUBLE": ["-1.5e300", "0", "1e-7", "0.1", "16777217", "3"],
    "VARCHAR(40)": [text(value) for value in ("", "a", "B", "c", "x y", "Z", "10", "_")],  # the default collation
    "VARCHAR(50) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin": [text(value) for value in TEXTS],
    "VARCHAR(50) CHARACTER SET latin1 COLLATE latin1_bin": [
        text(value) for value in TEXTS if ord((value or "a")[0]) < 256
    ],
    "CHAR(8) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci": [text(value) for value in ("a", "b", "C", "x y", "é")],
    "VARBINARY(20)": [hexadecimal(value) for value in (b"", b"\0", b"\0\0", b"'", b"\\", b"\xff\xfe", b"abc")],
    "BINARY(16)": [hexadecimal(bytes([number]) * 15) for number in range(10)],
    "DATE": [
        "'2024-01-31'",
        "'1000-01-01'",
        "'9999-12-31'",
        "'0000-00-00'",
        "'2024-02-00'",
        "'2024-02-30'",
        "'2024-02-31'",
        "'2024-03-01'",
    ],
    "DATETIME(6)": [
        "'2024-01-31 10:00:00.000001'",
        "'2024-01-31 10:00:00'",
        "'1000-01-01'",
        "'0000-00-00'",
        "'2024-02-31 10:00:00'",
        "'9999-12-31 23:59:59.999999'",
        "'2024-02-31 10:00:00.5'",
        "'2024-02-31 11:00:00'",
        "'2024-03-01'",
    ],
    "TIMESTAMP(3)": ["'2024-01-31 10:00:00.001'", "'2024-01-31 10:00:00'", "'1999-12-31 23:59:59'"],
    "TIME": ["'-838:59:59'", "'00:00:00'", "'10:20:30'"],
    "TIME(6)": ["'-838:59:59.5'", "'838:59:59.999999'", "'00:00:00.000001'", "'-00:00:00.5'", "'838:59:58.999999'"],
    "YEAR": ["1901", "2024", "2155"],
    "ENUM('z','a','m')": ["'z'", "'a'", "'m'"],
    "ENUM('z','é','😀') CHARACTER SET utf8mb4": ["'z'", "'é'", "'😀'"],
    "SET('x','y','z')": ["''", "'x'", "'x,z'", "'y'"],
    "BIT(9)": ["b'0'", "b'111111111'", "b'101'"],
}
"""SQL expressions of keys, by the type of the key column. Some of the dates do not exist. `fill` sets an SQL mode in
which the server stores these dates, too.
"""

CHARSETS = ("ascii", "cp932", "gbk", "latin1", "ucs2", "utf8mb3", "utf8mb4", "utf16")

OTHER_HOSTILE = (
    *HOSTILE, "0101", "5", "-0", "1.", "1e5", "1e39", "1e400", "9999-99-99", "2024-02-32", "2024-01-01T24:00:00",
    "2024-01-01T10:00:00.1234567Z", "10:99:00", "838:59:59.5", "::1", "AAA", "日本", "😀",
)  # fmt: skip

ALPHABET = "0123456789-:.eETZ+ 'a\\é😀"


def composite(seed: int) -> list[str]:
    keys = list(itertools.product(range(-1, 3), ("a", "B", "c"), ("2024-01-01", "2024-01-02", "2023-05-05")))
    Random(seed).shuffle(keys)
    return [f"({number}, '{name}', '{day}', 1)" for number, name, day in keys]


def tables_of(server: MysqlServer) -> dict[str, tuple[str, list[str]]]:
    """Returns, by the name of a table, the type of the table's key column and SQL expressions of the table's keys."""
    version = "_v7" if version_of(server) >= (11, 7) else ""
    uuids = {"UUID": [f"UUID{version}()"] * 20} if server.flavour == "mariadb" else {}
    return {f"place_{number}": pair for number, pair in enumerate((KEYS | uuids).items())}


def fill(site: MysqlSite, name: str, columns: str, rows: list[str]) -> None:
    site.sql(
        "SET sql_mode = 'ALLOW_INVALID_DATES'",
        f"CREATE TABLE {name} ({columns})",
        f"INSERT INTO {name} VALUES {', '.join(rows)}",
    )


@on_versions("mariadb", "mysql", "mariadb-11.8")
def test_rows_are_read_by_keys_of_each_type(
    mysql_server: MysqlServer, mysql_database: str, tmp_path: Path, seed: int
) -> None:
    site = MysqlSite(mysql_server, mysql_database, tmp_path, snapshot_rows=4)
    tables = {
        name: (f"k {column_type} PRIMARY KEY, n INT", [f"({value}, 1)" for value in values])
        for name, (column_type, values) in tables_of(mysql_server).items()
    }
    tables["several"] = "a INT, b VARCHAR(9), c DATE, n INT, PRIMARY KEY (b, c, a)", composite(seed)
    for name, (columns, rows) in tables.items():
        fill(site, name, columns, rows)
    site.sql("CREATE TABLE changelog_signal (id BIGINT PRIMARY KEY, content MEDIUMTEXT NOT NULL)")
    site.configure(
        "".join(
            ENTITY.format(name=name, database=mysql_database, key='["b", "c", "a"]' if name == "several" else '["k"]')
            for name in tables
        )
    )
    with site.running() as service:
        service.until(site.is_read)
        first_keys = {name: [key for _, key in site.ops(name)] for name in tables}
        counts = {name: len(rows) for name, (_, rows) in tables.items()}
        assert {name: len(set(keys)) for name, keys in first_keys.items()} == counts
        assert {name: len(keys) for name, keys in first_keys.items()} == counts
        # Half of each table's keys are requested, and also those that are in HOSTILE_SAMPLE, such as the empty string.
        # A key that begins with a minus is left out, because the command would take it for an option.
        requested = {
            name: {key for key in keys if not key.startswith("-")} & {*keys[::2], *HOSTILE_SAMPLE}
            for name, keys in first_keys.items()
        }
        for name, keys in requested.items():
            absent = [key for key in HOSTILE_SAMPLE if key not in keys]
            assert site.call("republish", name, "--keys", *keys, *absent, "--no-wait")[0] == 0
        totals = {name: len(first_keys[name]) + len(keys) for name, keys in requested.items()}
        service.until(lambda: all(len(site.ops(name)) >= total for name, total in totals.items()))
    for name, keys in requested.items():
        assert sorted(site.ops(name)[len(first_keys[name]) :]) == sorted(("read", key) for key in keys), name


def settings_and_entity(site: MysqlSite, table: str) -> tuple[Settings, Entity]:
    """Returns the source's settings, and the entity of a table whose key is `k`."""
    entity = make_entity(table, key=("k",), partition_by=("k",))
    return Settings(name=site.name, dsn=site.dsn, hmac_key=b""), replace(entity, table=(site.database, table))


def lookup(site: MysqlSite, table: str, requested: Sequence[str]) -> tuple[set[str], list[str]]:
    """Looks up the requested keys and all keys of the table. Returns the table's keys, and the keys for which the
    lookup found no row.
    """
    settings, entity = settings_and_entity(site, table)
    origin = Origin(connector="mysql", name="x", database=site.database)
    with settings.connect_reading(settings.stopping) as connection:
        bound = read_table(ColumnCatalog.of(connection.query, connection.flavour), Binder(hmac_key=b""), entity)
        present = bound.rows(connection, origin, "TRUE", read_at=0).keys.to_pylist()
        rows = read_keys(connection, origin, bound, LookupKeys(keys=(*requested, *present)), read_at=0)
    return set(present), rows.gone.to_pylist()


@EVERY_VERSION
def test_keys_of_any_form_and_length_are_looked_up_in_every_type(
    mysql_server: MysqlServer, mysql_database: str, tmp_path: Path, seed: int
) -> None:
    site = MysqlSite(mysql_server, mysql_database, tmp_path)
    tables = tables_of(mysql_server) | {
        f"text_{charset}": (f"VARCHAR(40) CHARACTER SET {charset}", ["'a'", "'?'"]) for charset in CHARSETS
    }
    if mysql_server.flavour == "mariadb":
        tables |= {"inet4": ("INET4", ["'10.0.0.1'"]), "inet6": ("INET6", ["'::1'", "'::ffff:1.2.3.4'"])}
    random = Random(seed)
    random_keys = ["".join(random.choices(ALPHABET, k=random.randrange(1, 30))) for _ in range(1_000)]
    for name, (column_type, values) in tables.items():
        fill(site, name, f"k {column_type} PRIMARY KEY", [f"({value})" for value in values])
        present, gone = lookup(site, name, [*OTHER_HOSTILE, *HUGE, *random_keys])
        assert len(present) == len(values), column_type
        assert gone == [key for key in (*OTHER_HOSTILE, *HUGE, *random_keys) if key not in present], column_type


@on_versions("mariadb", "mysql")
@pytest.mark.parametrize("column_type", ["ENUM({})", "BIGINT"])
def test_keys_of_a_table_that_is_larger_than_a_chunk_are_looked_up(
    mysql_server: MysqlServer, mysql_database: str, tmp_path: Path, column_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = MysqlSite(mysql_server, mysql_database, tmp_path, snapshot_rows=10)
    keys = [str(number) for number in range(200)]
    labels = ", ".join(f"'{key}'" for key in keys)
    site.sql(f"CREATE TABLE item (k {column_type.format(labels)} PRIMARY KEY, text VARCHAR(200) NOT NULL)")
    site.sql("INSERT INTO item VALUES " + ", ".join(f"('{key}', REPEAT('x', 100))" for key in keys))
    site.sql("CREATE TABLE changelog_signal (id BIGINT PRIMARY KEY, content MEDIUMTEXT NOT NULL)")
    site.configure(ENTITY.format(name="item", database=mysql_database, key='["k"]'))
    monkeypatch.setattr(read_table_module, "CHUNK_BYTES_MAX", 4_000)
    with site.running() as service:
        service.until(site.is_read)
        assert site.call("republish", "item", "--keys", *keys[50:150], "--no-wait")[0] == 0
        service.until(lambda: len(site.ops("item")) >= 300)
    assert sorted(site.ops("item")[200:]) == sorted(("read", key) for key in keys[50:150])


@on_versions("mariadb")
def test_a_key_is_refused_if_no_query_can_find_rows_by_its_type(
    mysql_server: MysqlServer, mysql_database: str, tmp_path: Path
) -> None:
    site = MysqlSite(mysql_server, mysql_database, tmp_path)
    site.sql("CREATE TABLE item (k JSON NOT NULL, UNIQUE (k))")
    with pytest.raises(ChangelogError, match="rows cannot be found by column") as raised:
        lookup(site, "item", ["1"])
    assert raised.value.kind is Kind.PRECONDITION
