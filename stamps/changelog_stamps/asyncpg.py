"""Stamps transactions of asyncpg, with or without a pool."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from changelog_stamps.current import current
from changelog_stamps.members import altered
from changelog_stamps.statements import statement
from changelog_stamps.transactions import stamped_transaction_async

if TYPE_CHECKING:
    import asyncpg

_STATEMENTS = {emit: statement("$1", emit=emit) for emit in (False, True)}


@asynccontextmanager
async def stamped(
    connection: asyncpg.Connection[Any],
    *,
    service: str | None = None,
    version: str | None = None,
    identifier: str | None = None,
    context: Mapping[str, Any] | None = None,
    emit: bool = False,
) -> AsyncIterator[None]:
    """Runs the block in a transaction, like `connection.transaction()`, and stamps the block's changes.

    `service`, `version`, `identifier` and `context` make the stamp. If one of them is None, the current stamp's value
    is used (`changelog_stamps.stamp`). Normally, a trigger that `changelog init --stamps` creates writes the stamp into
    the database's log. If tables lack this trigger, set `emit`: then the stamp is written into the log at once.
    """

    async def write(text: str) -> str | None:
        previous: str | None = await connection.fetchval(_STATEMENTS[emit and text != ""], text)
        return previous

    stamp = altered(current(), service=service, version=version, identifier=identifier, context=context)
    nested = connection.is_in_transaction()
    async with stamped_transaction_async(stamp.text, nested=nested, begin=connection.transaction, write=write):
        yield


@asynccontextmanager
async def pooled(
    pool: asyncpg.Pool[Any], *, emit: bool = False, **members: Any
) -> AsyncIterator[asyncpg.Connection[Any]]:
    """Runs the block in a transaction on a connection of the pool, and stamps the block's changes as `stamped` does.

    `members` can be `service`, `version`, `identifier` and `context`, as for `stamped`.
    """
    async with pool.acquire() as connection, stamped(connection, emit=emit, **members):
        yield connection
