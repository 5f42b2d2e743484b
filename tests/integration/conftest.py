"""Fixtures of the tests that run a service within the test process."""

import pytest

from tests.integration.looks import Looks


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    """Lets a test keep services from reading the catalogue. A test must request this fixture before a service
    starts.
    """
    return Looks(monkeypatch)
