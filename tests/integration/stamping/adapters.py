"""Gives the tests one interface to all adapters of `changelog_stamps`, each with its real driver or framework."""

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from typing import Any, Protocol

import asyncpg
import psycopg
import psycopg2
import psycopg_pool
import sqlalchemy
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import changelog_stamps.asyncpg
import changelog_stamps.psycopg
import changelog_stamps.psycopg2
import changelog_stamps.sqlalchemy


class Adapter(Protocol):
    """A session of an application."""

    def stamped(self, **arguments: Any) -> AbstractContextManager[object]:
        """Runs the body of the `with` statement with a stamp: in a new transaction, or in a savepoint of the open
        transaction.
        """

    def execute(self, sql: str) -> None:
        """Runs a statement."""

    def close(self) -> None:
        """Ends the session."""


class Psycopg:
    def __init__(self, dsn: str) -> None:
        self._connection: psycopg.Connection[Any] = psycopg.connect(dsn)

    def stamped(self, **arguments: Any) -> AbstractContextManager[object]:
        return changelog_stamps.psycopg.stamped(self._connection, **arguments)

    def execute(self, sql: str) -> None:
        begins = self._connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        self._connection.execute(sql.encode())
        if begins:
            self._connection.commit()

    def close(self) -> None:
        self._connection.close()


class PsycopgWithOtherCursors(Psycopg):
    """A connection in autocommit mode whose cursors use numbered placeholders and return rows as dictionaries."""

    def __init__(self, dsn: str) -> None:
        self._connection = psycopg.connect(dsn, autocommit=True, cursor_factory=psycopg.RawCursor)
        self._connection.row_factory = psycopg.rows.dict_row


class PsycopgPool(Psycopg):
    """Takes the connection of each outermost block from a pool. Blocks inside that block use the same connection."""

    def __init__(self, dsn: str) -> None:
        self._pool = psycopg_pool.ConnectionPool(dsn, min_size=1, max_size=1, open=True)

    @contextmanager
    def stamped(self, **arguments: Any) -> Iterator[None]:
        if hasattr(self, "_connection"):
            with super().stamped(**arguments):
                yield
            return
        with changelog_stamps.psycopg.pooled(self._pool, **arguments) as self._connection:
            try:
                yield
            finally:
                del self._connection

    def execute(self, sql: str) -> None:
        if hasattr(self, "_connection"):
            super().execute(sql)
        else:
            with self._pool.connection() as connection:
                connection.execute(sql.encode())

    def close(self) -> None:
        self._pool.close()


class Psycopg2:
    def __init__(self, dsn: str) -> None:
        self._connection = psycopg2.connect(dsn)

    def stamped(self, **arguments: Any) -> AbstractContextManager[object]:
        return changelog_stamps.psycopg2.stamped(self._connection, **arguments)

    def execute(self, sql: str) -> None:
        idle = psycopg2.extensions.TRANSACTION_STATUS_IDLE
        begins = self._connection.info.transaction_status == idle
        with self._connection.cursor() as cursor:
            cursor.execute(sql)
        if begins and not self._connection.autocommit:
            self._connection.commit()

    def close(self) -> None:
        self._connection.close()


class Psycopg2InAutocommit(Psycopg2):
    def __init__(self, dsn: str) -> None:
        super().__init__(dsn)
        self._connection.autocommit = True


def engine(dsn: str, driver: str) -> sqlalchemy.Engine:
    return sqlalchemy.create_engine(f"postgresql+{driver}://", connect_args=conninfo_to_dict(dsn))


class SqlalchemyConnection:
    def __init__(self, dsn: str) -> None:
        self._engine = engine(dsn, "psycopg")
        self._target: Any = self._engine.connect()

    def stamped(self, **arguments: Any) -> AbstractContextManager[object]:
        return changelog_stamps.sqlalchemy.stamped(self._target, **arguments)

    def execute(self, sql: str) -> None:
        begins = not self._target.in_transaction()
        self._target.execute(sqlalchemy.text(sql))
        if begins:
            self._target.commit()

    def close(self) -> None:
        self._target.close()
        self._engine.dispose()


class SqlalchemySession(SqlalchemyConnection):
    def __init__(self, dsn: str) -> None:
        self._engine = engine(dsn, "psycopg2")
        self._target = Session(self._engine)


class Async:
    """Runs the coroutines of an adapter in a copy of the caller's context, so that they see the caller's stamp."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()

    def run(self, coroutine: Any) -> Any:
        return self._runner.run(coroutine, context=contextvars.copy_context())

    @contextmanager
    def entered(self, block: AbstractAsyncContextManager[object]) -> Iterator[None]:
        self.run(block.__aenter__())
        try:
            yield
        except BaseException as error:
            if not self.run(block.__aexit__(type(error), error, error.__traceback__)):
                raise
        else:
            self.run(block.__aexit__(None, None, None))

    def finish(self, close: Callable[[], Awaitable[object]]) -> None:
        self.run(close())
        self._runner.close()


class PsycopgAsync(Async):
    def __init__(self, dsn: str) -> None:
        super().__init__()
        self._connection = self.run(psycopg.AsyncConnection.connect(dsn, autocommit=True))

    def stamped(self, **arguments: Any) -> AbstractContextManager[object]:
        return self.entered(changelog_stamps.psycopg.stamped_async(self._connection, **arguments))

    def execute(self, sql: str) -> None:
        self.run(self._connection.execute(sql.encode()))

    def close(self) -> None:
        self.finish(self._connection.close)


class Asyncpg(Async):
    def __init__(self, dsn: str) -> None:
        super().__init__()
        self._connection = self.run(asyncpg.connect(**asyncpg_arguments(dsn)))

    def stamped(self, **arguments: Any) -> AbstractContextManager[object]:
        return self.entered(changelog_stamps.asyncpg.stamped(self._connection, **arguments))

    def execute(self, sql: str) -> None:
        self.run(self._connection.execute(sql))

    def close(self) -> None:
        self.finish(self._connection.close)


class SqlalchemyAsync(Async):
    def __init__(self, dsn: str) -> None:
        super().__init__()
        self._engine = create_async_engine("postgresql+asyncpg://", connect_args=asyncpg_arguments(dsn))
        self._session = AsyncSession(self._engine)

    def stamped(self, **arguments: Any) -> AbstractContextManager[object]:
        return self.entered(changelog_stamps.sqlalchemy.stamped_async(self._session, **arguments))

    def execute(self, sql: str) -> None:
        begins = not self._session.in_transaction()
        self.run(self._session.execute(sqlalchemy.text(sql)))
        if begins:
            self.run(self._session.commit())

    def close(self) -> None:
        self.run(self._session.close())
        self.finish(self._engine.dispose)


def asyncpg_arguments(dsn: str) -> dict[str, Any]:
    """Converts a connection string of libpq to arguments of asyncpg."""
    names = {"host": "host", "port": "port", "user": "user", "password": "password", "dbname": "database"}
    values = conninfo_to_dict(dsn)
    arguments: dict[str, Any] = {names[name]: value for name, value in values.items() if name in names}
    return arguments | {"port": int(arguments.get("port", 5432))}


ADAPTERS: list[Callable[[str], Adapter]] = [
    Psycopg,
    PsycopgWithOtherCursors,
    PsycopgPool,
    PsycopgAsync,
    Psycopg2,
    Psycopg2InAutocommit,
    Asyncpg,
    SqlalchemyConnection,
    SqlalchemySession,
    SqlalchemyAsync,
]
