"""Edits the publication, partitions and keys in ways that the server's log does not show. Meanwhile, threads write
rows, and the service is killed.

After each edit, the campaign does only what an operator would do: it undoes the edit, and starts the service again if
the service has stopped. At the end, the last states in the changelog must equal the tables, and the positions in the
changelog must never go back.
"""

import contextlib
import random
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psycopg

from changelog.connectors.servers.postgres import temporary_server
from changelog.connectors.sinks.files.log import read_checkpoint, read_log
from changelog.connectors.sources.postgres.admin import ddl
from changelog.connectors.sources.postgres.values.lsn import parse_lsn
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.columnar import batch
from tests.campaigns._pieces import Campaign, Figures, Piece
from tests.campaigns._service import Service, is_read
from tests.servers import fresh_database

SETTINGS = {"fsync": "off", "max_wal_size": "4GB"}
KEYS = 400
EDITS = 4
CATCH_UP_S = 180.0
"""This is more than a minute. It may take an idle service a minute to store a checkpoint which shows that it has read
the catalogue.
"""
CONFIG = """
name = "{name}"
[source]
kind = "postgres"
dsn = "{dsn}"
[sink]
path = "changelog"
commit_seconds = 0.05
[service]
listen = "127.0.0.1:0"
[entities.item]
table = "public.item"
[entities.event]
table = "public.event"
"""

PREPARE = """
CREATE TABLE item (id int CONSTRAINT item_key PRIMARY KEY, n bigint);
ALTER TABLE item REPLICA IDENTITY FULL;
CREATE TABLE event (id int PRIMARY KEY, n bigint) PARTITION BY RANGE (id);
CREATE TABLE event_0 PARTITION OF event FOR VALUES FROM (0) TO (100);
CREATE TABLE event_1 PARTITION OF event FOR VALUES FROM (100) TO (200);
CREATE TABLE event_2 PARTITION OF event FOR VALUES FROM (200) TO (300);
CREATE TABLE event_rest PARTITION OF event DEFAULT;
"""

HIDING: dict[str, tuple[str, str]] = {
    "table": ("ALTER PUBLICATION {p} DROP TABLE item", "ALTER PUBLICATION {p} ADD TABLE ONLY item"),
    "partitioned": ("ALTER PUBLICATION {p} DROP TABLE event", "ALTER PUBLICATION {p} ADD TABLE ONLY event"),
    "filter": (
        "ALTER PUBLICATION {p} SET TABLE ONLY item WHERE (id < 100), ONLY event",
        "ALTER PUBLICATION {p} SET TABLE ONLY item, ONLY event",
    ),
    "operations": (
        "ALTER PUBLICATION {p} SET (publish = 'insert')",
        "ALTER PUBLICATION {p} SET (publish = 'insert, update, delete, truncate')",
    ),
    "name": (
        "ALTER TABLE item RENAME TO elsewhere",
        "DELETE FROM elsewhere WHERE id % 7 = 0; ALTER TABLE elsewhere RENAME TO item",
    ),
    "key": ("ALTER TABLE item DROP CONSTRAINT item_key", "ALTER TABLE item ADD CONSTRAINT item_key PRIMARY KEY (id)"),
    "detached": (
        "ALTER TABLE event DETACH PARTITION event_1",
        """
        LOCK TABLE event;
        DELETE FROM event WHERE id BETWEEN 100 AND 199;
        ALTER TABLE event ATTACH PARTITION event_1 FOR VALUES FROM (100) TO (200)
        """,
    ),
    "truncated": ("TRUNCATE event_2", "SELECT"),
    "rewritten": ("VACUUM FULL event_0", "SELECT"),
}
"""For each kind of edit: the statements that hide changes from the service, and the statements that undo the edit."""


def campaign() -> Campaign:
    """Each round makes a few edits in a new database."""
    return Campaign(site=_site, at_once=2)


@contextlib.contextmanager
def _site() -> Iterator[Callable[[Piece], Figures]]:
    with (
        tempfile.TemporaryDirectory(prefix="changelog-unlogged-") as name,
        temporary_server(settings=SETTINGS) as server,
    ):

        def run_piece(piece: Piece) -> Figures:
            folder = Path(name) / str(piece.first)
            folder.mkdir()
            try:
                with fresh_database(server) as dsn:
                    return _Round(f"u{piece.first}", dsn, folder, random.Random(piece.seed)).run()
            finally:
                shutil.rmtree(folder)

        yield run_piece


