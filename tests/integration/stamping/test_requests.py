"""Tests that no stamp (who made a change) reaches the changes of another request when 1,000 requests share a few pooled
connections.

The column `v` of each row says which stamp the row must have.
"""

import asyncio
import itertools
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from random import Random
from typing import Any
from wsgiref.util import setup_testing_defaults

import asyncpg
import psycopg
import psycopg_pool
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import changelog_stamps.asyncpg
import changelog_stamps.psycopg
import changelog_stamps.sqlalchemy
from changelog_stamps import stamp
from changelog_stamps.web import AsgiStamps, WsgiStamps
from tests.integration.stamping.adapters import asyncpg_arguments
from tests.integration.stamping.logged import StampedDatabase

REQUESTS = 1000
CONNECTIONS = 6
INSERT = "INSERT INTO t VALUES (%s, %s)"


class UndoneError(Exception):
    """Raised by a request to roll back its transaction."""


def check(database: StampedDatabase, rows: int) -> None:
    """Checks that the log has this many rows, and that each row has the stamp that its column `v` names. `nobody` names
    a stamp that only describes the session.
    """
    changes = database.changes()
    for change in changes:
        value = change.columns.split("v[text]:")[1].strip("'")
        assert change.stamp is not None
        if value == "nobody":
            assert "session" in change.stamp["context"]
        else:
            assert f"{change.stamp['serviceName']} {change.stamp['identifier']}" == value
    assert len(changes) == rows
    assert len({change.columns for change in changes}) == rows


def test_requests_in_threads_on_a_pool_keep_their_stamps(stamped: StampedDatabase, seed: int) -> None:
    keys = itertools.count()
    plans = [Random(f"{seed} {number}").random() for number in range(REQUESTS)]
    with psycopg_pool.ConnectionPool(stamped.dsn, min_size=CONNECTIONS, max_size=CONNECTIONS, open=True) as pool:

        def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
            plan, name = float(environ["plan"]), f"shop {environ['HTTP_X_REQUEST_ID']}"
            if plan < 0.2:  # this request stamps nothing
                with pool.connection() as connection:
                    connection.execute(INSERT, [next(keys), "nobody"])
            else:
                with suppress(UndoneError), changelog_stamps.psycopg.pooled(pool) as connection:
                    connection.execute(INSERT, [next(keys), name])
                    with suppress(UndoneError), changelog_stamps.psycopg.stamped(connection, service="inner"):
                        connection.execute(INSERT, [next(keys), name.replace("shop", "inner")])
                        if plan < 0.5:
                            raise UndoneError
                    if plan < 0.3:
                        raise UndoneError
                    connection.execute(INSERT, [next(keys), name])
            start_response("204 No Content", [])
            return []

        site = WsgiStamps(application, service="shop")

        def request(number: int) -> None:
            environ: dict[str, Any] = {"HTTP_X_REQUEST_ID": f"r-{number}", "plan": str(plans[number])}
            setup_testing_defaults(environ)
            assert list(site(environ, lambda *_: None)) == []

        with ThreadPoolExecutor(32) as threads:
            list(threads.map(request, range(REQUESTS)))
    check(stamped, sum(1 if plan < 0.2 else 0 if plan < 0.3 else 2 if plan < 0.5 else 3 for plan in plans))


def test_requests_in_tasks_on_pools_of_three_drivers_keep_their_stamps(stamped: StampedDatabase, seed: int) -> None:
    numbers = iter(range(REQUESTS))
    random, keys = Random(seed), itertools.count()
    drivers = [random.randrange(4) for _ in numbers]

    async def run() -> None:
        engine = create_async_engine(
            "postgresql+asyncpg://", connect_args=asyncpg_arguments(stamped.dsn), pool_size=CONNECTIONS
        )
        changelog_stamps.sqlalchemy.install(engine)
        pools = (
            asyncpg.create_pool(**asyncpg_arguments(stamped.dsn), min_size=CONNECTIONS, max_size=CONNECTIONS),
            psycopg_pool.AsyncConnectionPool(stamped.dsn, min_size=CONNECTIONS, max_size=CONNECTIONS, open=False),
        )
        async with pools[0], pools[1]:
            writes = [*_writes(*pools, engine)]

            async def write(request: Request) -> Response:
                number = int(request.query_params["n"])
                await writes[drivers[number]](next(keys), f"shop r-{number}")
                return Response()

            middleware = [Middleware(AsgiStamps, service="shop")]
            site = Starlette(routes=[Route("/", write)], middleware=middleware)
            await asyncio.gather(*(_request(site, number) for number in range(REQUESTS)))
        await engine.dispose()

    asyncio.run(run())
    check(stamped, REQUESTS)


def _writes(asyncpg_pool: Any, psycopg_pool: Any, engine: AsyncEngine) -> Iterable[Callable[[int, str], Any]]:
    async def by_asyncpg(key: int, name: str) -> None:
        async with changelog_stamps.asyncpg.pooled(asyncpg_pool) as connection:
            await connection.execute("INSERT INTO t VALUES ($1, $2)", key, name)

    async def by_psycopg(key: int, name: str) -> None:
        async with changelog_stamps.psycopg.pooled_async(psycopg_pool) as connection:
            await connection.execute(INSERT, [key, name])

    async def by_sqlalchemy(key: int, name: str) -> None:
        async with engine.begin() as connection:
            await connection.execute(text("INSERT INTO t VALUES (:key, :name)"), {"key": key, "name": name})

    async def by_nobody(key: int, _: str) -> None:
        async with asyncpg_pool.acquire() as connection:
            await connection.execute("INSERT INTO t VALUES ($1, $2)", key, "nobody")

    return by_asyncpg, by_psycopg, by_sqlalchemy, by_nobody


async def _request(site: Starlette, number: int) -> None:
    headers = [(b"X-Request-ID", f"r-{number}".encode())]
    query = f"n={number}".encode()
    scope = {"type": "http", "method": "GET", "path": "/", "headers": headers, "query_string": query}

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        assert message.get("status", 200) == 200

    await site(scope, receive, send)


def test_a_session_has_no_stamp_of_another_thread(stamped: StampedDatabase) -> None:
    def write() -> None:
        with psycopg.connect(stamped.dsn) as connection, changelog_stamps.psycopg.stamped(connection):
            connection.execute(INSERT, [1, "nobody"])

    with stamp(service="shop", identifier="r-1"), ThreadPoolExecutor(1) as threads:
        threads.submit(write).result()
    check(stamped, 1)


@pytest.mark.parametrize("emit", [False, True])
def test_each_transaction_of_a_connection_has_its_own_stamp(stamped: StampedDatabase, emit: bool) -> None:
    with psycopg.connect(stamped.dsn) as connection:
        for number in range(3):
            with changelog_stamps.psycopg.stamped(connection, service="shop", identifier=f"r-{number}", emit=emit):
                connection.execute(INSERT, [number, f"shop r-{number}"])
    check(stamped, 3)
