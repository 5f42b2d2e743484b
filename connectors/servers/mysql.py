"""Runs MySQL or MariaDB from a folder of its programs, for the demo, the tests and the benchmarks. Needs the extra
`mysql`.

The server listens on loopback only, lets its user `root` in without a password, and stores everything in one data
folder. Clients can use TLS. If the calling process runs as the system's user root, the server runs as the system's user
`nobody`.
"""

import contextlib
import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

import pymysql
from pymysql.cursors import Cursor

from changelog.connectors.servers.certificates import CA, CERTIFICATE, KEY, write_certificates
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

Flavour = Literal["mariadb", "mysql"]
NAMES: Mapping[Flavour, str] = {"mariadb": "MariaDB", "mysql": "MySQL"}
PROGRAMS: Mapping[Flavour, str] = {"mariadb": "mariadbd", "mysql": "mysqld"}

DEFAULT_SETTINGS: Mapping[str, str] = {
    "binlog_format": "ROW",
    "binlog_row_image": "FULL",
    "binlog_row_metadata": "FULL",
    "default_time_zone": "+00:00",
    "log_bin": "binlog",
    "log_slave_updates": "ON",
    "server_id": "1",
}

TEMPORARY_FILES = ".tmp"
"""The folder for temporary files, in the data folder. If servers shared one folder, each server would delete the
others' temporary tables at its start.
"""

FLAVOUR_SETTINGS: Mapping[Flavour, Mapping[str, str]] = {
    "mariadb": {"binlog_annotate_row_events": "ON", "gtid_strict_mode": "ON", "ignore_db_dirs": TEMPORARY_FILES},
    "mysql": {
        "binlog_rows_query_log_events": "ON",
        "enforce_gtid_consistency": "ON",
        "gtid_mode": "ON",
        "mysqlx": "OFF",
        "secure_file_priv": "NULL",  # the default can be a folder that only an installed server has
    },
}

USER = "root"
START_TIMEOUT_S = 120.0
IN_USE = "Address already in use"

# MariaDB makes its system tables by running the SQL of these files in this order, as in its script mariadb-install-db.
_SYSTEM_TABLES = ("_system_tables", "_performance_tables", "_system_tables_data", "_sys_schema")
_SYSTEM_SQL = b"CREATE DATABASE mysql;\nUSE mysql;\nSET @auth_root_socket = NULL;\n"

# A data folder is used only if its initialisation was not interrupted. So an initialisation need not wait until its
# files are on disk.
_INITIALISATION: Mapping[Flavour, tuple[str, ...]] = {
    "mariadb": ("--bootstrap", "--innodb_flush_method=nosync", "--max_allowed_packet=8M", "--log_warnings=0"),
    "mysql": ("--initialize-insecure", "--innodb_flush_method=nosync", "--auto_generate_certs=OFF"),
}


def find_home(flavour: Flavour) -> Path:
    """Returns the folder of a server's programs: $CHANGELOG_MARIADB_HOME or $CHANGELOG_MYSQL_HOME if it is set,
    otherwise the folder into which `make` fetches them in a checkout.

    Raises ChangelogError (PRECONDITION) if the programs are not there.
    """
    variable, program = f"CHANGELOG_{flavour.upper()}_HOME", PROGRAMS[flavour]
    path = os.environ.get(variable)
    checkout = Path(__file__).resolve().parents[2]
    for home in [Path(path)] if path else [Path(f".cache/{flavour}"), checkout / f".cache/{flavour}"]:
        if (home / "bin" / program).exists():
            return home.absolute()
    raise ChangelogError(
        Kind.PRECONDITION,
        f"there is no bin/{program} in {path}" if path else f"{NAMES[flavour]} was not found",
        hint=f"`make .cache/{flavour}/.done` in a checkout fetches it; or set {variable}",
    )


