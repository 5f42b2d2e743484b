"""Tests that a read fails if its store in memory is closed meanwhile. Such a store looks empty.

No Java runs here.
"""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from changelog.connectors.views.streams import stores
from changelog.connectors.views.streams.placement import Need
from changelog.connectors.views.streams.stores import PartitionStore
from changelog.connectors.views.streams.tables import KafkaTables, RestoringError


class ClosedError(Exception):
    """Java's error for a store that is closed."""


class Provider:
    """Java's object that finds a store. The store is found once: it is closed while it is read, and looks empty then.

    Before that, `count` rows can be read.
    """

    def __init__(self, count: int) -> None:
        self._pairs = [SimpleNamespace(key=b"%03d" % number, value=Value()) for number in reversed(range(count))]
        self._is_open = True

    def stores(self, *_: object) -> Any:
        if not self._is_open:
            raise ClosedError
        self._is_open = len(self._pairs) > stores._PAIRS_AT_ONCE
        store = SimpleNamespace(get=lambda _key: None, range=self._range)
        return SimpleNamespace(get=lambda _index: store)

    def _range(self, *_: object) -> Any:
        pairs = self._pairs
        return SimpleNamespace(hasNext=lambda: bool(pairs), next=pairs.pop, close=lambda: None)


class Value:
    def value(self) -> bytes:
        return b"x"


@pytest.fixture(autouse=True)
def _without_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "_bytes", lambda octets: octets)
    monkeypatch.setattr(stores, "_locked", lambda _: nullcontext())


def tables(provider: Provider) -> KafkaTables:
    """Returns the tables of an application with one store in memory. Kafka Streams does not run."""
    store = cast(Any, object.__new__(PartitionStore))
    store._provider, store._in_memory, store._table, store._type = provider, True, "order", None
    tables = cast(Any, object.__new__(KafkaTables))
    tables._failures, tables._threads = SimpleNamespace(refuse=lambda: None), SimpleNamespace(enter=lambda: None)
    errors = SimpleNamespace(InvalidStateStoreException=ClosedError, StreamsNotStartedException=ClosedError)
    tables._streams_package = SimpleNamespace(errors=errors)
    tables._store = lambda *_: store
    return cast(KafkaTables, tables)


def test_a_store_that_is_closed_while_it_is_read_does_not_look_empty() -> None:
    with pytest.raises(RestoringError):
        tables(Provider(0)).get_batch("order", 0, [b"1"], Need(0, 0))
    with pytest.raises(RestoringError):
        next(tables(Provider(2)).scan("order", 0, b"", Need(0, 0)))
