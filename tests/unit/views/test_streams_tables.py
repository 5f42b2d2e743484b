"""Tests what tables answer while Kafka Streams closes their stores. No Java runs here."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from changelog.connectors.views.streams.placement import Need
from changelog.connectors.views.streams.tables import KafkaTables, RestoringError


class ClosedError(Exception):
    """Java's error for a store that is closed."""


class Store:
    """A store in memory that is closed during the first read.

    That read ends as if there were no more rows. Only the next `get` raises an error.
    """

    def __init__(self, count: int) -> None:
        self._pairs = [SimpleNamespace(key=b"%d" % number, value=Value()) for number in range(count)]
        self._reads = 0

    def get(self, _: bytes) -> object:
        self._reads += 1
        if self._reads > 1:
            raise ClosedError
        return None

    def range(self, *_: object) -> Any:
        self._reads += 1
        pairs = list(reversed(self._pairs))
        return SimpleNamespace(hasNext=lambda: bool(pairs), next=pairs.pop, close=lambda: None)


class Value:
    def value(self) -> bytes:
        return b"x"


def tables(store: Store) -> KafkaTables:
    """Returns the tables of an application, with one store in memory. Kafka Streams does not run."""
    tables = cast(Any, object.__new__(KafkaTables))
    tables._settings = SimpleNamespace(folder=None)
    tables._failures, tables._bytes_of = SimpleNamespace(refuse=lambda: None), bytes
    tables._threads = SimpleNamespace(enter=lambda: None)
    errors = SimpleNamespace(InvalidStateStoreException=ClosedError, StreamsNotStartedException=ClosedError)
    tables._streams_package = SimpleNamespace(errors=errors)
    tables._store_with = lambda *_: store
    return cast(KafkaTables, tables)


def test_a_store_that_is_closed_while_it_is_read_does_not_look_empty() -> None:
    with pytest.raises(RestoringError):
        tables(Store(0)).get_batch("order", 0, [b"1"], Need(0, 0))
    scan = tables(Store(2)).scan("order", 0, b"", Need(0, 0))
    assert [next(scan), next(scan)] == [(b"0", b"x"), (b"1", b"x")]
    with pytest.raises(RestoringError):
        next(scan)