class MysqlServer(ServerProcess):
    """One server with its data in `data_dir`, which is initialised if it is empty or absent.

    `home` has the programs in `bin`, and the messages and character sets in `share`. Libraries that only the server
    uses are in `lib`. If `lib` also has the C library, the server is started by the loader of that C library.

    `settings` are added to DEFAULT_SETTINGS and FLAVOUR_SETTINGS and go on the server's command line. A change of the
    attribute `settings` takes effect at the next start. `port` is by default a free one, and stays the same after a
    restart. If `templates` is set, a copy of the initialised data folder is kept in `templates`, and later servers
    start from that copy. As a context manager, the server starts at the beginning, and shuts down at the end. Starting
    raises ChangelogError: ACCESS if the server's user cannot read the programs, PRECONDITION (with the last error of
    the server's log) if the server does not start.
    """

    def __init__(
        self,
        flavour: Flavour,
        home: Path,
        data_dir: Path,
        *,
        settings: Mapping[str, str] | None = None,
        port: int | None = None,
        templates: Path | None = None,
    ) -> None:
        super().__init__()
        self.flavour = flavour
        self.home = home
        self.data_dir = data_dir.resolve()
        self.settings = {**DEFAULT_SETTINGS, **FLAVOUR_SETTINGS[flavour], **(settings or {})}
        self.host = "127.0.0.1"
        self.port = port or free_port()
        self.log = self.data_dir / "server.log"
        self.ca = self.data_dir / CA
        """The authority's certificate, with which clients verify the server's certificate."""
        self._templates = templates

    def connect(self, database: str | None = None) -> "pymysql.Connection[Cursor]":
        """Opens a session of the server's administrator, in autocommit mode and without TLS. Raises pymysql.Error."""
        return pymysql.connect(
            host=self.host, port=self.port, user=USER, database=database, autocommit=True, ssl_disabled=True
        )

    def start(self) -> None:
        """Starts the server, and returns after it has answered a query. After a crash, the server first recovers.

        While another program has the port, this method waits and retries.
        """
        if self.running:
            return
        if not (self.data_dir / CERTIFICATE).exists():
            self._initialise()
        self._make_folder(TEMPORARY_FILES)
        # MySQL refuses to start if another process now has the id that a killed server left in this file.
        (self.data_dir / "server.sock.lock").unlink(missing_ok=True)
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            offset = self.log.stat().st_size if self.log.exists() else 0
            self._process = launch(self._command(), self.log, self._environment)
            if self._answers(deadline):
                return
            output = self.log.read_bytes()[offset:].decode("utf-8", "replace")
            self.kill()
            if IN_USE not in output or time.monotonic() > deadline:
                raise ChangelogError(
                    Kind.PRECONDITION,
                    f"{NAMES[self.flavour]} in {self.data_dir} did not start: {_last_error(output)}",
                    hint=f"see {self.log}",
                )
            time.sleep(0.1)

    def _initialise(self) -> None:
        """Makes the data folder. The server's certificates are written last, so they mark a complete folder."""
        options = [*self._program(), *_INITIALISATION[self.flavour]]
        digest = hashlib.sha256(" ".join(_INITIALISATION[self.flavour]).encode()).hexdigest()
        template = None if self._templates is None else self._templates / f"server-{digest[:12]}"
        if template is not None and template.exists():
            _copy(template, self.data_dir)
        else:
            self._make_tables(options)
            write_certificates(self.data_dir)
            if template is not None:
                _keep(self.data_dir, template)
        for path in (self.data_dir, *self.data_dir.rglob("*")):
            give_away(path)

    def _make_tables(self, options: list[str]) -> None:
        self._make_folder(".")
        self._make_folder(TEMPORARY_FILES)
        sql = b""
        if self.flavour == "mariadb":
            files = [file for name in _SYSTEM_TABLES for file in (self.home / "share").glob(f"m*{name}.sql")]
            sql = b"".join([_SYSTEM_SQL, *(file.read_bytes() for file in files)])
        try:
            run(options, sql, self._environment)
        except PermissionError as error:
            raise ChangelogError(
                Kind.ACCESS,
                f"{NAMES[self.flavour]} runs as an unprivileged user, who cannot read {self.home}",
                hint="let other users enter the folders above it, or do not run as root",
            ) from error
        except subprocess.CalledProcessError as error:
            last = _last_error(error.stderr.decode("utf-8", "replace"))
            raise ChangelogError(
                Kind.PRECONDITION, f"{NAMES[self.flavour]} cannot initialise {self.data_dir}: {last}"
            ) from error
        (self.data_dir / "auto.cnf").unlink(missing_ok=True)  # the id of the server, which a copy must not share

    def _make_folder(self, name: str) -> None:
        folder = self.data_dir / name
        folder.mkdir(parents=True, exist_ok=True)
        give_away(folder)

    @property
    def _environment(self) -> Mapping[str, str]:
        return {} if self._loader.exists() else {"LD_LIBRARY_PATH": str(self.home / "lib")}

    @property
    def _loader(self) -> Path:
        return self.home / "lib" / "ld-linux-x86-64.so.2"

    def _program(self) -> list[str]:
        """Returns the beginning of each command: the program, and where its files are."""
        loader = [str(self._loader), "--library-path", str(self.home / "lib")] if self._loader.exists() else []
        share = self.home / "share"
        return [
            *(*loader, str(self.home / "bin" / PROGRAMS[self.flavour]), "--no-defaults"),
            *(f"--basedir={self.home}", f"--datadir={self.data_dir}"),
            *(f"--lc_messages_dir={share}", f"--character_sets_dir={share / 'charsets'}"),
            f"--tmpdir={self.data_dir / TEMPORARY_FILES}",
        ]

    def _command(self) -> list[str]:
        options = {
            **self.settings,
            "bind_address": self.host,
            "port": str(self.port),
            "pid_file": "server.pid",
            "socket": "server.sock",  # relative to the data folder, because its path is limited to 107 bytes
            "ssl_ca": CA,
            "ssl_cert": CERTIFICATE,
            "ssl_key": KEY,
        }
        return [*self._program(), *(f"--{name}={value}" for name, value in options.items())]

    def _answers(self, deadline: float) -> bool:
        while self.running and time.monotonic() < deadline:
            try:
                with self.connect() as connection, connection.cursor() as cursor:
                    cursor.execute("SELECT @@datadir")
                    row = cursor.fetchone()
                if row is not None and Path(row[0]) == self.data_dir:
                    return True
            except pymysql.err.OperationalError:
                pass
            time.sleep(0.05)  # if another server has the port, ours will log that and end
        return False


