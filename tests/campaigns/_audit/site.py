"""Runs the service on one database. The faults of a campaign are made of the methods of `Site`, such as `let_run`."""

import json
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import psycopg
from psycopg import sql

from changelog.connectors.servers.postgres import PostgresServer
from changelog.envelope.checkpoint import Checkpoint
from tests.campaigns._audit.history import Restored, place
from tests.campaigns._audit.judge import Since
from tests.campaigns._audit.rows import Gap, Row
from tests.campaigns._audit.tables import ENTITIES, configuration, entity_of, table_of
from tests.campaigns._service import ROOT, Service
from tests.proxy import Proxy
from tests.servers import clock_of, clock_off

NAME = "audited"
CATCH_UP_S = 1_800.0
COMMAND_S = 600.0
ANSWER_S = 3
"""How many seconds the service waits for an answer. On the replication stream, it waits twice as long."""

POSTGRES = {
    "fsync": "off",
    "max_wal_size": "4GB",
    "max_prepared_transactions": "20",
    "track_commit_timestamp": "on",
    "wal_sender_timeout": "3s",
}

HOSTILE_DATABASE, HOSTILE_ROLE = 'da"ta\n;--\u202e\x1b[31m', "ro'le\" $$\n;--"
CLOCKS, CLOCKED = ("database", "service"), 0.4
"""The names of the clocks that faults can set wrong, and the probability that a site allows this for a clock."""

CONFIG = """
name = "{name}"
[source]
kind = "postgres"
dsn = {dsn}
failover = {failover}
snapshot_pages = {pages}
query_timeout_seconds = {answer_s}
read_timeout_seconds = {answer_s}
[schemas]
on_incompatible = "publish"
[service]
listen = "127.0.0.1:0"
[sink]
{sink}
"""


class Sink(Protocol):
    """The sink of the changelog: how to configure it, and how to read what it has stored."""

    @property
    def section(self) -> str:
        """The part of the configuration below `[sink]`."""

    @property
    def fail_points(self) -> Sequence[str]:
        """The fail points of the sink: named lines of its code, at which the service can be made to crash."""

    def stored(self) -> Checkpoint | None:
        """The last checkpoint."""

    def rows(self, entities: Sequence[str]) -> Iterator[Row]:
        """All rows, as consumers get them."""

    def gaps(self) -> list[Gap]:
        """The gaps that the changelog reports."""


