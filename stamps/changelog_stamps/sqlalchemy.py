"""Stamps transactions of SQLAlchemy 2, sync and async, with its ORM or without, on PostgreSQL, MySQL and MariaDB."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, TextClause, event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from changelog_stamps.current import current
from changelog_stamps.members import altered
from changelog_stamps.sqlcommenter import commented
from changelog_stamps.statements import statement
from changelog_stamps.transactions import refused, stamped_transaction, stamped_transaction_async

_STATEMENTS = {emit: text(statement(":stamp", emit=emit)) for emit in (False, True)}


def install(engine: Engine | AsyncEngine, *, emit: bool = False) -> None:
    """Stamps every transaction of the engine with the stamp that is current when the transaction begins.

    On PostgreSQL, a stamped transaction begins with one more statement, which sets the stamp. There are no stamps in
    autocommit mode, nor in two-phase transactions. Normally, a trigger on the tables (see `changelog init --stamps`)
    writes the stamp into the database's log. With `emit`, the added statement itself writes the stamp into the log, so
    the tables need no trigger. On MySQL and MariaDB, each statement gets a comment with the stamp.
    """
    sync_engine = engine.sync_engine if isinstance(engine, AsyncEngine) else engine
    if sync_engine.dialect.name == "postgresql":
        stamp_statement = _STATEMENTS[emit]
        event.listen(sync_engine, "begin", lambda connection: _stamp(connection, stamp_statement))
    else:
        event.listen(sync_engine, "before_cursor_execute", _comment, retval=True)


def _stamp(connection: Connection, stamp_statement: TextClause) -> None:
    """Stamps a transaction that begins.

    If the database refuses the stamp, SQLAlchemy rolls back the transaction. This does no harm, because the transaction
    has done nothing else yet.
    """
    stamp = current().text
    if stamp is None or connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT":
        return
    try:
        connection.execute(stamp_statement, {"stamp": stamp})
    except DBAPIError as error:
        refused(error)


def _comment(
    connection: Connection, _cursor: Any, sql: str, parameters: Any, context: Any, _many: bool
) -> tuple[str, Any]:
    formatted = connection.dialect.paramstyle in ("format", "pyformat") and not (context and context.no_parameters)
    return commented(sql, formatted=formatted), parameters


@contextmanager
def stamped(
    target: Connection | Session,
    *,
    service: str | None = None,
    version: str | None = None,
    identifier: str | None = None,
    context: Mapping[str, Any] | None = None,
    emit: bool = False,
) -> Iterator[None]:
    """Runs the block in a transaction on PostgreSQL, and stamps the block's changes. This does not need `install`.

    If a transaction has already begun, the block runs in a savepoint of this transaction. `service`, `version`,
    `identifier` and `context` make the stamp. If one of them is None, the current stamp's value is used
    (`changelog_stamps.stamp`). `emit` means the same as in `install`.
    """

    def write(stamp: str) -> str | None:
        previous: str | None = target.execute(_STATEMENTS[emit and stamp != ""], {"stamp": stamp}).scalar()
        return previous

    own_stamp = altered(current(), service=service, version=version, identifier=identifier, context=context)
    nested = target.in_transaction()
    begin = target.begin_nested if nested else target.begin
    with stamped_transaction(own_stamp.text, nested=nested, begin=begin, write=write):
        yield


@asynccontextmanager
async def stamped_async(
    target: AsyncConnection | AsyncSession,
    *,
    service: str | None = None,
    version: str | None = None,
    identifier: str | None = None,
    context: Mapping[str, Any] | None = None,
    emit: bool = False,
) -> AsyncIterator[None]:
    """Does for an async connection or session what `stamped` does for a sync one."""

    async def write(stamp: str) -> str | None:
        result = await target.execute(_STATEMENTS[emit and stamp != ""], {"stamp": stamp})
        previous: str | None = result.scalar()
        return previous

    own_stamp = altered(current(), service=service, version=version, identifier=identifier, context=context)
    nested = target.in_transaction()
    begin = target.begin_nested if nested else target.begin
    async with stamped_transaction_async(own_stamp.text, nested=nested, begin=begin, write=write):
        yield
