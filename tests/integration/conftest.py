"""Fixtures of the tests that run a service within the test process."""

import pytest

from tests.integration.looks import Looks


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    """Lets a test hold back the services' looks at the catalogue. Request it before a service starts."""
    return Looks(monkeypatch)
