"""Lists statements that make a server write every kind of event that it can write with `binlog_format = ROW`."""

from collections.abc import Mapping, Sequence

from changelog.connectors.servers.mysql import Flavour

COLUMNS: Mapping[str, tuple[str, str]] = {
    "id": ("INT UNSIGNED PRIMARY KEY", "1"),
    "tiny_signed": ("TINYINT", "-1"),
    "tiny_unsigned": ("TINYINT UNSIGNED", "255"),
    "small": ("SMALLINT", "-2"),
    "medium": ("MEDIUMINT UNSIGNED", "7"),
    "big": ("BIGINT UNSIGNED", "18446744073709551615"),
    "year_": ("YEAR", "2024"),
    "float_": ("FLOAT", "1.5"),
    "double_": ("DOUBLE", "-2.5"),
    "decimal_long": ("DECIMAL(65,30) UNSIGNED", "12345678901.5"),
    "decimal_short": ("DECIMAL(5,2)", "-123.45"),
    "decimal_fraction": ("DECIMAL(9,9)", "0.000000001"),
    "date_": ("DATE", "'2024-02-29'"),
    "time_0": ("TIME", "'12:34:56'"),
    "time_3": ("TIME(3)", "'-01:02:03.5'"),
    "datetime_0": ("DATETIME", "'2024-01-01 00:00:00'"),
    "datetime_6": ("DATETIME(6)", "'2024-01-01 00:00:00.000001'"),
    "timestamp_2": ("TIMESTAMP(2) NULL", "'2024-01-01 00:00:00.25'"),
    "bit_1": ("BIT(1)", "b'1'"),
    "bit_11": ("BIT(11)", "b'10000000101'"),
    "bit_64": ("BIT(64)", "18446744073709551615"),
    "enum_": ("ENUM('a','b') CHARACTER SET latin1", "'b'"),
    "enum_large": ("ENUM(" + ",".join(f"'v{n}'" for n in range(300)) + ") CHARACTER SET utf8mb4", "'v299'"),
    "set_": ("SET('x','y','z') CHARACTER SET latin1", "'x,z'"),
    "set_64": ("SET(" + ",".join(f"'v{n}'" for n in range(64)) + ") CHARACTER SET latin1", "'v0,v63'"),
    "char_": ("CHAR(20) CHARACTER SET latin1", "'caf'"),
    "char_long": ("CHAR(255) CHARACTER SET utf8mb4", "'cl'"),
    "varchar_": ("VARCHAR(10) CHARACTER SET latin1", "'vch'"),
    "varchar_long": ("VARCHAR(300) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", "REPEAT('v', 300)"),
    "binary_": ("BINARY(16)", "x'00ff'"),
    "varbinary_": ("VARBINARY(300)", "x'ff00'"),
    "tiny_text": ("TINYTEXT", "'tiny'"),
    "text_": ("TEXT CHARACTER SET utf8mb4", "'text'"),
    "medium_blob": ("MEDIUMBLOB", "REPEAT('m', 300)"),
    "long_blob": ("LONGBLOB", "x'00'"),
    "json_": ("JSON", """'{"a": [1, 2.5, "x"]}'"""),
    "geometry_": ("GEOMETRY", "ST_GeomFromText('POINT(1 2)')"),
    "point_": ("POINT", "ST_GeomFromText('POINT(3 4)')"),
}
"""One column for each type. Maps the column's name to its definition, and to SQL for one value of the column."""

MARIADB_COLUMNS: Mapping[str, tuple[str, str]] = {
    "uuid_": ("UUID", "'00112233-4455-6677-8899-aabbccddeeff'"),
    "inet6_": ("INET6", "'::1'"),
    "inet4_": ("INET4", "'1.2.3.4'"),
    "varchar_compressed": ("VARCHAR(500) COMPRESSED", "REPEAT('x', 400)"),
    "blob_compressed": ("BLOB COMPRESSED", "REPEAT('y', 4000)"),
}


def columns(flavour: Flavour) -> Mapping[str, tuple[str, str]]:
    """Returns the columns of the table `every`, in the form of COLUMNS."""
    return COLUMNS if flavour == "mysql" else {**COLUMNS, **MARIADB_COLUMNS}


def statements(flavour: Flavour, version: tuple[int, int]) -> Sequence[str]:
    """Returns the statements for a server of this flavour and version. They expect an empty database."""
    every = columns(flavour)
    return [
        f"CREATE TABLE every ({', '.join(f'{name} {definition}' for name, (definition, _) in every.items())})",
        f"INSERT INTO every VALUES ({', '.join(value for _, value in every.values())})",
        "INSERT INTO every (id) VALUES (2)",
        "UPDATE every SET tiny_signed = NULL, varchar_ = 'new' WHERE id = 1",
        "DELETE FROM every",
        "CREATE TABLE pair (name VARCHAR(20), half INT, PRIMARY KEY (half, name(3)))",
        "INSERT INTO pair VALUES ('one', 1), ('two', 2), ('three', 3)",
        "XA START 'left', 'right', 7",
        "UPDATE pair SET half = half + 10",
        "XA END 'left', 'right', 7",
        "XA PREPARE 'left', 'right', 7",
        "XA COMMIT 'left', 'right', 7",
        "XA START 'once'",
        "INSERT INTO pair VALUES ('once', 4)",
        "XA END 'once'",
        "XA COMMIT 'once' ONE PHASE",
        "SET sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES'",
        "SET NAMES latin1",
        'ALTER TABLE "pair" ADD COLUMN "more" TIMESTAMP(6) DEFAULT NOW(6)',
        "SET sql_mode = DEFAULT",
        "SET NAMES utf8mb4",
        "SET binlog_row_image = MINIMAL",
        "UPDATE pair SET name = 'other' WHERE half = 12",
        "SET binlog_row_image = FULL",
        "TRUNCATE TABLE pair",
        *(_MYSQL if flavour == "mysql" else _MARIADB),
        *(statement for since, statements in _SINCE[flavour].items() if version >= since for statement in statements),
        "DROP TABLE every, pair",
    ]


