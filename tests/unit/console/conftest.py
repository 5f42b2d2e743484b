"""Fixtures of the tests of the console: a changelog, and a client of its console."""

from pathlib import Path

import pytest

from tests.unit.console.client import Client
from tests.unit.console.story import settings, story, versions, write


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the changelog of the module `story`. Tests add a configuration, but do not change the changelog."""
    folder = tmp_path_factory.mktemp("console")
    write(folder / "log", [*story(), *versions()])
    return folder


@pytest.fixture
def client(folder: Path) -> Client:
    return Client(settings(folder))
