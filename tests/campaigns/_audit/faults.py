"""What goes wrong in a block, whatever its sink is."""

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import psycopg

from changelog.connectors.servers.postgres import Server
from changelog.connectors.sources.postgres.snapshot.table_reads import FAIL_POINTS as READING_FAIL_POINTS
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
    """A site on which one fault after the other can be made."""

    def __init__(
        self, server: Server, link: Proxy, folder: Path, seed: int, sink: Sink, small: Sequence[str] = ()
    ) -> None:
        super().__init__(server, link, folder, seed, sink, small)
        self._later = [name for name, entity in ENTITIES.items() if entity.later]

    def faults(self) -> list[Callable[[], None]]:
        """One deck of them."""
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
        start = self.here()
        self.publish("DROP TABLE {table}", name)
        if self.rng.random() < 0.5:
            self.publish("ADD TABLE {table} WHERE ({key} < '150')", name)
            self._hidden()
            self.publish("DROP TABLE {table}", name)
        else:
            self._hidden()
        self.publish("ADD TABLE {table}", name)
        since = self.since[name]
        self.since[name] = replace(since, hidden=(*since.hidden, (start, self.here())))
        deadline = time.monotonic() + CATCH_UP_S
        while self._noticed(name) == noticed:
            self._refuse_other_end()
            if self.service.exit_code is not None:  # over many tables, what it saw meanwhile may end it only now
                self.service.start()
            time.sleep(0.1)
            assert time.monotonic() < deadline, f"nobody noticed that changes of {name} were hidden"

    def _hidden(self) -> None:
        """Changes are hidden for a while; a service that sees it meanwhile stops."""
        until = time.monotonic() + self.rng.uniform(*HIDDEN_S)
        while time.monotonic() < until:
            self._refuse_other_end()
            time.sleep(0.05)

    def _refuse_other_end(self) -> None:
        """Asserts that a service that ended did so because of the publication."""
        if self.service.exit_code is not None:
            assert NAME in self.last_line(), f"the service ended: {self.last_line()}"

    def _noticed(self, name: str) -> int:
        """How often the service has said that changes of this entity may be missing."""
        lines = self.service.said().splitlines()
        return sum("changes may be missing from the log" in line and f'"{name}"' in line for line in lines)
