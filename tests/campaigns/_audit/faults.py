"""What goes wrong in a block, whatever its sink is."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import psycopg
from psycopg import sql

from connectors.servers.postgres import Server
from connectors.sources.postgres.crossing import FAIL_POINTS as GAP_FAIL_POINTS
from connectors.sources.postgres.snapshot.table_reads import FAIL_POINTS as READING_FAIL_POINTS
from tests.campaigns._audit.load import CONFLICTS, alter_types
from tests.campaigns._audit.site import ANSWER_S, CATCH_UP_S, NAME, Sink, Site
from tests.campaigns._audit.tables import ENTITIES
from tests.campaigns._service import LOOP_FAIL_POINTS
from tests.proxy import Proxy

ROWS = 250
PARTED_S = (0.2, 4.0)
HUNG_S = (2 * ANSWER_S + 0.5, 2 * ANSWER_S + 2.5)
HIDDEN_S = (0.2, 3.0)
REACHED_S = 10.0


@dataclass(frozen=True, slots=True)
class Crossed:
    """What a gap may hide at most: where the changelog ended before it, and the server's log after it, in bytes.

    A crash when the new slot was made leaves one that stands past the changelog's end, as if the changelog lacked rows.
    """

    through: int
    end: int
    moved: bool


class Faults(Site):
    """A site on which one fault after the other can be made."""

    def __init__(self, server: Server, link: Proxy, folder: Path, seed: int, sink: Sink) -> None:
        super().__init__(server, link, folder, seed, sink)
        self.crossed: list[Crossed] = []
        self._later = [name for name, entity in ENTITIES.items() if entity.later]

    def faults(self) -> list[Callable[[], None]]:
        """One deck of them."""
        return [
            *[self.kill] * 2,
            *[self._crash] * 2,
            *[self._restart] * 2,
            *[self._part] * 2,
            *[self._end_server] * 2,
            self._stop_backend,
            self._hang_backend,
            *[self._repair] * 4,
            *[self._add_table] * 2,
            self._edit_publication,
            self._lose_log,
            *[self._alter_types] * 2,
        ]

    def kill(self) -> None:
        """SIGKILL, and another start."""
        self.done["kill"] += 1
        self.service.kill()
        self.service.start()

    def _crash(self) -> None:
        """kill -9 at a place between two steps, if the service gets there soon."""
        point = self.rng.choice((*LOOP_FAIL_POINTS, *READING_FAIL_POINTS, *self.sink.fail_points))
        self.service.kill()
        self.service.start(f"{point}:{self.rng.randrange(1, 12)}")
        self.done["crash" if self.service.wait(self.rng.random() * REACHED_S) else "kill"] += 1
        self.service.kill()
        self.service.start()

    def _restart(self) -> None:
        self.done["restart"] += 1
        self.service.stop()
        self.service.start()

    def _part(self) -> None:
        self.part("link to the server", self.link)

    def part(self, name: str, link: Proxy) -> None:
        """A link stops, hangs, is mute, or is reset."""
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

    def _repair(self) -> None:
        name = self.rng.choice(self.names)
        how = self.rng.choice(("rebuild", "republish --all", "republish --keys"))
        keys = [str(self.rng.randrange(1, ROWS)) for _ in range(20)] if how.endswith("--keys") else []
        if keys and len(ENTITIES[name].key) > 1:
            keys = [f'["{key}","1"]' for key in keys]
        self.repair(name, how, *keys)

    def repair(self, name: str, how: str, *keys: str) -> None:
        """Rows are published again, of a table or of some keys; the changelog is right, so nothing is deleted."""
        self.done[how] += 1
        command, *options = how.split()
        self.command(command, name, "--no-wait", *options, *keys)

    def _add_table(self) -> None:
        if self._later:
            self.add_table(self._later.pop(self.rng.randrange(len(self._later))))
        else:
            self.kill()

    def _alter_types(self) -> None:
        self.done["types altered"] += 1
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for _ in range(self.rng.randrange(1, 4)):
                with contextlib.suppress(*CONFLICTS):
                    alter_types(connection, self.rng)
                self.loaded(self.rng.random())

    def _edit_publication(self) -> None:
        """A table leaves the publication, or only some of its rows are published; the service finds out afterwards."""
        name = self.rng.choice(self.names)
        self.done["publication edited"] += 1
        noticed = self._noticed(name)
        start = self.log_end()
        self.publish("DROP TABLE {table}", name)
        if self.rng.random() < 0.5:
            self.publish(f"ADD TABLE {{table}} WHERE ({ENTITIES[name].key[0]} < '150')", name)
            self._hidden()
            self.publish("DROP TABLE {table}", name)
        else:
            self._hidden()
        self.publish("ADD TABLE {table}", name)
        since = self.since[name]
        self.since[name] = replace(since, hidden=(*since.hidden, (start, self.log_end())))
        if self.service.exit_code is not None:
            self.service.start()
        deadline = time.monotonic() + CATCH_UP_S
        while self._noticed(name) == noticed:
            self.loaded(0.1)
            assert time.monotonic() < deadline, f"nobody noticed that changes of {name} were hidden"

    def _hidden(self) -> None:
        """Changes are hidden for a while; a service that sees it meanwhile stops."""
        until = time.monotonic() + self.rng.uniform(*HIDDEN_S)
        while time.monotonic() < until:
            if self.service.exit_code is not None:
                assert NAME in self._last_line(), f"the service ended: {self._last_line()}"
            time.sleep(0.05)

    def _noticed(self, name: str) -> int:
        """How often the service has said that changes of this entity may be missing."""
        lines = self.service.said().splitlines()
        return sum("changes may be missing from the log" in line and f'"{name}"' in line for line in lines)

    def _lose_log(self) -> None:
        """The slot or the publication is dropped: the service names the way over the gap, and goes it."""
        lose = self.rng.choice((self._drop_slot, self._drop_publication))
        lose()
        self.service.ended(CATCH_UP_S)
        assert "`changelog run --over-gap`" in self._last_line(), f"the service ended: {self._last_line()}"
        time.sleep(self.rng.uniform(*HIDDEN_S))
        before = self.sink.stored()
        assert before is not None
        point = self.rng.choice((None, *GAP_FAIL_POINTS))
        with self.unmigrated():
            self._go_over_gap(point, before.epoch)
        self.crossed.append(Crossed(before.through_lsn, self.log_end(), moved=point == "gap:slot-made"))

    def _go_over_gap(self, point: str | None, epoch: int) -> None:
        """With a crash at that point."""
        if point is not None:
            self._start_over_gap(point)
            assert self.service.wait(CATCH_UP_S), f"{point} was not reached: {self.service.said()[-2000:]}"
        if point == GAP_FAIL_POINTS[-1]:
            self.service.start()
        else:
            self._start_over_gap(None)
            self.service.until_stored(self.sink.stored, lambda stored: stored.epoch > epoch, CATCH_UP_S)

    @contextmanager
    def unmigrated(self) -> Iterator[None]:
        """No table is altered or truncated meanwhile: PostgreSQL does not track what is committed while it begins to
        make a slot, and decodes a table that was altered then as it was before, or fails to find its file.
        """
        with psycopg.connect(self.dsn) as connection:  # it writes nothing, so the slot does not wait for it
            connection.execute(f"LOCK TABLE {', '.join(self.names)} IN ACCESS SHARE MODE".encode())
            yield

    def _drop_slot(self) -> None:
        self.done["slot dropped"] += 1
        self.end_service()
        self.until_gone()
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute("SELECT pg_drop_replication_slot(%s)", [NAME])
        self.service.start()

    def _drop_publication(self) -> None:
        """Under a running service, or while it is away."""
        self.done["publication dropped"] += 1
        away = self.rng.random() < 0.5
        if away:
            self.end_service()
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(sql.SQL("DROP PUBLICATION {}").format(sql.Identifier(NAME)))
        if away:
            self.until_gone()
            self.service.start()

    def _start_over_gap(self, fail_at: str | None) -> None:
        self.until_gone()
        self.service.start(fail_at, "--over-gap", "--yes")

    def _last_line(self) -> str:
        return self.service.said().rstrip().rpartition("\n")[2]


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