_MYSQL = (
    "CREATE TABLE document (id INT PRIMARY KEY, j JSON, k JSON, a VARCHAR(20), INDEX ((UPPER(a))))",
    """INSERT INTO document VALUES (1, '{"a": 1, "b": [1, 2, 3], "c": "a text that is long enough"}', NULL, 'x')""",
    "SET binlog_row_value_options = PARTIAL_JSON",
    "UPDATE document SET j = JSON_SET(j, '$.a', 2), a = 'y'",
    "UPDATE document SET j = JSON_REMOVE(JSON_SET(j, '$.b[1]', 2), '$.a')",
    "UPDATE document SET k = '{}'",
    "SET binlog_row_value_options = ''",
)

_MARIADB = (
    "SET GLOBAL log_bin_compress = ON, log_bin_compress_min_len = 10",
    "CREATE TABLE compressed (id INT PRIMARY KEY, text_ VARCHAR(500))",
    "INSERT INTO compressed VALUES (1, REPEAT('x', 400)), (2, REPEAT('y', 400))",
    "UPDATE compressed SET text_ = 'z' WHERE id = 1",
    "DELETE FROM compressed WHERE id = 2",
    "SET GLOBAL log_bin_compress = OFF",
    "SET SESSION binlog_alter_two_phase = ON",
    "ALTER TABLE compressed ADD COLUMN added INT",
    "CREATE SEQUENCE numbers",
    "SELECT NEXT VALUE FOR numbers",
)

_MARIADB_11_4 = (
    "SET binlog_row_image = FULL_NODUP",
    "INSERT INTO compressed VALUES (3, 'x', 1)",
    "UPDATE compressed SET added = 2 WHERE id = 3",
    "SET binlog_row_image = FULL",
)

MYSQL_9 = (
    "CREATE TABLE modern (id INT PRIMARY KEY, v VECTOR(3), hidden INT INVISIBLE, tags JSON, name VARCHAR(9) NOT NULL)",
    "ALTER TABLE modern ADD COLUMN born YEAR, ADD COLUMN number INT UNSIGNED, ADD COLUMN signed_ INT",
    "CREATE INDEX elements ON modern ((CAST(tags -> '$' AS UNSIGNED ARRAY)))",
    "SET gtid_next = 'AUTOMATIC:night_shift'",
    "INSERT INTO modern (id, v, hidden, tags, name) VALUES (1, TO_VECTOR('[1, 2.5, -3]'), 7, '[100, 2]', 'a')",
    "SET gtid_next = 'AUTOMATIC'",
    "SET binlog_transaction_compression = ON",
    "SET binlog_row_value_options = PARTIAL_JSON",
    "BEGIN",
    "INSERT INTO modern (id, name) VALUES (2, 'b'), (3, 'c')",
    "UPDATE modern SET hidden = id",
    "UPDATE modern SET tags = JSON_SET(tags, '$[0]', 10) WHERE id = 1",
    "DELETE FROM modern",
    "COMMIT",
)
"""Statements for MySQL 9: a tagged GTID, a compressed transaction, and types of columns that MySQL 8.0.15 lacks."""

MARIADB_11_8 = (
    "CREATE TABLE modern (id UUID PRIMARY KEY, v VECTOR(3) NOT NULL, address INET6, name VARCHAR(9), VECTOR INDEX (v))",
    "INSERT INTO modern VALUES (UUID_v7(), VEC_FromText('[1, 2.5, -3]'), '::1', 'a')",
    "UPDATE modern SET v = VEC_FromText('[0, 0, 0]'), name = 'b' COLLATE utf8mb4_uca1400_as_cs",
    "ALTER TABLE modern MODIFY name VARCHAR(9) COLLATE utf8mb4_uca1400_nopad_as_cs, ADD COLUMN note TEXT",
    "DELETE FROM modern",
)
"""Statements for MariaDB 11.8: a vector, and collations by the newer rules of Unicode."""

_SINCE: Mapping[Flavour, Mapping[tuple[int, int], Sequence[str]]] = {
    "mysql": {(9, 0): MYSQL_9},
    "mariadb": {(11, 4): _MARIADB_11_4, (11, 8): MARIADB_11_8},
}
"""Further statements for each flavour, by the first version that accepts them. All later versions accept them, too."""
