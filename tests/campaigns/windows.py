"""Lets the service read tables while they change in many ways.

There are long transactions, savepoints, changed keys, a table that is rewritten, and a TRUNCATE. Some commits are in
the server's log long before they are visible. The service is killed, too. In the changelog, an old state of a key must
not come after a newer one. No change may be lost or repeated, and the last states must equal the tables.
"""

import contextlib
import random
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
from psycopg import sql

from changelog.connectors.servers.postgres import temporary_server
from changelog.connectors.sources.postgres.values.lsn import through_lsn
from tests.campaigns._judge import judge
from tests.campaigns._load import CONFLICTS, ENTITIES, Load, Scale, last_write, prepare
from tests.campaigns._oracle import TABLES, Oracle
from tests.campaigns._pieces import Campaign, Figures, Piece
from tests.campaigns._service import FAIL_POINTS, Service, is_read
from tests.campaigns._standby import STANDBY, Standby, standby_of
from tests.servers import fresh_database

SETTINGS = {"fsync": "off", "synchronous_standby_names": STANDBY, "max_wal_size": "4GB"}
ROWS = 3_000
DISTURBED_S = 1.5
CATCH_UP_S = 180.0

CONFIG = """
name = "{name}"
[source]
kind = "postgres"
dsn = "{dsn}"
snapshot_pages = {pages}
snapshot_workers = {workers}
[sink]
path = "changelog"
commit_rows = 300
commit_seconds = 0.05
[service]
listen = "127.0.0.1:0"
[schemas]
on_incompatible = "publish"
"""


def campaign() -> Campaign:
    """Each round uses a new database, and lets the service read all of its tables once."""
    return Campaign(site=_site, at_once=2)


@contextlib.contextmanager
def _site() -> Iterator[Callable[[Piece], Figures]]:
    with (
        tempfile.TemporaryDirectory(prefix="changelog-windows-") as name,
        temporary_server(settings=SETTINGS) as server,
        standby_of(server, Path(name)) as standby,
    ):

        def run_piece(piece: Piece) -> Figures:
            folder = Path(name) / str(piece.first)
            folder.mkdir()
            try:
                with fresh_database(server) as dsn:
                    return _Round(f"w{piece.first}", dsn, folder, standby, random.Random(piece.seed)).run()
            finally:
                shutil.rmtree(folder)

        yield run_piece


class _Round:
    def __init__(self, name: str, dsn: str, folder: Path, standby: Standby, rng: random.Random) -> None:
        self._name = name
        self._dsn, self._folder, self._standby, self._rng = dsn, folder, standby, rng
        config = folder / "changelog.toml"
        shape = CONFIG.format(name=name, dsn=dsn, pages=rng.choice((1, 2, 4)), workers=rng.choice((1, 2, 4)))
        config.write_text(shape + ENTITIES, "utf-8")
        self._log = folder / "changelog"
        self._service = Service(config)
        self._figures = {"kills": 0, "commits_held": 0, "truncates": 0, "rewrites": 0}
        self._over = threading.Event()
        self._failures: list[BaseException] = []

    def run(self) -> Figures:
        rng = self._rng
        prepare(self._dsn, ROWS)
        oracle = Oracle(self._dsn, self._folder / "frames", f"oracle_{self._name}")
        scale = Scale(universe=ROWS * 2, big=300, big_every=40, pause_s=0.004, lingering=0.04, linger_s=0.8, held=0.06)
        load = Load(self._dsn, scale, rng.randrange(1 << 32))
        disturbers = [
            threading.Thread(target=self._run_guarded, args=(method,)) for method in (self._hold, self._alter)
        ]
        try:
            load.start()
            for thread in disturbers:
                thread.start()
            self._service.start(self._fail_at())
            since = self._service.slot_made(self._dsn, self._name)
            self._crash()
            self._over.set()
            for thread in disturbers:
                thread.join()
            load.stop()
            end = last_write(self._dsn)
            self._service.until(
                self._log, lambda checkpoint: through_lsn(checkpoint) > end and is_read(checkpoint), CATCH_UP_S
            )
            oracle.wait(end, CATCH_UP_S)
            self._service.stop()
        finally:
            self._over.set()
            oracle.stop()
            self._service.kill()
        if self._failures:
            raise self._failures[0]
        verdict = judge(self._dsn, self._log, oracle.expected(since))
        return {
            **self._figures,
            "reads": verdict.reads,
            "changes": verdict.changes,
            "stale": verdict.stale,
            "lost": verdict.lost,
            "repeated": verdict.repeated,
            "reordered": verdict.reordered,
        }

    def _fail_at(self) -> str | None:
        if self._rng.random() < 0.4:
            return None
        return f"{self._rng.choice(FAIL_POINTS)}:{self._rng.randrange(1, 30)}"

    def _crash(self) -> None:
        """Kills the service two or three times while the tables are read."""
        for _ in range(self._rng.choice((1, 1, 2))):
            self._service.wait(self._rng.random() * DISTURBED_S)
            self._service.kill()
            self._figures["kills"] += 1
            self._service.start(self._fail_at())
        if self._service.wait(self._rng.random() * DISTURBED_S + 0.5):
            self._figures["kills"] += 1
        self._service.kill()
        self._service.start()

    def _run_guarded(self, disturb: object) -> None:
        try:
            disturb()  # type: ignore[operator]
        except BaseException as error:
            self._failures.append(error)
            raise

    def _hold(self) -> None:
        """Pauses the standby again and again. Commits that wait for it are then in the log, but not yet visible."""
        rng = random.Random(self._rng.random())
        while not self._over.wait(rng.random() * 0.5):
            with self._standby.paused():
                self._figures["commits_held"] += 1
                self._over.wait(rng.random())

    def _alter(self) -> None:
        """Rewrites one table and truncates one, each at a random moment."""
        rng = random.Random(self._rng.random())
        chosen = [self._rewrite, self._truncate]
        rng.shuffle(chosen)
        for change in chosen:
            if self._over.wait(rng.random() * DISTURBED_S):
                return
            with contextlib.suppress(*CONFLICTS), psycopg.connect(self._dsn, autocommit=True) as connection:
                connection.execute("SET synchronous_commit = local")
                change(connection)

    def _rewrite(self, connection: psycopg.Connection) -> None:
        connection.execute("ALTER TABLE account ALTER COLUMN quantity TYPE bigint")
        self._figures["rewrites"] += 1

    def _truncate(self, connection: psycopg.Connection) -> None:
        """Truncates a table. The stamp of this transaction names a version that is higher than the versions of all rows
        that the table had.
        """
        table = sql.Identifier(random.Random(self._rng.random()).choice(list(TABLES)))
        with connection.transaction():
            connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(table))
            row = connection.execute("SELECT nextval('versions')").fetchone()
            assert row is not None
            stamp = f'{{"serviceName": "load", "identifier": "floor-{row[0]}"}}'
            connection.execute("SELECT pg_logical_emit_message(true, 'provenance', %s)", [stamp])
            connection.execute(sql.SQL("TRUNCATE {}").format(table))
        self._figures["truncates"] += 1
