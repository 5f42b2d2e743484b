"""Runs a block in a transaction that begins with a stamp. Adapters pass the functions `begin` and `write`, which use
their driver.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
)
from typing import Callable, TypeVar

from changelog_stamps.statements import is_refusal, sqlstate
from changelog_stamps.warned import warn

T = TypeVar("T")


def refused(error: BaseException) -> None:
    """If `error` says that the database refused a stamp, logs a warning. Raises any other error again, because the
    application must see it.
    """
    if not is_refusal(error):
        raise error
    warn(f"the database refuses stamps (SQLSTATE {sqlstate(error)}): changes are made without them")


@contextmanager
def stamped_transaction(
    text: str | None,
    *,
    nested: bool,
    begin: Callable[[], AbstractContextManager[T]],
    write: Callable[[str], str | None],
) -> Iterator[T]:
    """Runs the block in the transaction that `begin` opens, and stamps it with `text`, unless `text` is None.

    `write` sets the stamp for the rest of the transaction, and returns the previous stamp. `nested` says that the
    transaction is a savepoint in an outer transaction; then the previous stamp is set again after the block. If the
    database refuses the stamp, the transaction is rolled back and begun again without a stamp. This loses nothing,
    because the block has not run yet.
    """
    with ExitStack() as stack:
        transaction, previous = stack.enter_context(begin()), None
        if text is not None:
            try:
                previous = write(text) or ""
            except Exception as error:  # noqa: BLE001 - the errors of any driver
                refused(error)
                stack.pop_all().__exit__(type(error), error, error.__traceback__)
                transaction = stack.enter_context(begin())
        yield transaction
        if nested and previous is not None:
            try:
                with begin():
                    write(previous)
            except Exception as error:  # noqa: BLE001 - the errors of any driver
                refused(error)


@asynccontextmanager
async def stamped_transaction_async(
    text: str | None,
    *,
    nested: bool,
    begin: Callable[[], AbstractAsyncContextManager[T]],
    write: Callable[[str], Awaitable[str | None]],
) -> AsyncIterator[T]:
    """Does for an async driver what `stamped_transaction` does for a sync one."""
    async with AsyncExitStack() as stack:
        transaction, previous = await stack.enter_async_context(begin()), None
        if text is not None:
            try:
                previous = await write(text) or ""
            except Exception as error:  # noqa: BLE001 - the errors of any driver
                refused(error)
                await stack.pop_all().__aexit__(type(error), error, error.__traceback__)
                transaction = await stack.enter_async_context(begin())
        yield transaction
        if nested and previous is not None:
            try:
                async with begin():
                    await write(previous)
            except Exception as error:  # noqa: BLE001 - the errors of any driver
                refused(error)
