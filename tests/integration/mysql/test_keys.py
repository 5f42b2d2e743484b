"""Tables with keys of any type are read in chunks, each row once, and single keys are found again."""

import itertools
from pathlib import Path
from random import Random

from changelog.connectors.servers.mysql import Server
from tests.integration.mysql.site import MysqlSite
from tests.servers.mysql import on_versions, version_of

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
    "DOUBLE": ["-1.5e300", "0", "1e-7", "0.1", "16777217", "3"],
    "VARCHAR(40)": [text(value) for value in ("", "a", "B", "c", "x y", "Z", "10", "_")],  # the server's own collation
    "VARCHAR(50) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin": [text(value) for value in TEXTS],
    "VARCHAR(50) CHARACTER SET latin1 COLLATE latin1_bin": [
        text(value) for value in TEXTS if ord((value or "a")[0]) < 256
    ],
    "CHAR(8) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci": [text(value) for value in ("a", "b", "C", "x y", "é")],
    "VARBINARY(20)": [hexadecimal(value) for value in (b"", b"\0", b"\0\0", b"'", b"\\", b"\xff\xfe", b"abc")],
    "BINARY(16)": [hexadecimal(bytes([number]) * 15) for number in range(10)],
    "DATE": ["'2024-01-31'", "'1000-01-01'", "'9999-12-31'"],
    "DATETIME(6)": ["'2024-01-31 10:00:00.000001'", "'2024-01-31 10:00:00'", "'1000-01-01'"],
    "TIMESTAMP(3)": ["'2024-01-31 10:00:00.001'", "'2024-01-31 10:00:00'", "'1999-12-31 23:59:59'"],
    "TIME": ["'-838:59:59'", "'00:00:00'", "'10:20:30'"],
    "YEAR": ["1901", "2024", "2155"],
    "ENUM('z','a','m')": ["'z'", "'a'", "'m'"],
    "SET('x','y','z')": ["''", "'x'", "'x,z'", "'y'"],
    "BIT(9)": ["b'0'", "b'111111111'", "b'101'"],
}
"""Values of keys as SQL, by the type of the column."""


def composite(seed: int) -> list[str]:
    keys = list(itertools.product(range(-1, 3), ("a", "B", "c"), ("2024-01-01", "2024-01-02", "2023-05-05")))
    Random(seed).shuffle(keys)
    return [f"({number}, '{name}', '{day}', 1)" for number, name, day in keys]


@on_versions("mariadb", "mysql", "mariadb-11.8")
def test_rows_are_read_by_keys_of_each_type(
    mysql_server: Server, mysql_database: str, tmp_path: Path, seed: int
) -> None:
    site = MysqlSite(mysql_server, mysql_database, tmp_path, snapshot_rows=4)
    version = "_v7" if version_of(mysql_server) >= (11, 7) else ""
    uuids = {"UUID": [f"UUID{version}()"] * 20} if mysql_server.flavour == "mariadb" else {}
    tables = {
        f"place_{number}": (f"k {declared} PRIMARY KEY, n INT", [f"({value}, 1)" for value in values])
        for number, (declared, values) in enumerate((KEYS | uuids).items())
    }
    tables["several"] = "a INT, b VARCHAR(9), c DATE, n INT, PRIMARY KEY (b, c, a)", composite(seed)
    for name, (columns, rows) in tables.items():
        site.sql(f"CREATE TABLE {name} ({columns})", f"INSERT INTO {name} VALUES {', '.join(rows)}")
    site.sql("CREATE TABLE changelog_signal (id BIGINT PRIMARY KEY, content MEDIUMTEXT NOT NULL)")
    site.configure(
        "".join(
            ENTITY.format(name=name, database=mysql_database, key='["b", "c", "a"]' if name == "several" else '["k"]')
            for name in tables
        )
    )
    with site.running() as service:
        service.until(site.is_read)
        read = {name: [key for _, key in site.ops(name)] for name in tables}
        counts = {name: len(rows) for name, (_, rows) in tables.items()}
        assert {name: len(set(keys)) for name, keys in read.items()} == counts
        assert {name: len(keys) for name, keys in read.items()} == counts
        # A key that begins with a minus would be an option of the command.
        repeated = {name: [key for key in keys if not key.startswith("-")][::2] for name, keys in read.items()}
        for name, keys in repeated.items():
            assert site.call("republish", name, "--keys", *keys, "--no-wait")[0] == 0
        service.until(lambda: all(len(site.ops(name)) >= len(read[name]) + len(repeated[name]) for name in tables))
    for name, keys in repeated.items():
        assert sorted(site.ops(name)[len(read[name]) :]) == sorted(("read", key) for key in keys), name
