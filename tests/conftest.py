"""Defines the fixtures that all tests share: real servers, fresh databases, and the random seed of the run.

Pytest prints the seed, so that a failed run can be repeated with it.
"""

import gc
import hashlib
import os
import random
import re
import sys
import threading
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, settings
from hypothesis.configuration import set_hypothesis_home_dir

from changelog.connectors.servers.kafka import Broker, temporary_broker
from changelog.connectors.servers.mysql import MysqlServer
from changelog.connectors.servers.postgres import PostgresServer, temporary_server
from changelog.connectors.servers.unprivileged import SHARE_VARIABLE
from tests.campaigns._forked import Nursery
from tests.campaigns._service import Service
from tests.servers import (
    FEW_THREADS,
    KEEPING_MESSAGES,
    SERVICE_THREAD,
    SETTINGS,
    fetched,
    fresh_database,
    java_needed,
    kafka_lib,
    postgres_bin,
)
from tests.servers.memory import folder_in_memory, remove
from tests.servers.mysql import FLAVOURS, OTHER_VERSIONS, fresh_mysql_database
from tests.servers.mysql import mysql_server as running_mysql_server
from tests.servers.registry import Registry, temporary_registry

SEED_VARIABLE = "CHANGELOG_TEST_SEED"

TERMINAL_VARIABLES = (
    "COLUMNS",
    "LINES",
    "NO_COLOR",
    "FORCE_COLOR",
    "CLICOLOR_FORCE",
    "TTY_COMPATIBLE",
    "TTY_INTERACTIVE",
)
"""Environment variables that change what programs print. They are removed, so that the result of a test does not depend
on the terminal from which the tests are run.
"""

SERVER_PROGRAMS = {"initdb", "java", "mariadbd", "mysqld", "node", "postgres", "spark-submit"}
"""Programs whose start means that a server, Spark or a browser is started (Playwright runs in `node`)."""

GROUPS = {"spark": "spark", "broker": "kafka", "registry": "kafka"}
"""Maps each fixture that starts a Java virtual machine to the group of the tests that request it.

One worker of pytest-xdist runs all tests of a group, and starts the virtual machine once for all of them.

Tests that need both Spark and Kafka form their own group, `spark-kafka`. Tests that need both Kafka and PostgreSQL form
the group `kafka-postgres`. Otherwise, the groups `spark` and `kafka` would be so large that their workers would end
long after all others.
"""


@pytest.hookimpl(tryfirst=True)  # before Hypothesis reads its option
def pytest_configure(config: pytest.Config) -> None:
    """Sets one seed for the run, its workers and Hypothesis. Removes TERMINAL_VARIABLES from the environment."""
    seed = os.environ.setdefault(SEED_VARIABLE, str(random.SystemRandom().randrange(2**32)))
    for variable in TERMINAL_VARIABLES:
        os.environ.pop(variable, None)
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = int(seed)
    set_hypothesis_home_dir(config.rootpath / ".cache" / "hypothesis")
    # These checks depend on how busy the machine is and on the random examples, so they would fail at random.
    luck = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
    settings.register_profile("suite", max_examples=50, deadline=None, suppress_health_check=luck)
    settings.load_profile("suite")
    config.pluginmanager.register(UnrequestedServers())
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    os.environ[SHARE_VARIABLE] = f"{worker}/{os.environ.get('PYTEST_XDIST_WORKER_COUNT', '1')}"
    folder = folder_in_memory()
    if folder is not None:
        config.add_cleanup(lambda: remove(folder))
    Service.nursery = Nursery({"PYTHONUNBUFFERED": "1"})


