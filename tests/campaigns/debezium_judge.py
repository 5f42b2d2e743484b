"""Publishes the same databases through our own sources and through Debezium, and compares the two changelogs.

Each round uses a new database on PostgreSQL, MySQL or MariaDB, in turn. The database has tables with columns of random
types, and several thousand of its rows are changed at random. Some statements change many rows, change keys, truncate a
table or alter it. There are savepoints, transactions overlap, and some are rolled back.

Two services read the database: one with our own source, and one that runs Debezium and publishes its events. Both must
publish the same rows in the same order, with the same transactions, states and values. Differences that are known are
only counted: `_debezium.listed` has a rule for each of them.
"""

import contextlib
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from changelog.connectors.servers.kafka import Broker, temporary_broker
from changelog.connectors.servers.unprivileged import give_away, temporary_folder
from changelog.connectors.sinks.files.log import counts, read_log
from tests.campaigns._debezium.compare import Comparison, Row, rows_of
from tests.campaigns._debezium.databases import DONE, Database, Opened, random_tables, running
from tests.campaigns._debezium.faults import Faults
from tests.campaigns._debezium.workload import SESSIONS, Workload
from tests.campaigns._pieces import Campaign, Figures, Piece
from tests.campaigns._service import Service
from tests.servers import engine_jars, fetched, kafka_lib
from tests.servers.connect import temporary_connect

DATABASES = ("postgres", "mariadb", "mysql")
CHANGES = 12_000
COLUMNS = 18
ALTERATIONS = 12
ROWS = 90
CONNECT_JARS = {"postgres": "debezium", "mysql": "debezium-mysql", "mariadb": "debezium-mariadb"}
START_S = 180.0
CATCH_UP_S = 300.0


def campaign(
    changes: int = CHANGES, databases: tuple[str, ...] = DATABASES, kills: int = 0, *, topics: bool = False
) -> Campaign:
    """Each round uses a new database, in which about `changes` rows are changed. Each round also makes `kills` faults
    in the service that runs Debezium.

    With `topics`, Debezium runs in Kafka Connect instead, and the service reads the topics to which it writes.
    """

    @contextlib.contextmanager
    def site() -> Iterator[Callable[[Piece], Figures]]:
        with contextlib.ExitStack() as stack:
            servers: dict[str, Database] = {}
            broker = stack.enter_context(temporary_broker(kafka_lib())) if topics else None

            def run_piece(piece: Piece) -> Figures:
                name = databases[piece.first % len(databases)]
                if name not in servers:
                    servers[name] = stack.enter_context(running(name))
                with tempfile.TemporaryDirectory(prefix="changelog-judge-") as folder:
                    of_round = _Round(servers[name], Path(folder), random.Random(piece.seed), broker)
                    return of_round.run(changes, kills)

            yield run_piece

    return Campaign(site=site)


class _Round:
    def __init__(self, database: Database, folder: Path, rng: random.Random, broker: Broker | None) -> None:
        self._database, self._folder, self._rng, self._broker = database, folder, rng, broker
        self._tables = random_tables(rng, database, COLUMNS)
        self._first = {(table.name, name): kind for table in self._tables for name, kind in table.columns.items()}
        self._names = [table.name for table in self._tables]

    def run(self, changes: int, kills: int) -> Figures:
        with self._database.open() as opened:
            workload = Workload(self._rng, self._database, self._tables, opened.executes)
            for table in self._tables:
                for statement in self._database.created(self._rng, table):
                    opened.executes[0](statement)
            opened.executes[0](f"CREATE TABLE {DONE} (id INT PRIMARY KEY)")
            for statement in self._database.last([*self._names, DONE]):
                opened.executes[0](statement)
            workload.fill(ROWS)
            own, other, faults = self._read(opened, workload, changes, kills)
        described = {name: kind.definition for name, kind in self._first.items()}
        described |= {(t.name, name): kind.definition for t in self._tables for name, kind in t.columns.items()}
        comparison = Comparison(
            self._tables,
            described,
            is_later=self._database.name != "postgres",
            in_parts=self._broker is not None,
        )
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
            **({"kills": dict(faults)} if kills else {}),
        }

    def _read(
        self, opened: Opened, workload: Workload, changes: int, kills: int
    ) -> tuple[list[Row], list[Row], Mapping[str, int]]:
        """Lets both services read the database while sessions write to it. Returns the rows of our own source, the rows
        from Debezium, and how many faults of each kind were made.
        """
        keys = {table.name: [column.name for column in table.key] for table in self._tables} | {DONE: ["id"]}
        own, other = (_Reader(self._folder / name) for name in ("own", "debezium"))
        own.configure(opened.own(own.log, keys))
        with contextlib.ExitStack() as ends:
            if self._broker is None:
                other.configure(opened.debezium(other.log, keys, engine_jars(self._database.jars)))
            else:
                other.configure(opened.topics(other.log, keys, self._broker.bootstrap_servers))
                history = ends.enter_context(temporary_folder("changelog-history-"))
                give_away(history)
                connectors = {opened.name: opened.in_connect(keys, history)}
                home = fetched(CONNECT_JARS[self._database.name]) / "lib"
                ends.enter_context(temporary_connect(home, self._broker.bootstrap_servers, connectors))
            for reader in (own, other):
                ends.callback(reader.service.kill)
                reader.service.start()
            rows = len(self._tables) * (ROWS // SESSIONS + 1) * SESSIONS
            for reader in (own, other):
                reader.until(lambda counts: sum(ops.get("read", 0) for ops in counts.values()) >= rows, START_S)
            faults = Faults(self._rng, other.service, self._database.cut)
            workload.run(changes // (kills + 1), ALTERATIONS // (kills + 1) + 1)
            if kills:
                # If a fault came before the first published change, Debezium would begin its snapshot again.
                other.until(lambda counts: any(ops.keys() - {"read"} for ops in counts.values()), CATCH_UP_S)
            for _ in range(kills):
                faults.make()
                workload.run(changes // (kills + 1), ALTERATIONS // (kills + 1) + 1)
            if kills:
                faults.end()
            opened.executes[0](f"INSERT INTO {DONE} VALUES (1)")
            for reader in (own, other):
                reader.until(lambda counts: DONE in counts, CATCH_UP_S)
                reader.service.stop()
        published = [list(rows_of(read_log(reader.log), self._names)) for reader in (own, other)]
        return published[0], published[1], faults.counts


class _Reader:
    """One of the two services. It publishes to a file log in `folder`, which this class creates."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.log = folder / "log"
        self._config = folder / "changelog.toml"
        self.service = Service(self._config)

    def configure(self, config: str) -> None:
        """Writes the configuration."""
        self._config.write_text(config, "utf-8")

    def until(self, reached: Callable[[Mapping[str, Mapping[str, int]]], bool], timeout_s: float) -> None:
        """Waits until `reached` returns true. This function gets the number of published rows, by entity and op."""
        deadline = time.monotonic() + timeout_s
        while not ((self.log / "log").is_dir() and reached(counts(self.log))):
            self.service.check()
            assert time.monotonic() < deadline, f"the service is too slow: {self.service.said()[-2000:]}"
            time.sleep(0.3)
