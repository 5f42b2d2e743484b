"""Fixtures of the tests of Debezium's events."""

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def own_log() -> Iterator[None]:
    """Resets structlog before and after each test.

    A command that runs in this process directs the log to the standard error of its test, which is closed after the
    test.
    """
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()
