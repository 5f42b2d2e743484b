"""Fixtures of the tests that run services in their own process."""

import pytest

from tests.integration.looks import Looks


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    """Holds back the looks at the catalogue; requested before a service starts."""
    return Looks(monkeypatch)
