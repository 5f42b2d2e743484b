"""Fixtures for every test: real servers, fresh databases, and a seed that is printed."""

import os
import random
from collections.abc import Iterator

import pytest
from hypothesis.configuration import set_hypothesis_home_dir

from connectors.embedded import Server, temporary_server
from tests.servers import SETTINGS, fresh_database, postgres_15_bin

SEED_VARIABLE = "CHANGELOG_TEST_SEED"


@pytest.hookimpl(tryfirst=True)  # before Hypothesis reads its option
def pytest_configure(config: pytest.Config) -> None:
    """Fixes one seed for the run, Hypothesis's too; the workers of xdist inherit it."""
    seed = os.environ.setdefault(SEED_VARIABLE, str(random.SystemRandom().randrange(2**32)))
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = int(seed)
    set_hypothesis_home_dir(config.rootpath / ".cache" / "hypothesis")


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed: {os.environ[SEED_VARIABLE]} (repeat with {SEED_VARIABLE}={os.environ[SEED_VARIABLE]})"


@pytest.fixture(scope="session")
def seed() -> int:
    """The seed of this run; `CHANGELOG_TEST_SEED` sets it."""
    return int(os.environ[SEED_VARIABLE])


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """The newest PostgreSQL we test with, from the wheel."""
    with temporary_server(settings=SETTINGS) as running:
        yield running


@pytest.fixture(scope="session")
def server_15() -> Iterator[Server]:
    """PostgreSQL 15, the older end of what we test with."""
    with temporary_server(postgres_15_bin(), settings=SETTINGS) as running:
        yield running


@pytest.fixture
def database(server: Server) -> Iterator[str]:
    """The connection string of a fresh database of `server`."""
    with fresh_database(server) as dsn:
        yield dsn


@pytest.fixture
def database_15(server_15: Server) -> Iterator[str]:
    """The connection string of a fresh database of `server_15`."""
    with fresh_database(server_15) as dsn:
        yield dsn
