"""Lets a test keep services from reading the database's catalogue while the test does something.

A service's `Watch` reads the catalogue from time to time, to notice changed settings and tables.
"""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from changelog.connectors.sources.postgres.watch import CatalogReading, Refusal, Watch


class CatalogReadings:
    """Keeps the services of this process from reading the catalogue inside a `with` block of `held`.

    A `Watch` reads the catalogue every few seconds, and also when it is asked to. Without this class, it could do so in
    the middle of a test's step.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._turn = threading.Lock()
        read = Watch._read

        def read_in_turn(watch: Watch, connection: psycopg.Connection[Any]) -> CatalogReading | Refusal:
            with self._turn:
                return read(watch, connection)

        monkeypatch.setattr(Watch, "_read", read_in_turn)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Waits until no service reads the catalogue. None begins to read it while the body of the `with` statement
        runs.
        """
        with self._turn:
            yield