def pytest_unconfigure() -> None:
    if Service.nursery is not None:
        Service.nursery.close()


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests that need a server. Puts the tests of an expensive server into a group, which one worker runs."""
    for item in items:
        if not isinstance(item, pytest.Function):
            continue
        if "starts_servers" in item.fixturenames:
            item.add_marker(pytest.mark.server)
        groups = dict.fromkeys(group for fixture, group in GROUPS.items() if fixture in item.fixturenames)
        if [*groups] == ["kafka"] and "server" in item.fixturenames:
            groups["postgres"] = None
        if groups:
            item.add_marker(pytest.mark.xdist_group("-".join(groups)))


def pytest_collection() -> None:
    """Turns off garbage collection while tests are imported: it would take a third of the time and free nothing."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Excludes imported modules from garbage collections. Without this, each collection would take 0.2 s longer, and
    each Spark test causes a collection.
    """
    gc.enable()
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, object, object]:
    """Resets structlog. A command configures it to write to the standard error of the test that runs the command, and
    this stream is closed after the test. It is not reset while a service runs in a thread of the tests
    (SERVICE_THREAD), because that service still logs.
    """
    try:
        return (yield)
    finally:
        if all(thread.name != SERVICE_THREAD for thread in threading.enumerate()):
            structlog.reset_defaults()


class UnrequestedServers:
    """Fails a test that starts a server but does not request the fixture `starts_servers`.

    `make quick` runs all tests that do not request this fixture, so it would run such a test, too.
    """

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
            pytest.fail(f"the test starts {program}, but does not request the fixture starts_servers")


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed: {os.environ[SEED_VARIABLE]} (repeat with {SEED_VARIABLE}={os.environ[SEED_VARIABLE]})"


@pytest.fixture(scope="session")
def seed() -> int:
    """The seed of this run; `CHANGELOG_TEST_SEED` sets it."""
    return int(os.environ[SEED_VARIABLE])


@pytest.fixture
def own_name(request: pytest.FixtureRequest) -> str:
    """A name for topics, roles and databases. Each test has a name of its own, the same in every run."""
    return f"t{hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:12]}"


@pytest.fixture(scope="session")
def starts_servers() -> None:
    """Marks the tests that start servers. `make quick` leaves these tests out.

    Each fixture or test that starts a server, Spark or a browser must request this fixture. A test that gets the
    fixture of a server by `getfixturevalue` must also request it.
    """


def postgres(version: int) -> Any:
    """Returns a fixture: a PostgreSQL of this version, which runs until the session ends."""

    @pytest.fixture(scope="session")
    def running(starts_servers: None) -> Iterator[PostgresServer]:
        with temporary_server(postgres_bin(version), settings=SETTINGS) as server:
            yield server

    return running


server = postgres(18)
server_14, server_15, server_16, server_17 = map(postgres, (14, 15, 16, 17))


@pytest.fixture(scope="session")
def broker(starts_servers: None) -> Iterator[Broker]:
    """A broker of Apache Kafka, which runs until the session ends."""
    with temporary_broker(kafka_lib(), settings={**KEEPING_MESSAGES, **FEW_THREADS}) as running:
        yield running


@pytest.fixture(scope="session")
def registry(starts_servers: None) -> Iterator[Registry]:
    """A schema registry, which runs until the session ends."""
    java_needed()
    with temporary_registry(fetched("registry")) as running:
        yield running


@pytest.fixture
def database(server: PostgresServer) -> Iterator[str]:
    """The connection string of a fresh database of `server`."""
    with fresh_database(server) as dsn:
        yield dsn


@pytest.fixture
def database_14(server_14: PostgresServer) -> Iterator[str]:
    """The connection string of a fresh database of `server_14`."""
    with fresh_database(server_14) as dsn:
        yield dsn


@pytest.fixture
def database_15(server_15: PostgresServer) -> Iterator[str]:
    """The connection string of a fresh database of `server_15`."""
    with fresh_database(server_15) as dsn:
        yield dsn


def mysql_of(version: str) -> Any:
    """Returns a fixture: a MariaDB or MySQL of this version, which runs until the session ends."""

    @pytest.fixture(scope="session")
    def running(starts_servers: None) -> Iterator[MysqlServer]:
        with running_mysql_server(version) as server:
            yield server

    return running


mariadb, mysql = map(mysql_of, FLAVOURS)
mariadb_10_11, mariadb_11_8, mysql_9 = map(mysql_of, OTHER_VERSIONS)


@pytest.fixture(params=FLAVOURS)
def mysql_server(request: pytest.FixtureRequest, starts_servers: None) -> MysqlServer:
    """A running server. A test that requests it runs twice: with a MariaDB and with a MySQL. With the mark
    EVERY_VERSION, the test also runs with all other versions. Each server is started once in a test session.
    """
    running = request.getfixturevalue(re.sub(r"\W", "_", request.param))
    assert isinstance(running, MysqlServer)
    return running


@pytest.fixture
def mysql_database(mysql_server: MysqlServer) -> Iterator[str]:
    """The name of a fresh database of `mysql_server`."""
    with fresh_mysql_database(mysql_server) as name:
        yield name
