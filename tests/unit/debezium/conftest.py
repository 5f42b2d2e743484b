"""Fixtures of the tests of Debezium's events."""

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def own_log() -> Iterator[None]:
    """Undoes what a command has configured, because the log would go to a stream that is closed."""
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()
