"""Makes faults that pass: connections hang or are lost, standbys are away, and clocks are wrong."""

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
    """A service whose server, links and clocks can fail for a while. The service must recover by itself each time."""

    def outages(self) -> list[Callable[[], None]]:
        """Returns the faults of this module. The one that takes minutes is in only some of the lists, at random."""
        return [
            *[self._fail_link] * 2,
            *[self._end_server] * 2,
            self._stop_backend,
            self._hang_backend,
            *([self._hang_for_minutes] if self.rng.random() < 0.4 else []),
            self._hold_commits,
            *([self._lack_standby] * 2 if self.failover else []),
            *([self._turn_clock] * 2 if self.clocks else []),
        ]

    def links(self) -> dict[str, Proxy]:
        """The links (proxies between the service and what it connects to) that can fail, by name."""
        return {"link to the server": self.link}

    def _fail_link(self) -> None:
        """Disturbs a link for a while: stops it, lets it hang, mutes it (holds the answers back) or resets it."""
        name, link = self.rng.choice(list(self.links().items()))
        how = self.rng.choice((link.stop, link.hang, link.mute, link.reset))
        self.done[f"{name}: {how.__name__}"] += 1
        how()
        self.let_run(self.rng.uniform(*PARTED_S))
        link.resume()

    def _end_server(self) -> None:
        """Stops PostgreSQL without a checkpoint, or kills it, and starts it again."""
        if self.rng.random() < 0.5:
            self.done["server stopped"] += 1
            self.server.stop("immediate")
        else:
            self.done["server killed"] += 1
            self.server.kill()
        self.let_run(self.rng.random())
        self.server.start()

    def _stop_backend(self) -> None:
        self._pause_backend("backend stopped", self.rng.uniform(*PARTED_S))

    def _hang_backend(self) -> None:
        """Stops a backend for longer than the service waits for an answer. The service must open a new connection."""
        self._pause_backend("backend hung", self.rng.uniform(*HUNG_S))
        self.advance()

    def _hang_for_minutes(self) -> None:
        """Lets one connection hang for minutes, or all connections of a link. The service must open new ones."""
        seconds = self.rng.uniform(*MINUTES_S)
        if self.rng.random() < 0.5:
            self._pause_backend("backend hung for minutes", seconds)
        else:
            name, link = self.rng.choice(list(self.links().items()))
            self.done[f"{name}: hung for minutes"] += 1
            link.hang()
            self.let_run(seconds)
            link.resume()
        self.advance()

    def _pause_backend(self, name: str, seconds: float) -> None:
        """Picks one session of the service, and stops the server's process for this session for `seconds`. The kernel
        still acknowledges the packets of this session.
        """
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            pids = connection.execute(
                "SELECT pid FROM pg_stat_activity WHERE application_name = 'changelog'"
            ).fetchall()
        if not pids:
            return
        self.done[name] += 1
        [pid] = self.rng.choice(pids)
        with _stopped_process(pid):
            self.let_run(seconds)

    def _hold_commits(self) -> None:
        """Makes commits wait for a synchronous standby that does not run. Meanwhile, these transactions are in the log,
        but not visible.
        """
        self.done["commits held"] += 1
        self._set("synchronous_standby_names", STANDBY)
        self.let_run(self.rng.uniform(*HIDDEN_S))
        self._set("synchronous_standby_names", "")

    def _lack_standby(self) -> None:
        """Makes the replication stream of the service wait for a standby that is away. Then starts the standby, or
        tells the server to wait for it no longer.
        """
        self.done["standby away"] += 1
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute("SELECT pg_create_physical_replication_slot(%s, true)", [STANDBY])
        self._set("synchronized_standby_slots", STANDBY)
        self.let_run(self.rng.uniform(*HUNG_S))
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
            assert time.monotonic() < deadline, "the slot of a standby that has ended is still active"
            time.sleep(0.05)

    @contextmanager
    def _standby(self) -> Iterator[None]:
        """Runs `pg_receivewal` as the standby. This suffices, because here a standby only has to receive the log."""
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
        """Makes the service's clock wrong while the service runs, or the database's clock while the database is down.

        The clock stays wrong afterwards. The database's clock is never ahead of the machine's clock. If it were,
        PostgreSQL's timers could wait for the whole difference, because libfaketime sometimes returns the machine's
        time in signal handlers.
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
        self.let_run(self.rng.uniform(*HIDDEN_S))


@contextmanager
def _stopped_process(pid: int) -> Iterator[None]:
    """Stops a process with SIGSTOP until the `with` block ends. Does nothing if the process has ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
