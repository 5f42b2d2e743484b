"""Debezium reads the same databases as our own readers, and both must publish the same changes.

A round is a new database on PostgreSQL, MySQL or MariaDB, in turn, with tables of random types, and several thousand
random changes: multi-row statements, changes of keys, overlapping and rolled-back transactions, savepoints, TRUNCATE,
and definitions that change in between. Our service reads it, and an embedded Debezium, whose events our source for
Debezium translates. Both must have the same rows in the same order, with the same transactions, states and values,
except for the differences in `_debezium.listed`, which are counted.
"""

import contextlib
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from changelog.connectors.sinks.files.log import read_checkpoint, read_log
from changelog.envelope.entity import Entity
from changelog.envelope.model import Stamp
from tests.campaigns._debezium.compare import Comparison, Row, rows_of
from tests.campaigns._debezium.databases import DONE, Database, Opened, random_tables, running
from tests.campaigns._debezium.shim import Shim
from tests.campaigns._debezium.tables import Table
from tests.campaigns._debezium.workload import Workload
from tests.campaigns._pieces import Campaign, Figures, Piece
from tests.campaigns._service import Service, is_read
from tests.servers import engine_jars

DATABASES = ("postgres", "mariadb", "mysql")
CHANGES = 12_000
COLUMNS = 18
ALTERATIONS = 12
ROWS = 90
START_S = 180.0
CATCH_UP_S = 300.0


def campaign(changes: int = CHANGES, databases: tuple[str, ...] = DATABASES) -> Campaign:
    """A round is a new database, and at least `changes` changed rows in it."""

    @contextlib.contextmanager
    def site() -> Iterator[Callable[[Piece], Figures]]:
        with contextlib.ExitStack() as stack:
            servers: dict[str, Database] = {}

            def run_piece(piece: Piece) -> Figures:
                name = databases[piece.first % len(databases)]
                if name not in servers:
                    servers[name] = stack.enter_context(running(name))
                with tempfile.TemporaryDirectory(prefix="changelog-judge-") as folder:
                    return _Round(servers[name], Path(folder), random.Random(piece.seed)).run(changes)

            yield run_piece

    return Campaign(site=site)


class _Round:
    def __init__(self, database: Database, folder: Path, rng: random.Random) -> None:
        self._database, self._folder, self._rng = database, folder, rng
        self._tables = random_tables(rng, database, COLUMNS)
        self._first = {(table.name, name): kind for table in self._tables for name, kind in table.columns.items()}
        self._names = [table.name for table in self._tables]

    def run(self, changes: int) -> Figures:
        with self._database.open([*self._names, DONE]) as opened:
            workload = Workload(self._rng, self._database, self._tables, opened.executes)
            for table in self._tables:
                for statement in self._database.created(self._rng, table):
                    opened.executes[0](statement)
            opened.executes[0](f"CREATE TABLE {DONE} (id INT PRIMARY KEY)")
            workload.fill(ROWS)
            own, other = self._read(opened, workload, changes)
        described = {name: kind.definition for name, kind in self._first.items()}
        described |= {(t.name, name): kind.definition for t in self._tables for name, kind in t.columns.items()}
        comparison = Comparison(self._tables, described, is_later=self._database.name != "postgres")
        verdict = comparison.compare(own, other)
        verdict.check()
        name = self._database.name
        return {
            "rounds_of": {name: 1},
            "changes": verdict.changes,
            "changes_of": {name: verdict.changes},
            "reads": verdict.reads,
            "values": verdict.values,
            "transactions": verdict.transactions,
            "done": dict(workload.counts),
            "listed": {name: dict(verdict.listed)},
            "different": 0,
        }

    def _read(self, opened: Opened, workload: Workload, changes: int) -> tuple[list[Row], list[Row]]:
        config = self._folder / "changelog.toml"
        config.write_text(opened.config([*self._names, DONE]), "utf-8")
        log = self._folder / "log"
        service = Service(config)
        shim = Shim(opened.properties, engine_jars(self._database.jars), self._folder / "debezium", DONE)
        with contextlib.ExitStack() as ends:
            ends.callback(service.kill)
            ends.callback(shim.close)
            service.start()
            shim.thread.start()
            rows = len(self._tables) * (ROWS // 3 + 1) * 3
            self._until(lambda: shim.reads >= rows and is_read(read_checkpoint(log)), shim, service, START_S)
            workload.run(changes, ALTERATIONS)
            opened.executes[0](f"INSERT INTO {DONE} VALUES (1)")
            self._until(lambda: not shim.thread.is_alive(), shim, service, CATCH_UP_S)
            self._until(lambda: any(read_log(log, entity=DONE)), shim, service, CATCH_UP_S)
            service.stop()
        entities = [self._entity(opened, table) for table in self._tables]
        return (
            list(rows_of(read_log(log), self._names)),
            list(rows_of(shim.rows(opened.name, entities), self._names)),
        )

    def _until(self, reached: Callable[[], bool], shim: Shim, service: Service, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            is_reached = reached()
            shim.check()
            service.check()
            if is_reached:
                return
            assert time.monotonic() < deadline, f"not read in time: {service.said()[-2000:]}"
            time.sleep(0.2)

    def _entity(self, opened: Opened, table: Table) -> Entity:
        key = tuple(column.name for column in table.key)
        return Entity(
            name=table.name,
            table=(opened.home, table.name),
            key=key,
            partition_by=key,
            partitions=1,
            masks={},
            on_truncate="publish",
            default_stamp=Stamp(api_version="", service_name="unknown", identifier=""),
        )
