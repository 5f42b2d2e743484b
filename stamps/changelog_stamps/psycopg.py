"""Stamps transactions of psycopg 3, sync and async, with or without a pool."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from changelog_stamps.current import current
from changelog_stamps.members import altered
from changelog_stamps.statements import statement
from changelog_stamps.transactions import stamped_transaction, stamped_transaction_async

if TYPE_CHECKING:
    from psycopg_pool import AsyncConnectionPool, ConnectionPool

_STATEMENTS = {emit: statement("%(stamp)s", emit=emit).encode() for emit in (False, True)}


@contextmanager
def stamped(
    connection: psycopg.Connection[Any],
    *,
    service: str | None = None,
    version: str | None = None,
    identifier: str | None = None,
    context: Mapping[str, Any] | None = None,
    emit: bool = False,
) -> Iterator[psycopg.Transaction]:
    """Runs the block in a transaction, like `connection.transaction()`, and stamps the block's changes.

    `service`, `version`, `identifier` and `context` make the stamp. If one of them is None, the current stamp's value
    is used (`changelog_stamps.stamp`). Normally, a trigger that `changelog init --stamps` creates writes the stamp into
    the database's log. If tables lack this trigger, set `emit`: then the stamp is written into the log at once.
    """

    def write(text: str) -> str | None:
        # The connection's cursor class may use other placeholders or return other rows. So psycopg's own class is used.
        with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
            row = cursor.execute(_STATEMENTS[emit and text != ""], {"stamp": text}).fetchone()
        return None if row is None else row[0]

    stamp = altered(current(), service=service, version=version, identifier=identifier, context=context)
    nested = connection.info.transaction_status != TransactionStatus.IDLE
    with stamped_transaction(stamp.text, nested=nested, begin=connection.transaction, write=write) as transaction:
        yield transaction


@asynccontextmanager
async def stamped_async(
    connection: psycopg.AsyncConnection[Any],
    *,
    service: str | None = None,
    version: str | None = None,
    identifier: str | None = None,
    context: Mapping[str, Any] | None = None,
    emit: bool = False,
) -> AsyncIterator[psycopg.AsyncTransaction]:
    """Does for an async connection what `stamped` does for a sync one."""

    async def write(text: str) -> str | None:
        async with psycopg.AsyncCursor(connection, row_factory=tuple_row) as cursor:
            await cursor.execute(_STATEMENTS[emit and text != ""], {"stamp": text})
            row = await cursor.fetchone()
        return None if row is None else row[0]

    stamp = altered(current(), service=service, version=version, identifier=identifier, context=context)
    nested = connection.info.transaction_status != TransactionStatus.IDLE
    block = stamped_transaction_async(stamp.text, nested=nested, begin=connection.transaction, write=write)
    async with block as transaction:
        yield transaction


@contextmanager
def pooled(pool: ConnectionPool[Any], *, emit: bool = False, **members: Any) -> Iterator[psycopg.Connection[Any]]:
    """Runs the block in a transaction on a connection of the pool, and stamps the block's changes as `stamped` does.

    `members` can be `service`, `version`, `identifier` and `context`, as for `stamped`.
    """
    with pool.connection() as connection, stamped(connection, emit=emit, **members):
        yield connection


@asynccontextmanager
async def pooled_async(
    pool: AsyncConnectionPool[Any], *, emit: bool = False, **members: Any
) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """Does for an async pool what `pooled` does for a sync one."""
    async with pool.connection() as connection, stamped_async(connection, emit=emit, **members):
        yield connection
