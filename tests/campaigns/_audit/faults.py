"""Disturbs the service in ways that do not depend on the sink: kills and crashes, but also repairs, new tables and
altered types.
"""

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import psycopg

from changelog.connectors.capture.table_reads import FAIL_POINTS as READING_FAIL_POINTS
from changelog.connectors.servers.postgres import PostgresServer
from tests.campaigns._audit.load import CONFLICTS, alter_types
from tests.campaigns._audit.losses import HIDDEN_S
from tests.campaigns._audit.outages import Outages
from tests.campaigns._audit.site import CATCH_UP_S, NAME, Sink
from tests.campaigns._audit.tables import ENTITIES, HOSTILE, entity_of
from tests.campaigns._service import LOOP_FAIL_POINTS
from tests.proxy import Proxy

ROWS = 250
REACHED_S = 10.0


class Faults(Outages):
    """A service, its tables, and the faults that do not depend on the sink."""

    def __init__(
        self, server: PostgresServer, link: Proxy, folder: Path, seed: int, sink: Sink, small: Sequence[str] = ()
    ) -> None:
        super().__init__(server, link, folder, seed, sink, small)
        self._later = [name for name, entity in ENTITIES.items() if entity.later]

    def faults(self) -> list[Callable[[], None]]:
        """Returns all faults. Those that should occur more often are in the list several times."""
        return [
            *[self.kill] * 2,
            *[self._crash] * 2,
            self._restart,
            *self.outages(),
            *[self._repair] * 4,
            *[self._add_table] * 2,
            self._edit_publication,
            *self.losses(),
            *[self._alter_types] * 2,
        ]

    def kill(self) -> None:
        """Kills the service with SIGKILL, and starts it again."""
        self.done["kill"] += 1
        self.service.kill()
        self.service.start()

    def _crash(self) -> None:
        """Lets the service crash at a fail point: a line of its code that has a name. Kills the service if it does not
        reach that line soon.
        """
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

    def _repair(self) -> None:
        name = self.rng.choice(self.names)
        how = self.rng.choice(("rebuild", "republish --all", "republish --keys"))
        keys = [str(self.rng.randrange(1, ROWS)) for _ in range(20)] if how.endswith("--keys") else []
        if keys and len(entity_of(name).key) > 1:
            keys = [f'["{key}","1"]' for key in keys]
        if keys and name == HOSTILE:
            keys += [f";{number}" for number in range(20)]
        self.repair(name, how, *keys)

    def repair(self, name: str, how: str, *keys: str) -> None:
        """Runs a command that repairs a table or some keys. The changelog needs no repair, so this only publishes rows
        again.
        """
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
                self.let_run(self.rng.random())

    def _edit_publication(self) -> None:
        """Removes a table, or some of its rows, from the publication for a while. The service must notice that changes
        were hidden from it.
        """
        name = self.rng.choice(self.names)
        self.done["publication edited"] += 1
        notices = self._notice_count(name)
        start = self.here()
        self.publish("DROP TABLE {table}", name)
        if self.rng.random() < 0.5:
            self.publish("ADD TABLE {table} WHERE ({key} < '150')", name)
            self._wait_while_hidden()
            self.publish("DROP TABLE {table}", name)
        else:
            self._wait_while_hidden()
        self.publish("ADD TABLE {table}", name)
        since = self.since[name]
        self.since[name] = replace(since, hidden=(*since.hidden, (start, self.here())))
        deadline = time.monotonic() + CATCH_UP_S
        while self._notice_count(name) == notices:
            self._check_end()
            if self.service.exit_code is not None:  # the service may have many tables, and notice only now
                self.service.start()
            time.sleep(0.1)
            assert time.monotonic() < deadline, f"the service did not notice that changes of {name} were hidden"

    def _wait_while_hidden(self) -> None:
        """Lets some time pass in which changes are hidden. If the service stops meanwhile, its error must name the
        publication.
        """
        until = time.monotonic() + self.rng.uniform(*HIDDEN_S)
        while time.monotonic() < until:
            self._check_end()
            time.sleep(0.05)

    def _check_end(self) -> None:
        """Raises AssertionError if the service ended with an error that does not name the publication."""
        if self.service.exit_code is not None:
            assert NAME in self.last_line(), f"the service ended: {self.last_line()}"

    def _notice_count(self, name: str) -> int:
        """How often the service has logged that changes of this entity may be missing."""
        lines = self.service.said().splitlines()
        return sum("changes may be missing from the log" in line and f'"{name}"' in line for line in lines)