@contextlib.contextmanager
def temporary_server(
    flavour: Flavour,
    home: Path | None = None,
    *,
    settings: Mapping[str, str] | None = None,
    templates: Path | None = None,
) -> Iterator[MysqlServer]:
    """Runs a server in a temporary folder (see DATA_VARIABLE), and deletes the folder afterwards.

    `home` is the folder of its programs, by default that of `find_home`. The other arguments are those of
    `MysqlServer`.
    """
    with (
        temporary_folder(f"changelog-{flavour}-") as folder,
        temporary_folder(f"changelog-{flavour}-data-", os.environ.get(DATA_VARIABLE)) as data_folder,
    ):
        programs = reachable(home or find_home(flavour), folder)
        with MysqlServer(flavour, programs, data_folder / "data", settings=settings, templates=templates) as server:
            yield server
            server.kill()  # a shutdown would write to files that are deleted next


def _copy(source: Path, target: Path) -> None:
    """Copies a data folder. The zeros with which InnoDB fills its files in advance take no room in the copy. The target
    exists only once the copy is complete.
    """
    own = target.with_name(f"{target.name}-{os.getpid()}")
    subprocess.run(["cp", "--recursive", "--sparse=always", str(source), str(own)], check=True)
    try:
        own.rename(target)
    except OSError:
        shutil.rmtree(own)
        raise


def _keep(data_dir: Path, template: Path) -> None:
    """Copies `data_dir` to `template`. Discards the copy if another process has just made the template."""
    template.parent.mkdir(parents=True, exist_ok=True)
    try:
        _copy(data_dir, template)
    except OSError:
        if not template.exists():
            raise


def _last_error(output: str) -> str:
    """Returns the last line that says what is wrong. Skips the line that only says that the server gives up."""
    lines = output.strip().splitlines() or ["it printed nothing"]
    return next((line for line in reversed(lines) if "ERROR" in line and "Aborting" not in line), lines[-1])
