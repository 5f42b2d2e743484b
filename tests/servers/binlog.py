"""Reads the binary log of a server in a test: from the files in its data folder, or as a replica receives it."""

import contextlib
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pymysql
from pymysql.constants import COMMAND

from changelog.connectors.servers.mysql import MysqlServer

MAGIC = b"\xfebin"
"""The first bytes of each file of the log."""

REPLICA_ID = 4_000_000
"""The server id of the replica."""

Cursor = Any
"""A cursor of PyMySQL."""


def packets(file: bytes) -> Iterator[bytes]:
    """Splits a file of the log into its events."""
    assert file.startswith(MAGIC)
    begin = len(MAGIC)
    while begin < len(file):
        end = begin + int.from_bytes(file[begin + 9 : begin + 13], "little")
        yield file[begin:end]
        begin = end


def logged(server: MysqlServer, database: str, run: Callable[[Cursor], object]) -> Sequence[bytes]:
    """Calls `run` with a cursor in `database`. Returns the events of all files that the server wrote during the call.

    The first event is a format description. The last event is the rotation to the next file.
    """
    with server.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute("FLUSH BINARY LOGS")
        first = _last_file(cursor)
        run(cursor)
        cursor.execute("FLUSH BINARY LOGS")
        names = [name for name in _files(cursor) if first <= name < _last_file(cursor)]
    return [packet for name in names for packet in packets((server.data_dir / name).read_bytes())]


def _received(connection: "pymysql.Connection[pymysql.cursors.Cursor]") -> Iterator[bytes]:
    """Yields the event in each packet that the server sends. The byte before the event, a status, is left out."""
    while True:
        yield connection._read_packet().get_all_data()[1:]  # type: ignore[no-untyped-call]


def _files(cursor: Cursor) -> Sequence[str]:
    cursor.execute("SHOW BINARY LOGS")
    return [row[0] for row in cursor.fetchall()]


def _last_file(cursor: Cursor) -> str:
    return _files(cursor)[-1]


@contextlib.contextmanager
def streamed(server: MysqlServer, file: str) -> Iterator[Iterator[bytes]]:
    """Yields an iterator of the events that the server sends to a replica which reads from the beginning of `file` on.

    The iterator never ends: when there has been no event for 50 ms, the server sends a heartbeat.
    """
    connection = server.connect()
    try:
        with connection.cursor() as cursor:
            for prefix in ("master", "source"):
                cursor.execute(f"SET @{prefix}_binlog_checksum = 'CRC32', @{prefix}_heartbeat_period = 50000000")
            cursor.execute("SET @mariadb_slave_capability = 4")
        request = struct.pack("<IHI", len(MAGIC), 0, REPLICA_ID) + file.encode()
        connection._execute_command(COMMAND.COM_BINLOG_DUMP, request)  # type: ignore[attr-defined]
        yield _received(connection)
    finally:
        connection._force_close()  # type: ignore[attr-defined]
