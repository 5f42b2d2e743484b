"""The looks at the catalogue of services in this process: held back, so that a test can act between two of them."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from changelog.connectors.sources.postgres.watch import CatalogLook, Refusal, Watch


class Looks:
    """Watches look whenever they are asked to, and every few seconds: also in the middle of what a test does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._turn = threading.Lock()
        look = Watch._look

        def in_turn(watch: Watch, connection: psycopg.Connection[Any]) -> CatalogLook | Refusal:
            with self._turn:
                return look(watch, connection)

        monkeypatch.setattr(Watch, "_look", in_turn)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """While the body runs, no look has begun and none begins."""
        with self._turn:
            yield
