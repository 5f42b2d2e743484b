"""Tests the adapters of `changelog_stamps` that stamp the changes of a `with` block, each with its real driver."""

from collections.abc import Callable, Iterator
from contextlib import suppress

import psycopg
import pytest

from changelog_stamps import stamp
from changelog_stamps.psycopg import stamped
from tests.integration.stamping.adapters import ADAPTERS, Adapter
from tests.integration.stamping.logged import EMIT, ROLE, SET_CONFIG, Tables


@pytest.fixture(params=ADAPTERS, ids=lambda adapter: adapter.__name__)
def adapter(request: pytest.FixtureRequest, tables: Tables) -> Iterator[Adapter]:
    connect: Callable[[str], Adapter] = request.param
    adapter = connect(tables.dsn)
    try:
        yield adapter
    finally:
        adapter.close()


def test_a_block_is_stamped_and_what_follows_is_not(adapter: Adapter, tables: Tables) -> None:
    with adapter.stamped(service="shop", version="v2", identifier="r-1", context={"user": "ü"}):
        adapter.execute(tables.insert())
        adapter.execute(tables.insert())
    adapter.execute(tables.insert())
    first, second, after = tables.database.changes()
    assert first.stamp == second.stamp
    assert first.stamp == {
        "serviceName": "shop",
        "apiVersion": "v2",
        "identifier": "r-1",
        "context": {"user": "ü"},
    }
    assert after.stamp is not None
    assert after.stamp["context"]["session"]["user"] == ROLE


def test_a_block_completes_the_current_stamp(adapter: Adapter, tables: Tables) -> None:
    with stamp(service="shop", identifier="r-1"), adapter.stamped(context={"user": "u"}):
        adapter.execute(tables.insert())
    [change] = tables.database.changes()
    assert change.stamp == {"serviceName": "shop", "identifier": "r-1", "context": {"user": "u"}}


def test_a_block_in_a_block_has_its_own_stamp(adapter: Adapter, tables: Tables) -> None:
    with adapter.stamped(service="outer"):
        with adapter.stamped(service="inner"):
            adapter.execute(tables.insert())
        adapter.execute(tables.insert())
        with suppress(KeyError), adapter.stamped(service="undone"):
            adapter.execute(tables.insert())
            raise KeyError
        adapter.execute(tables.insert())
    assert tables.services() == ["inner", "outer", "outer"]


def test_a_block_without_a_service_leaves_the_stamp_as_it_is(adapter: Adapter, tables: Tables) -> None:
    with adapter.stamped(service="outer"), adapter.stamped():
        adapter.execute(tables.insert())
    with adapter.stamped(identifier="r-1"):
        adapter.execute(tables.insert())
    outer, after = tables.database.changes()
    assert outer.service == "outer"
    assert after.stamp is not None
    assert "session" in after.stamp["context"]


def test_a_block_that_fails_leaves_nothing(adapter: Adapter, tables: Tables) -> None:
    with suppress(KeyError), adapter.stamped(service="undone"):
        adapter.execute(tables.insert())
        raise KeyError
    with adapter.stamped(service="next"):
        adapter.execute(tables.insert())
    assert tables.services() == ["next"]


def test_a_stamp_is_emitted_where_there_is_no_trigger(adapter: Adapter, tables: Tables) -> None:
    with adapter.stamped(service="outer", emit=True):
        adapter.execute(tables.insert("bare"))
        with adapter.stamped(service="inner", emit=True):
            adapter.execute(tables.insert("bare"))
        adapter.execute(tables.insert("bare"))
    adapter.execute(tables.insert("bare"))
    assert tables.services() == ["outer", "inner", "outer", None]


@pytest.mark.parametrize(("emit", "function"), [(True, EMIT), (False, SET_CONFIG)], ids=["emit", "set"])
def test_changes_are_stored_even_if_the_database_refuses_the_stamp(
    adapter: Adapter, tables: Tables, emit: bool, function: str
) -> None:
    with tables.refusing(function), adapter.stamped(service="refused", emit=emit):
        adapter.execute(tables.insert("bare"))
        with adapter.stamped(service="inner", emit=emit):
            adapter.execute(tables.insert("bare"))
        adapter.execute(tables.insert("bare"))
    assert tables.services() == [None] * 3


def test_an_error_in_a_block_reaches_the_application(adapter: Adapter, tables: Tables) -> None:
    with pytest.raises(Exception, match="division by zero"), adapter.stamped(service="shop"):
        adapter.execute("SELECT 1 / 0")
    with adapter.stamped(service="shop"):
        adapter.execute(tables.insert())
    assert tables.services() == ["shop"]


def test_a_lost_connection_is_seen_by_the_application(tables: Tables) -> None:
    connection = psycopg.connect(tables.dsn)
    connection.close()
    with pytest.raises(psycopg.OperationalError), stamped(connection, service="shop"):
        pass
