"""What hangs, is away or is wrong for a while: connections, standbys, clocks."""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
from psycopg import sql

from tests.campaigns._audit.losses import HIDDEN_S, Losses
from tests.campaigns._audit.site import ANSWER_S, CATCH_UP_S
from tests.proxy import Proxy

PARTED_S = (0.2, 4.0)
HUNG_S = (2 * ANSWER_S + 0.5, 2 * ANSWER_S + 2.5)
MINUTES_S = (70.0, 150.0)
STANDBY = "standby"
JUMPS_S = (-5 * 86_400, -10_800, -70, 0, 70, 10_800, 5 * 86_400)


class Outages(Losses):
    """A site of which parts can be away for a while; the service gets over each of them by itself."""

    def outages(self) -> list[Callable[[], None]]:
        """A deck of them; the one that takes minutes is rarely in it."""
        return [
            *[self._part] * 2,
            *[self._end_server] * 2,
            self._stop_backend,
            self._hang_backend,
            *([self._hang_for_minutes] if self.rng.random() < 0.4 else []),
            self._hold_commits,
            *([self._lack_standby] * 2 if self.failover else []),
            *([self._turn_clock] * 2 if self.clocks else []),
        ]

    def links(self) -> dict[str, Proxy]:
        """The links that can fail, by name."""
        return {"link to the server": self.link}

    def _part(self) -> None:
        """A link stops, hangs, is mute, or is reset."""
        name, link = self.rng.choice(list(self.links().items()))
        how = self.rng.choice((link.stop, link.hang, link.mute, link.reset))
        self.done[f"{name}: {how.__name__}"] += 1
        how()
        self.loaded(self.rng.uniform(*PARTED_S))
        link.resume()

    def _end_server(self) -> None:
        """PostgreSQL stops without a checkpoint, or crashes."""
        if self.rng.random() < 0.5:
            self.done["server stopped"] += 1
            self.server.stop("immediate")
        else:
            self.done["server killed"] += 1
            self.server.kill()
        self.loaded(self.rng.random())
        self.server.start()

    def _stop_backend(self) -> None:
        self._pause_backend("backend stopped", self.rng.uniform(*PARTED_S))

    def _hang_backend(self) -> None:
        """For longer than the service waits: it takes the connection for lost, and goes on by a new one."""
        self._pause_backend("backend hung", self.rng.uniform(*HUNG_S))
        self.advance()

    def _hang_for_minutes(self) -> None:
        """One connection, while the service goes on by new ones; or all of one link."""
        seconds = self.rng.uniform(*MINUTES_S)
        if self.rng.random() < 0.5:
            self._pause_backend("backend hung for minutes", seconds)
        else:
            name, link = self.rng.choice(list(self.links().items()))
            self.done[f"{name}: hung for minutes"] += 1
            link.hang()
            self.loaded(seconds)
            link.resume()
        self.advance()

    def _pause_backend(self, name: str, seconds: float) -> None:
        """One of the service's sessions says nothing for a while, and its kernel still acknowledges."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            pids = connection.execute(
                "SELECT pid FROM pg_stat_activity WHERE application_name = 'changelog'"
            ).fetchall()
        if not pids:
            return
        self.done[name] += 1
        [pid] = self.rng.choice(pids)
        with _stopped(pid):
            self.loaded(seconds)

    def _hold_commits(self) -> None:
        """A synchronous standby is away: commits stand in the log, and nobody sees them yet."""
        self.done["commits held"] += 1
        self._set("synchronous_standby_names", STANDBY)
        self.loaded(self.rng.uniform(*HIDDEN_S))
        self._set("synchronous_standby_names", "")

    def _lack_standby(self) -> None:
        """A standby is away that must have each change first; it comes back, or is no longer asked for."""
        self.done["standby away"] += 1
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute("SELECT pg_create_physical_replication_slot(%s, true)", [STANDBY])
        self._set("synchronized_standby_slots", STANDBY)
        self.loaded(self.rng.uniform(*HUNG_S))
        if self.rng.random() < 0.5:
            self._set("synchronized_standby_slots", "")
            self.advance()
        else:
            with self._standby():
                self.advance()
            self._set("synchronized_standby_slots", "")
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            self._until_inactive(connection)
            connection.execute("SELECT pg_drop_replication_slot(%s)", [STANDBY])

    def _until_inactive(self, connection: psycopg.Connection) -> None:
        deadline = time.monotonic() + CATCH_UP_S
        query = "SELECT FROM pg_replication_slots WHERE slot_name = %s AND active"
        while connection.execute(query, [STANDBY]).fetchone() is not None:
            assert time.monotonic() < deadline, "the server keeps the slot of a standby that has gone"
            time.sleep(0.05)

    @contextmanager
    def _standby(self) -> Iterator[None]:
        """`pg_receivewal` is all of it that is needed here."""
        received = self.folder / "received"
        received.mkdir(exist_ok=True)
        command = [str(self.server.bin_dir / "pg_receivewal"), "-D", str(received), "--synchronous"]
        command += ["-S", STANDBY, "-d", self.server.dsn()]
        with (self.folder / "standby.log").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            yield
        finally:
            process.kill()
            process.wait()
            shutil.rmtree(received)

    def _set(self, name: str, value: str) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(sql.SQL("ALTER SYSTEM SET {} = {}").format(sql.Identifier(name), sql.Literal(value)))
            connection.execute("SELECT pg_reload_conf()")

    def _turn_clock(self) -> None:
        """A clock jumps, and stays so: the service's while it runs, the database's while it is down.

        That one is never ahead of the machine's: libfaketime tells the machine's time now and then where a signal is
        handled, and PostgreSQL's timers would wait for as long as it is ahead.
        """
        name = self.rng.choice(self.clocks)
        jumps_s = [seconds for seconds in JUMPS_S if name == "service" or seconds <= 0]
        self.done[f"clock of the {name} turned"] += 1
        if name == "database":
            self.server.stop("immediate")
        self.turn(name, self.rng.choice(jumps_s))
        if name == "database":
            self.server.start()
        self.advance()
        self.loaded(self.rng.uniform(*HIDDEN_S))


@contextmanager
def _stopped(pid: int) -> Iterator[None]:
    """SIGSTOP, and SIGCONT afterwards, for a process that may end."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
