"""Fixtures for the tests that need no server."""

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def own_logs() -> Iterator[None]:
    """A command that runs in this process directs the log to the standard error of its test, which is closed after the
    test. So each test begins with structlog's defaults.
    """
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()
