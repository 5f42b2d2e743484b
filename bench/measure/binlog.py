"""Writes the changes for `bench/mysql.py`, and receives the binary log without decoding it."""

import contextlib
import json
import struct
import time
from typing import Any

import pymysql

from changelog.connectors.servers.mysql import Flavour

DATABASE = "bench"

_TABLES = (
    """CREATE TABLE orders (
        id bigint PRIMARY KEY, guest_id bigint NOT NULL, status varchar(20) NOT NULL, amount decimal(12,2) NOT NULL,
        currency varchar(3) NOT NULL, quantity int NOT NULL, discount double, paid tinyint(1) NOT NULL,
        note text, room varchar(40) NOT NULL, created_at timestamp(6) NOT NULL, arrives date NOT NULL
    ) CHARACTER SET utf8mb4""",
    "CREATE TABLE changelog_stamp (id bigint AUTO_INCREMENT PRIMARY KEY, content text NOT NULL)",
    "CREATE TABLE numbers (n int PRIMARY KEY)",
)
_INSERT = """
INSERT INTO orders SELECT g, g %% 5000, 'NEW', (g %% 90000) / 100.0, 'EUR', g %% 7, g / 7e0, g %% 2 = 0,
    CASE WHEN g %% 3 = 0 THEN 'arrives late, wants the room with a view of the sea' END, concat('room ', g %% 300),
    timestamp '2026-01-01 00:00:00' + interval g second, date '2026-06-01' + interval g %% 200 day
FROM (SELECT n + %s AS g FROM numbers WHERE n < %s) AS row_numbers
"""
_UPDATE = "UPDATE orders SET status = 'PAID', paid = true, quantity = quantity + 1 WHERE id >= %s AND id < %s"
_STATEMENT_ROWS = 500

# In this procedure, each statement is a transaction of its own. It writes them faster than a client could.
_ONE_BY_ONE = f"""
CREATE PROCEDURE change_one_by_one(orders int) BEGIN
    DECLARE number int DEFAULT 1;
    WHILE number <= orders DO
        {_INSERT % ("number", 1)};
        {_UPDATE % ("number", "number + 1")};
        SET number = number + 1;
    END WHILE;
END
"""

_DUMP, _NON_BLOCKING = 0x12, 0x01
_REPLICA_ID = 77
_END = 0xFE
_END_BYTES = 5
_HEADER_BYTES = 4
_BUFFER_BYTES = 1 << 20

Session = Any
"""A connection of PyMySQL. This module also uses its socket directly."""


def create(session: Session) -> None:
    """Creates the database and its tables. The table that is measured, `orders`, is still empty."""
    with session.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {DATABASE}")
        cursor.execute(f"USE {DATABASE}")
        for statement in _TABLES:
            cursor.execute(statement)
        cursor.executemany("INSERT INTO numbers VALUES (%s)", [(number,) for number in range(_STATEMENT_ROWS)])
        cursor.execute(_ONE_BY_ONE)


def insert_first(session: Session) -> None:
    """Inserts an order with an id that `fill` does not use."""
    with session.cursor() as cursor:
        cursor.execute(_INSERT, [0, 1])


def readers(session: Session) -> list[int]:
    """Returns the ids of the connections that read the server's log."""
    with session.cursor() as cursor:
        cursor.execute("SELECT id FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'")
        return [number for (number,) in cursor.fetchall()]


def end_readers(session: Session) -> None:
    """Ends the connections that read the log. The server itself notices only late that a reader has gone."""
    while numbers := readers(session):
        with session.cursor() as cursor:
            for number in numbers:
                with contextlib.suppress(pymysql.err.OperationalError):  # it has just ended by itself
                    cursor.execute(f"KILL {number}")
        time.sleep(0.1)


def fill(session: Session, rows: int, transaction_rows: int) -> None:
    """Commits `rows` changes, in transactions of `transaction_rows` changes. Half of the changes are inserts, and half
    are updates.

    A transaction has as many inserts as updates, and a stamp that says who made it. But if `transaction_rows` is 1,
    each transaction is one insert or one update without a stamp.
    """
    if transaction_rows == 1:
        with session.cursor() as cursor:
            cursor.execute("CALL change_one_by_one(%s)", [rows // 2])
        return
    orders, orders_at_once = rows // 2, max(transaction_rows // 2, 1)
    with session.cursor() as cursor:
        for first in range(1, orders + 1, orders_at_once):
            end = min(first + orders_at_once, orders + 1)
            stamp = {"apiVersion": "v2", "serviceName": "order-api", "identifier": f"req-{first}"}
            session.begin()
            cursor.execute("INSERT INTO changelog_stamp (content) VALUES (%s)", [json.dumps(stamp)])
            for begin in range(first, end, _STATEMENT_ROWS):
                count = min(_STATEMENT_ROWS, end - begin)
                cursor.execute(_INSERT, [begin, count])
                cursor.execute(_UPDATE, [begin, begin + count])
            cursor.execute("DELETE FROM changelog_stamp")
            session.commit()


def raw_drain(session: Session, flavour: Flavour, file: str, offset: int) -> float:
    """Asks the server for its log, from `offset` in `file` to the end, and receives it into a buffer that nobody reads.

    Returns how many seconds this took. The server marks the end of the log by an end-of-file packet.
    """
    with session.cursor() as cursor:
        cursor.execute("SET @master_binlog_checksum = 'CRC32', @source_binlog_checksum = 'CRC32'")
        if flavour == "mariadb":
            cursor.execute("SET @mariadb_slave_capability = 4")
    buffer, tail = bytearray(_BUFFER_BYTES), b""
    started_at = time.perf_counter()
    session._execute_command(_DUMP, struct.pack("<IHI", offset, _NON_BLOCKING, _REPLICA_ID) + file.encode())
    while not _is_end(tail):
        received = session._sock.recv_into(buffer)
        if not received:
            raise SystemExit("the server ended the connection")
        tail = (tail + buffer[max(received - _HEADER_BYTES - _END_BYTES, 0) : received])[-_HEADER_BYTES - _END_BYTES :]
    return time.perf_counter() - started_at


def _is_end(tail: bytes) -> bool:
    return tail[:3] == _END_BYTES.to_bytes(3, "little") and tail[_HEADER_BYTES : _HEADER_BYTES + 1] == bytes([_END])
