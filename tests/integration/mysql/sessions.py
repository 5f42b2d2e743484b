"""Opens sessions that return every value as the bytes that the server sent."""

from typing import Any, Final

import pymysql
from pymysql.converters import encoders
from pymysql.cursors import Cursor

from changelog.connectors.servers.mysql import MysqlServer

ENCODERS: Final[dict[Any, Any]] = {**encoders}
"""The converters that PyMySQL uses to write values into statements. There are no converters for reading, so values
arrive as bytes.
"""


def session(server: MysqlServer, database: str) -> "pymysql.Connection[Cursor]":
    """Opens a session in autocommit mode. Texts are in UTF-8. If a value does not fit a column, the server stores the
    nearest value that fits.
    """
    return pymysql.connect(
        host=server.host,
        port=server.port,
        user="root",
        database=database,
        charset="utf8mb4",
        use_unicode=False,
        conv=ENCODERS,
        sql_mode="",
        autocommit=True,
        ssl_disabled=True,
    )


def rows(cursor: Cursor, sql: str) -> list[tuple[bytes, ...]]:
    """Runs a query, and returns its rows."""
    cursor.execute(sql)
    return list(cursor.fetchall())
