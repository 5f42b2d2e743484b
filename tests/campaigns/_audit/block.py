"""Rounds of faults under one load, and the verdict on the changelog that came of it; for any sink."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import psycopg
from psycopg import sql

from connectors.embedded import Server
from connectors.sources.postgres.reading import FAIL_POINTS as READING_FAIL_POINTS
from envelope.checkpoint import Checkpoint
from tests.campaigns._audit.history import history, tables
from tests.campaigns._audit.judge import Since, judge
from tests.campaigns._audit.load import Load, touch
from tests.campaigns._audit.rows import Row
from tests.campaigns._audit.tables import ENTITIES, MIGRATED, configuration, prepare
from tests.campaigns._pieces import Figures
from tests.campaigns._service import LOOP_FAIL_POINTS, ROOT, Service, is_read
from tests.proxy import Proxy

NAME = "audited"
ROWS = 250
LOADED_S_MAX = 2.0
PARTED_S = (0.2, 4.0)
HIDDEN_S = (0.2, 3.0)
CATCH_UP_S = 180.0
REACHED_S = 10.0
COMMAND_S = 120.0

POSTGRES = {
    "fsync": "off",
    "max_wal_size": "4GB",
    "max_prepared_transactions": "20",
    "track_commit_timestamp": "on",
    "wal_sender_timeout": "3s",
}

CONFIG = """
name = "{name}"
[source]
kind = "postgres"
dsn = "{dsn}"
snapshot_pages = {pages}
[schemas]
on_incompatible = "publish"
[service]
listen = "127.0.0.1:0"
[sink]
{sink}
"""


class Sink(Protocol):
    """Where the changelog is: how it is configured and read."""

    @property
    def section(self) -> str:
        """Its part of the configuration, below `[sink]`."""

    @property
    def fail_points(self) -> Sequence[str]:
        """The places where the service can be made to crash in it."""

    def stored(self) -> Checkpoint | None:
        """The last checkpoint."""

    def rows(self, entities: Sequence[str]) -> Iterator[Row]:
        """All rows, as consumers get them."""


class Block:
    """One database, one changelog, one load; a subclass adds what can go wrong with its sink to `faults`."""

    def __init__(self, server: Server, link: Proxy, folder: Path, seed: int, sink: Sink) -> None:
        self.rng = random.Random(seed)
        self.done: Counter[str] = Counter()
        self.folder, self.link, self.sink = folder, link, sink
        self._server, self._dsn = server, server.dsn()
        self._pages = self.rng.choice((1, 4, 64))
        self._names = [name for name, entity in ENTITIES.items() if not entity.later]
        self._later = [name for name, entity in ENTITIES.items() if entity.later]
        self._since: dict[str, Since] = {}
        self.config = folder / "changelog.toml"
        self._configure()
        self.service = Service(self.config)
        prepare(self._dsn, ROWS)
        self._load = Load(self._dsn, self.rng.randrange(1 << 32))

    def close(self) -> None:
        """Leaves nothing running."""
        self.service.kill()
        self._load.stop()

    def run(self, rounds: int) -> Figures:
        """`rounds` faults, and the verdict."""
        self._load.start()
        self.service.start()
        begun = self.service.slot_made(self._dsn, NAME)
        self._since = {name: Since(nothing=begun) for name in self._names}
        started = time.monotonic()
        for fault in self._dealt(rounds):
            if self.rng.random() < 0.7:
                self.advance()
            self.loaded(self.rng.random() * LOADED_S_MAX)
            fault()
        self._load.stop()
        loaded_s = time.monotonic() - started
        self._catch_up()
        return self._judged(loaded_s)

    def faults(self) -> list[Callable[[], None]]:
        """One deck of them."""
        return [
            *[self._kill] * 2,
            *[self._crash] * 2,
            *[self._restart] * 2,
            *[self._part] * 2,
            *[self._end_server] * 2,
            *[self._stop_backend] * 2,
            *[self._repair] * 4,
            *[self._add_table] * 2,
            self._edit_publication,
        ]

    def _dealt(self, rounds: int) -> list[Callable[[], None]]:
        """As many faults as there are rounds, from a deck that is shuffled again when it is used up."""
        dealt: list[Callable[[], None]] = []
        while len(dealt) < rounds:
            deck = self.faults()
            dealt += self.rng.sample(deck, len(deck))
        return dealt[:rounds]

    def loaded(self, seconds: float) -> None:
        """Lets the service run; by itself it must not end."""
        assert not self.service.wait(seconds), f"the service was killed by nobody: {self.service.said()[-2000:]}"

    def advance(self, service: Service | None = None) -> None:
        """Waits until the service, or another one, stored something more."""
        before = self.sink.stored()
        (service or self.service).until_stored(self.sink.stored, lambda found: found != before, CATCH_UP_S)

    def _kill(self) -> None:
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
            self._server.stop("immediate")
        else:
            self.done["server killed"] += 1
            self._server.kill()
        self.loaded(self.rng.random())
        self._server.start()

    def _stop_backend(self) -> None:
        """One of the service's sessions says nothing for a while, and its kernel still acknowledges."""
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            found = connection.execute(
                "SELECT pid FROM pg_stat_activity WHERE application_name = 'changelog'"
            ).fetchall()
        if not found:
            return
        self.done["backend stopped"] += 1
        [pid] = self.rng.choice(found)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
        self.loaded(self.rng.uniform(*PARTED_S))
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    def _repair(self) -> None:
        """Rows are published again, of a table or of some keys; the changelog is right, so nothing is deleted."""
        name = self.rng.choice(self._names)
        how = self.rng.choice(("rebuild", "republish --all", "republish --keys"))
        self.done[how] += 1
        keys = [str(self.rng.randrange(1, ROWS)) for _ in range(20)] if how.endswith("--keys") else []
        if keys and len(ENTITIES[name].key) > 1:
            keys = [f'["{key}","1"]' for key in keys]
        command, *options = how.split()
        self.command(command, name, "--no-wait", *options, *keys)

    def _add_table(self) -> None:
        """A table that is being written to joins the publication, then the configuration."""
        if not self._later:
            self._kill()
            return
        name = self._later.pop(self.rng.randrange(len(self._later)))
        self.done["table added"] += 1
        nothing = self._log_end()
        self._publish("ADD TABLE {table}", name)
        published = self._log_end()
        self.loaded(self.rng.random() * 0.5)
        self.rng.choice((self.service.stop, self.service.kill))()
        self._since[name] = Since(nothing=nothing, published=published, streaming=self._log_end())
        self._names.append(name)
        self._configure()
        self.service.start()

    def _edit_publication(self) -> None:
        """A table leaves the publication, or only some of its rows are published; the service finds out afterwards."""
        name = self.rng.choice(self._names)
        self.done["publication edited"] += 1
        noticed = self._noticed(name)
        start = self._log_end()
        self._publish("DROP TABLE {table}", name)
        if self.rng.random() < 0.5:
            self._publish(f"ADD TABLE {{table}} WHERE ({ENTITIES[name].key[0]} < '150')", name)
            self._hidden()
            self._publish("DROP TABLE {table}", name)
        else:
            self._hidden()
        self._publish("ADD TABLE {table}", name)
        since = self._since[name]
        self._since[name] = replace(since, hidden=(*since.hidden, (start, self._log_end())))
        if self.service.exit_code is not None:
            self.service.start()
        deadline = time.monotonic() + CATCH_UP_S
        while self._noticed(name) == noticed:
            self.loaded(0.1)
            assert time.monotonic() < deadline, f"nobody noticed that changes of {name} were hidden"

    def _publish(self, edit: str, name: str) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            publication, table = sql.Identifier(NAME), sql.Identifier(name)
            connection.execute(
                sql.SQL(f"ALTER PUBLICATION {{publication}} {edit}").format(publication=publication, table=table)
            )

    def _hidden(self) -> None:
        """Changes are hidden for a while; a service that sees it meanwhile stops."""
        until = time.monotonic() + self.rng.uniform(*HIDDEN_S)
        while time.monotonic() < until:
            if self.service.exit_code is not None:
                last = self.service.said().rstrip().rpartition("\n")[2]
                assert NAME in last, f"the service ended: {last}"
            time.sleep(0.05)

    def _noticed(self, name: str) -> int:
        """How often the service has said that changes of this entity may be missing."""
        lines = self.service.said().splitlines()
        return sum("changes may be missing from the log" in line and f'"{name}"' in line for line in lines)

    def _configure(self) -> None:
        self.config.write_text(self.configuration(self.link.port), "utf-8")

    def configuration(self, port: int) -> str:
        """That of a service which reaches the server by this port."""
        dsn = psycopg.conninfo.make_conninfo(self._dsn, port=port)
        return CONFIG.format(name=NAME, dsn=dsn, pages=self._pages, sink=self.sink.section) + configuration(self._names)

    def _log_end(self) -> int:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            row = connection.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchone()
        assert row is not None
        return int(row[0])

    def command(self, *words: str) -> None:
        """`changelog WORDS`, which must succeed."""
        command = [sys.executable, "-m", "connectors", words[0], "--config", str(self.config), *words[1:]]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=COMMAND_S, check=False, text=True)
        assert done.returncode == 0, f"{words} failed with {done.returncode}: {done.stderr[-2000:]}"

    def _catch_up(self) -> None:
        """Faults have ceased: all that was written is published, and a table is rebuilt."""
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            for table in MIGRATED:
                touch(connection, table, 0)
        end = self._log_end()
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute("INSERT INTO seat VALUES ('last', 'write')")
        self.service.until_stored(
            self.sink.stored,
            lambda found: found.through_lsn > end and is_read(found) and not found.repairs.get("open"),
            CATCH_UP_S,
        )
        self.command("rebuild", self.rng.choice(self._names))
        self.service.stop()

    def _judged(self, loaded_s: float) -> Figures:
        verdict = judge(self.sink.rows(self._names), history(self._dsn), self._since, tables(self._dsn))
        counts = self._load.counts
        verdict.check()
        return {
            "faults": dict(sorted(self.done.items())),
            "changes": verdict.changes,
            "reads": verdict.reads,
            "transactions": verdict.transactions,
            "prepared": counts.prepared,
            "altered": counts.altered,
            "unknown": verdict.unknown,
            "load_s": round(loaded_s),
            "changes_per_s": [round(verdict.changes / loaded_s)],
            "lost": verdict.lost,
            "repeated": verdict.repeated,
            "reordered": verdict.reordered,
        }
