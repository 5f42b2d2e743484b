"""Fixtures for every test: real servers, fresh databases, and a seed that is printed."""

import gc
import hashlib
import os
import random
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.configuration import set_hypothesis_home_dir

from changelog.connectors.servers.kafka import Broker, temporary_broker
from changelog.connectors.servers.postgres import Server, temporary_server
from tests.servers import SETTINGS, fetched, fresh_database, java_needed, kafka_lib, postgres_bin
from tests.servers.registry import Registry, temporary_registry

SEED_VARIABLE = "CHANGELOG_TEST_SEED"

SERVER_PROGRAMS = {"initdb", "java", "node", "postgres", "spark-submit"}
"""What servers, Spark and browsers are started by (Playwright's driver is a node)."""

DEAR = {"broker", "registry"}
"""Fixtures that take a Java virtual machine each."""


@pytest.hookimpl(tryfirst=True)  # before Hypothesis reads its option
def pytest_configure(config: pytest.Config) -> None:
    """Fixes one seed for the run, Hypothesis's too; the workers of xdist inherit it."""
    seed = os.environ.setdefault(SEED_VARIABLE, str(random.SystemRandom().randrange(2**32)))
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = int(seed)
    set_hypothesis_home_dir(config.rootpath / ".cache" / "hypothesis")
    # How long an example takes says how busy the machine is, and how many are thrown away how the dice fell.
    luck = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
    settings.register_profile("suite", deadline=None, suppress_health_check=luck)
    settings.load_profile("suite")
    config.pluginmanager.register(Unasked())


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests that need a server, and has one worker run all tests of a server that is dear to start."""
    for item in items:
        if not isinstance(item, pytest.Function):
            continue
        if "starts_servers" in item.fixturenames:
            item.add_marker(pytest.mark.server)
        if not DEAR.isdisjoint(item.fixturenames):
            item.add_marker(pytest.mark.xdist_group("kafka"))


def pytest_collection_finish() -> None:
    """Keeps what is imported out of garbage collections: each would take 0.2 s, and one follows each Spark test."""
    gc.collect()
    gc.freeze()


class Unasked:
    """Fails a test that starts a server without requesting `starts_servers`: `make quick` would run it."""

    def __init__(self) -> None:
        self._serverless = False
        sys.addaudithook(self._refuse)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._serverless = item.get_closest_marker("server") is None
        try:
            return (yield)
        finally:
            self._serverless = False

    def _refuse(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "subprocess.Popen" or not self._serverless:
            return
        program, words = Path(os.fsdecode(arguments[0])).name, arguments[1]
        if program in SERVER_PROGRAMS and "-version" not in words:
            pytest.fail(f"{program} is started, but nothing here requests the fixture starts_servers")


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed: {os.environ[SEED_VARIABLE]} (repeat with {SEED_VARIABLE}={os.environ[SEED_VARIABLE]})"


@pytest.fixture(scope="session")
def seed() -> int:
    """The seed of this run; `CHANGELOG_TEST_SEED` sets it."""
    return int(os.environ[SEED_VARIABLE])


@pytest.fixture
def own_name(request: pytest.FixtureRequest) -> str:
    """A name that no other test has, and the same one in each run: for topics, roles and databases."""
    return f"t{hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:12]}"


@pytest.fixture(scope="session")
def starts_servers() -> None:
    """Requested by each fixture, and each test, that starts a server, Spark or a browser, or asks for one by name.

    So the tests that need none are known: `make quick` runs them.
    """


def postgres(version: int) -> Any:
    """The fixture of a PostgreSQL that runs while the session lasts."""

    @pytest.fixture(scope="session")
    def running(starts_servers: None) -> Iterator[Server]:
        with temporary_server(postgres_bin(version), settings=SETTINGS) as found:
            yield found

    return running


server = postgres(18)
server_14, server_15, server_16, server_17 = map(postgres, (14, 15, 16, 17))


@pytest.fixture(scope="session")
def broker(starts_servers: None) -> Iterator[Broker]:
    """An Apache Kafka."""
    with temporary_broker(kafka_lib()) as running:
        yield running


@pytest.fixture(scope="session")
def registry(starts_servers: None) -> Iterator[Registry]:
    """A schema registry."""
    java_needed()
    with temporary_registry(fetched("registry")) as running:
        yield running


@pytest.fixture
def database(server: Server) -> Iterator[str]:
    """The connection string of a fresh database of `server`."""
    with fresh_database(server) as dsn:
        yield dsn


@pytest.fixture
def database_14(server_14: Server) -> Iterator[str]:
    """The connection string of a fresh database of `server_14`."""
    with fresh_database(server_14) as dsn:
        yield dsn


@pytest.fixture
def database_15(server_15: Server) -> Iterator[str]:
    """The connection string of a fresh database of `server_15`."""
    with fresh_database(server_15) as dsn:
        yield dsn