class Site:
    """A service, its link to the server, and the tables that it publishes.

    `names` has the entities of these tables. `small` names further small tables to publish; `names` has them, too.
    `clocks` has the names of the clocks that faults may set wrong.
    """

    def __init__(
        self, server: PostgresServer, link: Proxy, folder: Path, seed: int, sink: Sink, small: Sequence[str] = ()
    ) -> None:
        self.rng = random.Random(seed)
        self.done: Counter[str] = Counter()
        self.folder, self.link, self.sink = folder, link, sink
        self.server = server
        self.dsn = _hostile_database(server) if self.rng.random() < 0.5 else server.dsn()
        self.names = [name for name, entity in ENTITIES.items() if not entity.later and not entity.wide]
        self.names += small
        self.since: dict[str, Since] = {}
        self.restored: list[Restored] = []
        self.failover = self.rng.random() < 0.5
        self._pages = self.rng.choice((1, 4, 64))
        self._config = folder / "changelog.toml"
        self._configure()
        self.service = Service(self._config)
        self._clock = folder / "clock"
        faked = clock_of(self._clock)
        self.clocks = [] if faked is None else [clock for clock in CLOCKS if self.rng.random() < CLOCKED]
        if faked is not None and "service" in self.clocks:
            self.turn("service", 0)
            self.service.environment.update(faked)

    def close(self) -> None:
        """Stops the service, and copies the server's log to `folder`."""
        self.service.kill()
        shutil.copy(self.server.log, self.folder / "server.log")  # a failed campaign may keep `folder`

    def let_run(self, seconds: float) -> None:
        """Lets the service run for this time. It must not end by itself."""
        assert not self.service.wait(seconds), f"the service ended by itself: {self.service.said()[-2000:]}"

    def advance(self, service: Service | None = None) -> None:
        """Waits until the changelog has a newer checkpoint than at the time of the call. If another service than
        `self.service` stores it, the caller gives this `service`.
        """
        before = self.sink.stored()
        (service or self.service).until_stored(self.sink.stored, lambda stored: stored != before, CATCH_UP_S)

    def end_service(self) -> None:
        """Ends the service with SIGTERM or SIGKILL."""
        self.rng.choice((self.service.stop, self.service.kill))()

    def until_gone(self) -> None:
        """Waits until the server has no session of the service left."""
        deadline = time.monotonic() + CATCH_UP_S
        query = "SELECT FROM pg_stat_activity WHERE application_name = 'changelog'"
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            while connection.execute(query).fetchone() is not None:
                assert time.monotonic() < deadline, "the server keeps sessions of a service that has ended"
                time.sleep(0.05)

    def add_table(self, name: str) -> None:
        """Adds a table to the publication, then to the configuration, while writers change the table."""
        self.done["table added"] += 1
        nothing = self.here()
        self.publish("ADD TABLE {table}", name)
        published = self.here()
        self.let_run(self.rng.random() * 0.5)
        self.end_service()
        self.since[name] = Since(nothing=nothing, published=published, streaming=self.here())
        self.names.append(name)
        self._configure()
        self.service.start()

    def publish(self, edit: str, name: str) -> None:
        """Runs ALTER PUBLICATION with the clause `edit`, for one table."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            names = {"table": table_of(name), "key": sql.Identifier(entity_of(name).key[0])}
            statement = sql.SQL(f"ALTER PUBLICATION {{publication}} {edit}")
            connection.execute(statement.format(publication=sql.Identifier(NAME), **names))

    def configuration(self, port: int) -> str:
        """The configuration of a service that reaches the server at this port."""
        head = CONFIG.format(
            name=NAME,
            dsn=json.dumps(psycopg.conninfo.make_conninfo(self.dsn, port=port)),
            failover=json.dumps(self.failover),
            pages=self._pages,
            answer_s=ANSWER_S,
            sink=self.sink.section,
        )
        return head + configuration(self.names)

    def log_end(self) -> int:
        """The position at which the server's log ends."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            row = connection.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchone()
        assert row is not None
        return int(row[0])

    def here(self) -> int:
        """Where the server's log ends, as a unique number (see `BRANCH`). `log_end` may return the same number twice,
        because a server uses positions of its log again after a restore.
        """
        return place(self.log_end(), [restored.at for restored in self.restored])

    def command(self, *arguments: str, code: int = 0) -> str:
        """Runs `changelog` with these arguments, checks the exit code, and returns the output."""
        command = [sys.executable, "-m", "changelog", arguments[0], "--config", str(self._config), *arguments[1:]]
        process = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=COMMAND_S, check=False, text=True)
        assert process.returncode == code, f"{arguments} ended with {process.returncode}: {process.stderr[-2000:]}"
        return process.stdout

    def turn(self, name: str, seconds: int) -> None:
        """Makes a clock wrong by this number of seconds. The database uses the new time only after its next start."""
        if name == "service":
            self._clock.write_text(f"{seconds:+d}", "utf-8")
        else:
            self.server.environment.update(clock_off(seconds) or {})

    def _configure(self) -> None:
        self._config.write_text(self.configuration(self.link.port), "utf-8")


def _hostile_database(server: PostgresServer) -> str:
    """Creates a role and a database for it. Returns the connection string. The names of both contain code that would
    run if a program used the names without quotes.
    """
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        role, database = sql.Identifier(HOSTILE_ROLE), sql.Identifier(HOSTILE_DATABASE)
        connection.execute(sql.SQL("CREATE ROLE {} SUPERUSER LOGIN").format(role))
        connection.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(database, role))
    return server.dsn(HOSTILE_DATABASE, HOSTILE_ROLE)
