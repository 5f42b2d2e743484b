"""Kills the service and PostgreSQL, and lets single sessions of the service hang, while threads write at full speed.

The service is killed at random moments and at fail points (lines of code with names). At the end, the changelog is
compared with what a second reader of the server's log has read. No change may be lost, repeated or reordered, and the
provenance (who made a change) must be the same. In the changelog, each original must be the previous state of its row,
and the column `version` of a row must never go back. Finally, the last states in the changelog are compared with the
tables, value by value.
"""

import random
import tempfile
import time
from contextlib import closing, nullcontext
from pathlib import Path

from changelog.connectors.servers.postgres import PostgresServer, temporary_server
from changelog.connectors.sources.postgres.values.lsn import through_lsn
from tests.campaigns._hang import HANG_S, TIMEOUTS, hanging
from tests.campaigns._judge import judge
from tests.campaigns._load import ENTITIES, Load, Scale, last_write, prepare
from tests.campaigns._oracle import Oracle
from tests.campaigns._pieces import Campaign, Figures, Piece
from tests.campaigns._service import FAIL_POINTS, Service, is_read

SETTINGS = {"fsync": "off", "max_wal_size": "4GB", "shared_buffers": "256MB"}
SCALE = Scale(universe=60_000, big=6_000, big_every=200)
CATCH_UP_S = 300.0

NAME = "soak"
CONFIG = """
name = "{name}"
[source]
kind = "postgres"
dsn = "{dsn}"
{timeouts}
[sink]
path = "changelog"
commit_rows = 2000
commit_seconds = 0.5
[service]
listen = "127.0.0.1:0"
"""


def campaign(seconds: float = 15.0) -> Campaign:
    """A round lets the service run for a random time (about `seconds` on average), and then kills it, unless it has
    already crashed at a fail point.

    Ten rounds share one server and the threads that write to it.
    """

    def run_piece(piece: Piece) -> Figures:
        with (
            tempfile.TemporaryDirectory(prefix="changelog-soak-") as folder,
            temporary_server(settings=SETTINGS) as server,
        ):
            return _Soak(server, Path(folder), piece.seed).run(piece.rounds, seconds)

    return Campaign(site=lambda: nullcontext(run_piece), rounds=10)


class _Soak:
    def __init__(self, server: PostgresServer, folder: Path, seed: int) -> None:
        self._server, self._folder, self._rng = server, folder, random.Random(seed)
        self._dsn = server.dsn()
        config = folder / "changelog.toml"
        config.write_text(CONFIG.format(name=NAME, dsn=self._dsn, timeouts=TIMEOUTS) + ENTITIES, "utf-8")
        self._log = folder / "changelog"
        self._service = Service(config)
        self._load = Load(self._dsn, SCALE, seed)
        self._server_restarts = 0
        self._kills: dict[str, int] = {}
        self._hangs: dict[str, int] = {}
        self._fail_at = ""

    def run(self, rounds: int, seconds: float) -> Figures:
        prepare(self._dsn, SCALE.universe // 2)
        oracle = Oracle(self._dsn, self._folder / "frames")
        with closing(_Stopping(oracle, self._service)):
            self._service.start()
            since = self._service.slot_made(self._dsn, NAME)
            started = time.monotonic()
            self._load.start()
            for _ in range(rounds):
                self._round(seconds)
            self._load.stop()
            loaded_s = time.monotonic() - started
            end = last_write(self._dsn)
            caught_up_s = self._catch_up(end)
            oracle.wait(end, CATCH_UP_S)
        verdict = judge(self._dsn, self._log, oracle.expected(since))
        return {
            "kills": sum(self._kills.values()),
            "at": self._kills,
            "hangs": self._hangs,
            "server_restarts": self._server_restarts,
            "starts": self._service.starts,
            "changes": verdict.changes,
            "reads": verdict.reads,
            "transactions": verdict.transactions,
            "load_s": round(loaded_s),
            "changes_per_s": [round(verdict.changes / loaded_s)],
            "caught_up_s": [round(caught_up_s, 1)],
            "lost": verdict.lost,
            "repeated": verdict.repeated,
            "reordered": verdict.reordered,
        }

    def _round(self, seconds: float) -> None:
        """Lets the service run for a while, kills it, and starts it again. Half of the time, starts it so that it will
        crash at a fail point.

        Before the kill, sometimes lets a session of the service hang, and sometimes kills PostgreSQL and starts it
        again.
        """
        rng = self._rng
        if rng.random() < 0.4:
            self._hang()
        if rng.random() < 0.2:
            self._service.wait(rng.random() * seconds / 2)
            self._server.kill()
            self._server.start()
            self._server_restarts += 1
        crashed = self._service.wait(rng.random() * seconds * 1.8)
        self._service.kill()
        self._count("random" if not crashed else self._fail_at)
        self._fail_at = rng.choice(FAIL_POINTS) if rng.random() < 0.5 else ""
        count = rng.randrange(1, 100) if self._fail_at == "loop:read" else rng.randrange(1, 12)
        self._service.start(f"{self._fail_at}:{count}" if self._fail_at else None)

    def _hang(self) -> None:
        with hanging(self._dsn, NAME, self._rng) as kind:
            if kind is not None:
                self._hangs[kind] = self._hangs.get(kind, 0) + 1
                self._service.wait(self._rng.uniform(*HANG_S))

    def _count(self, point: str) -> None:
        self._kills[point] = self._kills.get(point, 0) + 1

    def _catch_up(self, end: int) -> float:
        started = time.monotonic()
        self._service.kill()
        self._service.start()
        self._service.until(
            self._log, lambda checkpoint: through_lsn(checkpoint) > end and is_read(checkpoint), CATCH_UP_S
        )
        self._service.stop()
        return time.monotonic() - started


class _Stopping:
    """Stops the second reader of the log, and the service, when it is closed."""

    def __init__(self, oracle: Oracle, service: Service) -> None:
        self._oracle, self._service = oracle, service

    def close(self) -> None:
        self._oracle.stop()
        self._service.kill()
