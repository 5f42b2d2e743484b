"""Stamps transactions of psycopg2."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from psycopg2.extensions import TRANSACTION_STATUS_IDLE, connection, cursor

from changelog_stamps.current import current
from changelog_stamps.members import altered
from changelog_stamps.statements import statement
from changelog_stamps.transactions import stamped_transaction

_STATEMENTS = {emit: statement("%(stamp)s", emit=emit) for emit in (False, True)}


@contextmanager
def stamped(
    connection: connection,
    *,
    service: str | None = None,
    version: str | None = None,
    identifier: str | None = None,
    context: Mapping[str, Any] | None = None,
    emit: bool = False,
) -> Iterator[None]:
    """Runs the block in a transaction, and stamps the block's changes.

    The transaction is committed at the end of the block, or rolled back after an exception. If a transaction has
    already begun, the block runs in a savepoint of this transaction instead. `service`, `version`, `identifier` and
    `context` make the stamp. If one of them is None, the current stamp's value is used (`changelog_stamps.stamp`).
    Normally, a trigger that `changelog init --stamps` creates writes the stamp into the database's log. If tables lack
    this trigger, set `emit`: then the stamp is written into the log at once.
    """

    def write(text: str) -> str | None:
        with connection.cursor(cursor_factory=cursor) as plain:
            plain.execute(_STATEMENTS[emit and text != ""], {"stamp": text})
            row = plain.fetchone()
        return None if row is None else row[0]

    stamp = altered(current(), service=service, version=version, identifier=identifier, context=context)
    nested = connection.info.transaction_status != TRANSACTION_STATUS_IDLE
    begin = partial(_savepoint if nested else _transaction, connection)
    with stamped_transaction(stamp.text, nested=nested, begin=begin, write=write):
        yield


@contextmanager
def _transaction(connection: connection) -> Iterator[None]:
    """Runs the block in a transaction. The driver begins one by itself, except in autocommit mode."""
    autocommit = connection.autocommit
    if autocommit:
        _run(connection, "BEGIN")
    try:
        yield
    except BaseException:
        _run(connection, "ROLLBACK") if autocommit else connection.rollback()
        raise
    _run(connection, "COMMIT") if autocommit else connection.commit()


@contextmanager
def _savepoint(connection: connection) -> Iterator[None]:
    _run(connection, "SAVEPOINT changelog_stamp")
    try:
        yield
    except BaseException:
        _run(connection, "ROLLBACK TO SAVEPOINT changelog_stamp; RELEASE SAVEPOINT changelog_stamp")
        raise
    _run(connection, "RELEASE SAVEPOINT changelog_stamp")


def _run(connection: connection, command: str) -> None:
    with connection.cursor(cursor_factory=cursor) as plain:
        plain.execute(command)
