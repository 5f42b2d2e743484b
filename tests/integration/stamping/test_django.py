"""Tests our adapter for Django. The Django app `changelog_stamps.django` stamps SQL statements, and the middleware
stamps requests.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import django
import pytest
from django.conf import settings
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.db import connection, connections, transaction
from django.http import HttpRequest, HttpResponse
from django.test import AsyncRequestFactory, Client, RequestFactory
from django.urls import path
from psycopg.conninfo import conninfo_to_dict

from changelog_stamps import stamp
from changelog_stamps.django import statements
from changelog_stamps.django.statements import StampedStatements
from tests.integration.stamping.logged import EMIT, SET_CONFIG, Tables

NAMES = {"host": "HOST", "port": "PORT", "user": "USER", "password": "PASSWORD", "dbname": "NAME"}
TRACE = "0af7651916cd43dd8448eb211c80319c"
TABLES: list[Tables] = []
"""Holds the tables that `insert` writes to. The fixture `application` puts them here."""


def insert(table: str = "t") -> None:
    with connection.cursor() as cursor:
        cursor.execute(TABLES[0].insert(table))


def view(request: HttpRequest) -> HttpResponse:
    with transaction.atomic():
        insert()
    connection.close()
    return HttpResponse("done")


urlpatterns = [path("write", view)]


@pytest.fixture(scope="module", autouse=True)
def application(tables: Tables) -> Iterator[None]:
    """Sets up Django with the database of `tables`. Django can be set up only once in a process, so no other test
    module uses Django.
    """
    values = conninfo_to_dict(tables.dsn)
    database = {NAMES[name]: value for name, value in values.items() if name in NAMES}
    settings.configure(
        ALLOWED_HOSTS=["testserver"],
        CHANGELOG_STAMPS={"service": "site", "version": "v3"},
        DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", **database}},
        INSTALLED_APPS=["changelog_stamps.django"],
        MIDDLEWARE=["changelog_stamps.django.middleware.stamp_requests"],
        ROOT_URLCONF=__name__,
        SECRET_KEY="tests",
    )
    django.setup()
    TABLES.append(tables)
    yield
    connections.close_all()


@pytest.fixture(autouse=True)
def clean_up() -> Iterator[None]:
    yield
    connections.close_all()
    settings.CHANGELOG_STAMPS = {"service": "site", "version": "v3"}


def stamps(tables: Tables) -> list[Any]:
    return [change.stamp for change in tables.database.changes()]


def test_atomic_blocks_are_stamped_also_outside_of_requests(tables: Tables) -> None:
    with transaction.atomic():
        insert()
        insert()
    with stamp(service="job", identifier="nightly"), transaction.atomic():
        insert()
    insert()
    first, second, job, after = stamps(tables)
    assert first == second == {"serviceName": "site", "apiVersion": "v3"}
    assert job == {"serviceName": "job", "identifier": "nightly"}
    assert "session" in after["context"]


def test_each_row_has_the_stamp_that_is_current_when_it_is_written(tables: Tables) -> None:
    with transaction.atomic():
        with stamp(identifier="1"):
            insert()
        with suppress(KeyError), transaction.atomic(), stamp(identifier="undone"):
            insert()
            raise KeyError
        insert()
        savepoint = transaction.savepoint()
        with stamp(identifier="2"):
            insert()
            transaction.savepoint_rollback(savepoint)
            insert()
        with transaction.atomic(), stamp(identifier="3"):
            insert()
    assert [change.get("identifier") for change in stamps(tables)] == ["1", None, "2", "3"]


def test_a_transaction_is_stamped_once_while_its_stamp_stays_the_same(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    sql: list[str] = []
    written_stamps: list[str] = []
    write = statements._write

    def record(execute: Callable[..., Any], text: str, *words: Any) -> Any:
        sql.append(text)
        return execute(text, *words)

    def write_and_record(driver: Any, text: str, **options: bool) -> None:
        written_stamps.append(text)
        write(driver, text, **options)

    monkeypatch.setattr(statements, "_write", write_and_record)
    with transaction.atomic():
        insert()
        with connection.execute_wrapper(record):
            insert()
            with transaction.atomic():
                insert()
    assert len(written_stamps) == 1
    assert [text.split()[0] for text in sql] == ["INSERT", "SAVEPOINT", "INSERT", "RELEASE"]
    assert [change["serviceName"] for change in stamps(tables)] == ["site"] * 3


def test_an_aborted_transaction_can_be_rolled_back(tables: Tables) -> None:
    with transaction.atomic():
        insert()
        with suppress(django.db.DatabaseError), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT 1 / 0")
        with stamp(identifier="after"):
            insert()
    assert [change.get("identifier") for change in stamps(tables)] == [None, "after"]


@pytest.mark.parametrize(("emit", "function"), [(True, EMIT), (False, SET_CONFIG)], ids=["emit", "set"])
def test_changes_are_stored_even_if_the_database_refuses_the_stamp(tables: Tables, emit: bool, function: str) -> None:
    settings.CHANGELOG_STAMPS = {"service": "site", "emit": emit}
    with tables.refusing(function), transaction.atomic():
        insert("bare")
        with stamp(identifier="2"):
            insert("bare")
            with transaction.atomic(), stamp(identifier="3"):
                insert("bare")
    assert stamps(tables) == [None] * 3


def test_a_stamp_is_emitted_where_there_is_no_trigger(tables: Tables) -> None:
    settings.CHANGELOG_STAMPS = {"service": "site", "emit": True}
    with transaction.atomic():
        insert("bare")
        with suppress(KeyError), transaction.atomic(), stamp(identifier="undone"):
            insert("bare")
            raise KeyError
        insert("bare")
    assert stamps(tables) == [{"serviceName": "site"}] * 2


def test_the_middleware_stamps_the_changes_of_a_request(tables: Tables) -> None:
    client = Client()
    assert client.get("/write", headers={"x-request-id": "r-1"}).content == b"done"
    client.get("/write", headers={"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"})
    client.get("/write")
    assert [change.get("identifier") for change in stamps(tables)] == ["r-1", TRACE, None]


def test_the_middleware_stamps_an_async_application(tables: Tables) -> None:
    handler = ASGIHandler()
    request = AsyncRequestFactory().get("/write", headers={"x-request-id": "r-2"})
    response = asyncio.run(handler.get_response_async(request))
    assert response.content == b"done"
    assert [change.get("identifier") for change in stamps(tables)] == ["r-2"]


def test_the_wsgi_handler_loads_the_middleware(tables: Tables) -> None:
    response = WSGIHandler().get_response(RequestFactory().get("/write", headers={"x-request-id": "r-3"}))
    assert response.content == b"done"
    assert [change.get("identifier") for change in stamps(tables)] == ["r-3"]


@pytest.mark.parametrize(("params", "percent"), [(None, "%"), ([1], "%%")])
def test_statements_of_mysql_have_a_comment(params: list[int] | None, percent: str) -> None:
    """Django's MySQL backend formats a statement only if the statement has parameters. Only then must a percent sign in
    the comment be doubled. A stub replaces that backend here.
    """
    executed: list[str] = []
    with stamp(service="a b"):
        StampedStatements()(
            lambda sql, *_: executed.append(sql),
            "SELECT 1",
            params,
            False,
            {"connection": SimpleNamespace(vendor="mysql")},
        )
    assert executed == [f"/*serviceName='a{percent}20b'*/ SELECT 1"]