class _Round:
    def __init__(self, name: str, dsn: str, folder: Path, rng: random.Random) -> None:
        self._name, self._dsn, self._rng = name, dsn, rng
        config = folder / "changelog.toml"
        config.write_text(CONFIG.format(name=name, dsn=dsn), "utf-8")
        self._log = folder / "changelog"
        self._service = Service(config)
        self._over = threading.Event()
        self._writers = [threading.Thread(target=self._write, args=(rng.randrange(1 << 32),)) for _ in range(2)]
        self._edits: Counter[str] = Counter()
        self._kills = self._stops = 0

    def run(self) -> Figures:
        self._sql(PREPARE)
        if trigger := self._rng.random() < 0.5:
            self._sql(ddl.SCRIPT)
        try:
            for writer in self._writers:
                writer.start()
            self._service.start()
            self._until(is_read)
            for kind in self._rng.choices(list(HIDING), k=EDITS):
                self._edit(kind)
            self._over.set()
            for writer in self._writers:
                writer.join()
            self._catch_up()
        finally:
            self._over.set()
            self._service.kill()
        return {
            "triggers": int(trigger),
            "edits": self._edits,
            "kills": self._kills,
            "stops": self._stops,
            **self._judge(),
        }

    def _edit(self, kind: str) -> None:
        """Makes an edit, and undoes it after a while. Sometimes the service does not run meanwhile. If it runs, it is
        sometimes killed afterwards.
        """
        hide, end = (statement.format(p=f'"{self._name}"') for statement in HIDING[kind])
        away = self._rng.random() < 0.3
        if away:
            self._service.kill()
            self._kills += 1
        self._sql(hide)
        time.sleep(self._rng.choice((0.0, 0.05, 0.5)))
        if kind == "key":
            with contextlib.suppress(psycopg.errors.UniqueViolation):
                self._sql("INSERT INTO item SELECT id, 0 FROM item LIMIT 3")
            self._sql("DELETE FROM item AS a USING item AS b WHERE a.id = b.id AND a.ctid > b.ctid")
        self._sql(end)
        self._edits[kind] += 1
        if away:
            self._service.start()
        elif self._rng.random() < 0.3:
            self._service.kill()
            self._kills += 1
            self._service.start()
        time.sleep(self._rng.random())
        self._start_again()

    def _start_again(self) -> None:
        """If the service has stopped with an error, starts it again, as an operator or systemd would."""
        if self._service.exit_code not in (None, -9):
            self._stops += 1
            self._service.start()

    def _write(self, seed: int) -> None:
        rng = random.Random(seed)
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            while not self._over.is_set():
                table, id_, n = rng.choice(("item", "event")), rng.randrange(KEYS), rng.randrange(1 << 40)
                statement = rng.choices(
                    (
                        f"INSERT INTO {table} VALUES ({id_}, {n}) ON CONFLICT (id) DO UPDATE SET n = excluded.n",
                        f"UPDATE {table} SET n = {n} WHERE id = {id_}",
                        f"DELETE FROM {table} WHERE id = {id_}",
                    ),
                    (5, 3, 2),
                )
                with contextlib.suppress(psycopg.Error):  # the table has another name, or no key, for a moment
                    connection.execute(statement[0].encode())
                self._over.wait(0.002)

    def _sql(self, statements: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            cursor = connection.execute(statements.encode())
            return cursor.fetchall() if cursor.description else []

    def _until(self, condition: Callable[[Checkpoint], bool]) -> None:
        deadline = time.monotonic() + CATCH_UP_S
        while (checkpoint := read_checkpoint(self._log)) is None or not condition(checkpoint):
            self._start_again()
            assert time.monotonic() < deadline, f"the checkpoint is {checkpoint}; {self._service.said()[-3000:]}"
            time.sleep(0.05)

    def _catch_up(self) -> None:
        """Waits until the service has published all changes, noticed all edits, and ended all repairs.

        First inserts a row into each table, because new changes make the service check the catalogue.
        """
        self._sql("INSERT INTO item VALUES (10000, 1); INSERT INTO event VALUES (10000, 1)")
        [(end,)] = self._sql("SELECT pg_current_wal_insert_lsn()::text")

        def caught_up(checkpoint: Checkpoint) -> bool:
            catalogue_lsn = parse_lsn(checkpoint.source["publication"]["lsn"])
            return catalogue_lsn >= parse_lsn(end) and not checkpoint.repairs.get("open") and is_read(checkpoint)

        self._until(caught_up)

    def _judge(self) -> Figures:
        last, rows = "", 0
        states: dict[str, dict[str, Any]] = {"item": {}, "event": {}}
        reads = 0
        for records in read_log(self._log):
            for record in batch.records(records):
                source = record.envelope.provenance.source
                assert str(source.position) >= last, f"{source.position} comes after the higher position {last}"
                last, rows, reads = str(source.position), rows + 1, reads + (source.op == "read")
                if record.entity in states:
                    states[record.entity].pop(record.place.key, None)
                    if record.envelope.current is not None:
                        states[record.entity][record.place.key] = msgspec.json.decode(record.envelope.current)["n"]
        for entity, state in states.items():
            table = {str(id_): n for id_, n in self._sql(f"SELECT id, n FROM {entity}")}
            wrong = {key for key in state.keys() | table.keys() if state.get(key) != table.get(key)}
            assert not wrong, f"{len(wrong)} of {len(table)} keys of {entity} differ after {self._edits}"
        return {
            "rows": rows,
            "reads": reads,
            "noticed": self._service.said().count("changes may be missing from the log"),
        }
