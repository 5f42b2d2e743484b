"""Decides prepared XA transactions."""

import random
import time

import pymysql
from pymysql.cursors import Cursor

_ABSENT = (1397, 1399, 1401, 1402)
"""Errors for a transaction that another session has, or that is not there any more."""


def decide(cursor: Cursor, rng: random.Random, *, share: float) -> bool:
    """Commits or rolls back a share of the open XA transactions. Returns whether there was none."""
    cursor.execute("XA RECOVER")
    names = [row[3].decode() if isinstance(row[3], bytes) else row[3] for row in cursor.fetchall()]
    for name in names:
        if rng.random() < share:
            try:
                cursor.execute(f"XA {rng.choice(('COMMIT', 'COMMIT', 'ROLLBACK'))} '{name}'")
            except pymysql.Error as error:
                if error.args[0] not in _ABSENT:
                    raise
    return not names


def decide_all(cursor: Cursor) -> None:
    """Commits or rolls back all, and waits for those that a session still has."""
    rng = random.Random(0)
    while not decide(cursor, rng, share=1.0):
        time.sleep(0.05)
