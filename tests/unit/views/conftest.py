"""Fixtures of the tests of served views: a changelog, and the API of its views."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.views.running import Api, commit, records, running, settings


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a configuration and a changelog. Tests do not change it."""
    folder = tmp_path_factory.mktemp("views")
    commit(folder / "log", records()[:5])
    commit(folder / "log", records()[5:])
    return folder


@pytest.fixture(scope="package")
def api(folder: Path) -> Iterator[Api]:
    with running(settings(folder)) as api:
        yield api
