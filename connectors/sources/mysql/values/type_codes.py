"""Lists the codes of column types in the binary log."""

from enum import IntEnum


class TypeCode(IntEnum):
    """The code of a column's type: `enum_field_types` in MySQL's `field_types.h`, and in MariaDB's `mysql_com.h`.

    Here are the types that a table map can name, and also `DECIMAL` and `NULL`, which no supported server writes.
    `STRING` stands for CHAR and BINARY, `VARCHAR` for VARCHAR and VARBINARY, and `BLOB` for every TEXT and BLOB. In
    MySQL 5.6, the types with a 2 at the end replaced those without it; MariaDB can still write the older ones.
    """

    DECIMAL = 0
    TINY = 1
    SHORT = 2
    LONG = 3
    FLOAT = 4
    DOUBLE = 5
    NULL = 6
    TIMESTAMP = 7
    LONGLONG = 8
    INT24 = 9
    DATE = 10
    TIME = 11
    DATETIME = 12
    YEAR = 13
    NEWDATE = 14
    VARCHAR = 15
    BIT = 16
    TIMESTAMP2 = 17
    DATETIME2 = 18
    TIME2 = 19
    TYPED_ARRAY = 20  # MySQL: the hidden column of an index over the elements of a JSON array
    BLOB_COMPRESSED = 140  # MariaDB: COLUMN_FORMAT COMPRESSED
    VARCHAR_COMPRESSED = 141  # MariaDB
    VECTOR = 242  # MySQL; in MariaDB's log, a vector looks like a VARBINARY
    JSON = 245  # MySQL; in MariaDB's log, a json looks like a LONGTEXT
    NEWDECIMAL = 246
    ENUM = 247
    SET = 248
    TINY_BLOB = 249
    MEDIUM_BLOB = 250
    LONG_BLOB = 251
    BLOB = 252
    VAR_STRING = 253
    STRING = 254
    GEOMETRY = 255
