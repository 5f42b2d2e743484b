"""Writes the backlog of changes that each program in a benchmark publishes. Half of the changes are inserts, and half
are updates. The table has REPLICA IDENTITY FULL.
"""

import json
from random import Random

import psycopg

TRANSACTION_ROWS = 1000

TABLE = """
CREATE TABLE orders (
    id bigint PRIMARY KEY, guest_id bigint NOT NULL, status text NOT NULL, amount numeric(12,2) NOT NULL,
    currency text NOT NULL, quantity integer NOT NULL, discount double precision, paid boolean NOT NULL,
    note text, room text NOT NULL, created_at timestamptz NOT NULL, arrives date NOT NULL);
ALTER TABLE orders REPLICA IDENTITY FULL;
"""
_INSERT = """
INSERT INTO orders SELECT g, g %% 5000, 'NEW', (g %% 90000) / 100.0, 'EUR', g %% 7, g / 7.0, g %% 2 = 0,
    CASE WHEN g %% 3 = 0 THEN 'arrives late, wants the room with a view of the sea' END, 'room ' || g %% 300,
    timestamptz '2026-01-01' + g * interval '1 second', date '2026-06-01' + (g %% 200)::int
FROM generate_series(%s::bigint, %s::bigint) AS g
"""
_UPDATE_EACH = "UPDATE orders SET status = 'PAID', paid = true, quantity = quantity + 1 WHERE id = ANY (%s)"
_UPDATE = "UPDATE orders SET status = 'PAID', paid = true, quantity = quantity + 1 WHERE id BETWEEN %s AND %s"


def fill(connection: psycopg.Connection, rows: int) -> None:
    """Commits `rows` changes, in transactions of `TRANSACTION_ROWS` changes."""
    for first in range(1, rows // 2 + 1, TRANSACTION_ROWS // 2):
        with connection.transaction():
            change(connection, first, min(first + TRANSACTION_ROWS // 2 - 1, rows // 2))


def fill_scattered(connection: psycopg.Connection, rows: int, random: Random) -> None:
    """Commits `rows` changes: first all inserts, and then all updates. The updates are in random order. Each
    transaction has `TRANSACTION_ROWS` changes.
    """
    for first in range(1, rows // 2 + 1, TRANSACTION_ROWS):
        connection.execute(_INSERT, [first, min(first + TRANSACTION_ROWS - 1, rows // 2)])
    ids = random.sample(range(1, rows // 2 + 1), rows // 2)
    for begin in range(0, len(ids), TRANSACTION_ROWS):
        connection.execute(_UPDATE_EACH, [ids[begin : begin + TRANSACTION_ROWS]])


def change(connection: psycopg.Connection, first: int, last: int) -> None:
    """Inserts the orders with the ids from `first` to `last`, and updates each of them. Also adds a stamp to the
    transaction: a note that says who made its changes.
    """
    stamp = {"apiVersion": "v2", "serviceName": "order-api", "identifier": f"req-{first}"}
    connection.execute("SELECT pg_logical_emit_message(true, 'provenance', %s)", [json.dumps(stamp)])
    connection.execute(_INSERT, [first, last])
    connection.execute(_UPDATE, [first, last])
