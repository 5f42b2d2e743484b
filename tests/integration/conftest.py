"""Defines a fixture for tests that run a service within the test process."""

import pytest

from tests.integration.catalog_readings import CatalogReadings


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> CatalogReadings:
    """Lets a test keep services from reading the database's catalogue. A test must request this fixture before a
    service starts.
    """
    return CatalogReadings(monkeypatch)
