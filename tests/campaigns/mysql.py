"""Makes the service, a MySQL server and the link between them fail, and promotes a replica, while threads write.

The service also reads tables again all the time, because a table was altered, or because a signal asks for it. A signal
is a row that is inserted into a separate table. In the database, triggers give each change of a key the next number.
The changelog must have exactly the changes with these numbers, in this order (see `_mysql.judge`).
"""

import contextlib
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from pymysql.cursors import DictCursor

from changelog.connectors.capture.table_reads import FAIL_POINTS as READING_FAIL_POINTS
from changelog.envelope.checkpoint import Checkpoint
from tests.campaigns._mysql.disturb import Disturber
from tests.campaigns._mysql.judge import Start, judge
from tests.campaigns._mysql.load import Load
from tests.campaigns._mysql.servers import Servers, running_servers, split_gtids
from tests.campaigns._mysql.tables import entities, prepare
from tests.campaigns._pieces import Campaign, Figures, Piece
from tests.campaigns._service import FAIL_POINTS, Service, is_read

ROUNDS = 20
ROWS = 2_000
START_S = 60.0
CATCH_UP_S = 1200.0
"""How long the service may take to catch up at the end. Dozens of signals may wait then. After each signal, the service
opens its source again, and on a busy machine this takes seconds.
"""
OUTAGE_S = 4.0
HELD_XA = 12
"""How many XA transactions are prepared just before a fault, so that they are still prepared after it."""

CONFIG = """
name = "soak"
[source]
kind = "mysql"
dsn = "mysql://root@{address}/{database}"
snapshot_rows = {rows}
snapshot_workers = {workers}
query_timeout_seconds = 2
read_timeout_seconds = 3
[sink]
path = "log"
commit_rows = 300
commit_seconds = 0.1
[service]
listen = "127.0.0.1:0"
[schemas]
on_incompatible = "publish"
"""


def campaign(seconds: float = 2.5, version: str = "mysql") -> Campaign:
    """Each round lets the service run, usually for less than `seconds`, and then makes one fault. Twenty rounds share
    the servers, the tables, and the threads that write to them.
    """

    def run_piece(piece: Piece) -> Figures:
        rng = random.Random(piece.seed)
        database = f"soak{piece.first}"
        with (
            tempfile.TemporaryDirectory(prefix=f"changelog-{version}-soak-") as folder,
            running_servers(version, database, rng) as servers,
        ):
            return _Soak(servers, Path(folder), rng).run(piece.rounds, seconds)

    return Campaign(site=lambda: nullcontext(run_piece), rounds=ROUNDS)


class _Soak:
    def __init__(self, servers: Servers, folder: Path, rng: random.Random) -> None:
        self._servers, self._rng, self._log = servers, rng, folder / "log"
        config = folder / "changelog.toml"
        head = CONFIG.format(
            address=servers.proxy.address,
            database=servers.database,
            rows=rng.choice((20, 60, 200)),
            workers=rng.choice((1, 2, 4)),
        )
        config.write_text(head + entities(servers.database), "utf-8")
        self._service = Service(config)
        self._load, self._disturber = Load(servers, rng.getrandbits(32)), Disturber(servers, rng.getrandbits(32))
        self._faults: Counter[str] = Counter()
        self._fail_at = ""

    def run(self, rounds: int, seconds: float) -> Figures:
        with self._servers.session() as cursor:
            prepare(cursor, self._rng, ROWS)
            start = Start.of(cursor)
        with contextlib.ExitStack() as ends:
            for end in (self._service.kill, self._disturber.end, self._load.end):
                ends.callback(end)
            self._service.start()
            self._service.until(self._log, lambda _: True, START_S)
            self._load.start()
            self._disturber.start()
            for _ in range(rounds):
                self._round(seconds)
            self._disturber.stop()
            self._load.stop()
            caught_up_s = self._catch_up()
        with self._servers.connect() as connection, connection.cursor(DictCursor) as cursor:
            verdict = judge(cursor, self._log, start, self._servers.xa.rolled_back)
        return {
            "faults": dict(self._faults),
            "done": dict(self._load.counts + self._disturber.counts),
            "xa": dict(self._servers.xa.counts),
            "starts": self._service.starts,
            "changes": verdict.changes,
            "reads": verdict.reads,
            "transactions": verdict.transactions,
            "truncates": verdict.truncates,
            "caught_up_s": [round(caught_up_s, 1)],
            "lost": verdict.lost,
            "repeated": verdict.repeated,
            "reordered": verdict.reordered,
            "stale": verdict.stale,
            "wrong": verdict.wrong,
        }

    def _round(self, seconds: float) -> None:
        """Lets the service run for a while, and makes one fault. A service that is to crash at a fail point gets more
        time, because it must reach this point.
        """
        crashed = self._service.wait(seconds * (5 if self._fail_at else self._rng.random()))
        if crashed:
            self._faults[self._fail_at] += 1
            self._load.hold(self._rng, HELD_XA)
            self._restart()
            return
        faults: dict[Callable[[], None], int] = {
            self._kill: 50,
            self._crash_server: 15,
            self._cut: 10,
            self._hang: 15,
            self._promote: 20 if self._servers.has_replica else 0,
        }
        self._load.hold(self._rng, HELD_XA)
        self._rng.choices(tuple(faults), tuple(faults.values()))[0]()

    def _kill(self) -> None:
        self._service.kill()
        self._faults["kill"] += 1
        self._restart()

    def _restart(self) -> None:
        """Starts the service again. Half of the time, starts it so that it will crash at a fail point (a line of code
        with a name).
        """
        self._fail_at = self._rng.choice((*FAIL_POINTS, *READING_FAIL_POINTS)) if self._rng.random() < 0.5 else ""
        count = self._rng.randrange(1, 60) if self._fail_at == "loop:read" else self._rng.randrange(1, 6)
        self._service.start(f"{self._fail_at}:{count}" if self._fail_at else None)
        self._servers.xa.restart()

    def _crash_server(self) -> None:
        self._servers.crash()
        self._faults["server"] += 1

    def _promote(self) -> None:
        self._servers.promote()
        self._faults["promotion"] += 1

    def _cut(self) -> None:
        """Breaks the connections between service and server. Half of the time, new ones are refused for a while."""
        if self._rng.random() < 0.5:
            self._servers.proxy.reset()
        else:
            self._servers.proxy.stop()
            self._outage()
        self._faults["cut"] += 1

    def _hang(self) -> None:
        """For a while, lets no data pass, or only data from the service to the server."""
        self._rng.choice((self._servers.proxy.hang, self._servers.proxy.mute))()
        self._outage()
        self._faults["hang"] += 1

    def _outage(self) -> None:
        time.sleep(self._rng.random() * OUTAGE_S)
        self._servers.proxy.resume()

    def _catch_up(self) -> float:
        started = time.monotonic()
        self._service.kill()
        self._service.start()
        gtids = self._servers.gtids()
        self._service.until(self._log, partial(_has_all, gtids), CATCH_UP_S)
        self._service.stop()
        return time.monotonic() - started


def _has_all(gtids: set[str], checkpoint: Checkpoint) -> bool:
    """Whether the checkpoint includes exactly the transactions with these GTIDs, and no table is being read."""
    is_idle = is_read(checkpoint) and not checkpoint.repairs.get("open")
    return is_idle and split_gtids(checkpoint.source["gtids"]) == gtids
