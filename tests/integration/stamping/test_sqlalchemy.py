"""Tests the adapter for SQLAlchemy. The adapter stamps every transaction of an engine: it adds a note that says who
made the changes.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import Engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from changelog.connectors.servers.mysql import USER, MysqlServer
from changelog_stamps import stamp
from changelog_stamps.sqlalchemy import install, stamped
from tests.integration.stamping.adapters import Async, asyncpg_arguments
from tests.integration.stamping.logged import EMIT, SET_CONFIG, Tables


@pytest.fixture(params=["psycopg", "psycopg2"])
def engine(request: pytest.FixtureRequest, tables: Tables) -> Iterator[Engine]:
    engine = sqlalchemy.create_engine(f"postgresql+{request.param}://", connect_args=conninfo_to_dict(tables.dsn))
    yield engine
    engine.dispose()


def insert(target: Any, tables: Tables) -> None:
    target.execute(text(tables.insert()))


def test_each_transaction_has_the_stamp_that_is_current_when_it_begins(engine: Engine, tables: Tables) -> None:
    install(engine)
    with stamp(service="first"):
        with engine.begin() as connection:
            insert(connection, tables)
            with connection.begin_nested() as savepoint:
                insert(connection, tables)
                savepoint.rollback()
            insert(connection, tables)
        with Session(engine) as session, stamp(identifier="r-2"):
            insert(session, tables)
            session.commit()
            insert(session, tables)
            session.rollback()
    with Session(engine) as session:
        insert(session, tables)
        session.commit()
    first, second, third, after = tables.database.changes()
    assert first.stamp == second.stamp == {"serviceName": "first"}
    assert third.stamp == {"serviceName": "first", "identifier": "r-2"}
    assert after.stamp is not None
    assert "session" in after.stamp["context"]


def test_no_statement_is_added_in_autocommit_mode(engine: Engine, tables: Tables) -> None:
    install(engine)
    statements: list[str] = []
    sqlalchemy.event.listen(engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2]))
    with stamp(service="shop"), engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        insert(connection, tables)
    assert len(statements) == 1
    assert tables.services() == ["app"]


@pytest.mark.parametrize(("emit", "function"), [(True, EMIT), (False, SET_CONFIG)], ids=["emit", "set"])
def test_a_refused_stamp_leaves_the_transaction_usable(
    engine: Engine, tables: Tables, emit: bool, function: str
) -> None:
    install(engine, emit=emit)
    with tables.refusing(function), stamp(service="shop"), engine.connect() as connection:
        connection.execute(text(tables.insert("bare")))
        connection.execute(text(tables.insert("bare")))
        connection.commit()
        connection.execute(text(tables.insert("bare")))
        connection.commit()
    assert tables.services() == [None] * 3


def test_an_async_engine_stamps_its_transactions(tables: Tables) -> None:
    runner = Async()
    engine = create_async_engine("postgresql+asyncpg://", connect_args=asyncpg_arguments(tables.dsn))
    install(engine)

    async def write() -> None:
        with stamp(service="shop"):
            async with AsyncSession(engine) as session, session.begin():
                await session.execute(text(tables.insert()))

    runner.run(write())
    runner.finish(engine.dispose)
    assert tables.services() == ["shop"]


def test_a_block_adds_to_the_stamp_of_the_transaction(engine: Engine, tables: Tables) -> None:
    install(engine)
    with stamp(service="shop"), engine.begin() as connection:
        insert(connection, tables)
        with stamped(connection, identifier="r-1"):
            insert(connection, tables)
        insert(connection, tables)
    identifiers = [change.stamp and change.stamp.get("identifier") for change in tables.database.changes()]
    assert identifiers == [None, "r-1", None]


def test_statements_of_mysql_have_a_comment(mysql_server: MysqlServer) -> None:
    engine = sqlalchemy.create_engine(f"mysql+pymysql://{USER}@127.0.0.1:{mysql_server.port}")
    install(engine)
    own_statement = text("SELECT info FROM information_schema.processlist WHERE id = connection_id() AND 'a%' LIKE :x")
    with stamp(service="sh'op */ 100%", identifier="r-1"), engine.connect() as connection:
        [[info]] = connection.execute(own_statement, {"x": "a%"}).all()
        [[value]] = connection.exec_driver_sql("SELECT 'a%%'", ()).all()
    engine.dispose()
    assert info.startswith("/*serviceName='sh%27op%20%2A%2F%20100%25',identifier='r-1'*/ SELECT info")
    assert value == "a%"
