"""Lets a test keep services from reading the catalogue, so that the test can act between two such reads.

A service's `Watch` reads the catalogue from time to time, to notice changed settings and tables. Each of these reads is
called a look.
"""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from changelog.connectors.sources.postgres.watch import CatalogLook, Refusal, Watch


class Looks:
    """Makes all looks of this process take turns with the test.

    A `Watch` looks every few seconds, and also when it is asked to. Without this class, it could look in the middle of
    a test's step.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._turn = threading.Lock()
        look = Watch._look

        def in_turn(watch: Watch, connection: psycopg.Connection[Any]) -> CatalogLook | Refusal:
            with self._turn:
                return look(watch, connection)

        monkeypatch.setattr(Watch, "_look", in_turn)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """While the body of the `with` statement runs, no look is in progress and none begins."""
        with self._turn:
            yield
