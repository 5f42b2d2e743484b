"""A table under random writes, and its changelog: spoilt behind the service's back, repaired, and judged.

Every row has a `version` that grows with each write of its key, so that one pass over the log shows whether a state is
older than one before it.
"""

import contextlib
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import psycopg
from msgspec import Raw

from changelog.connectors.capture.tables.repairs import Repairs
from changelog.connectors.sinks.files.log import read_checkpoint, read_log
from changelog.connectors.sinks.files.sink import FileSink
from changelog.connectors.sources.postgres.admin.signals import send
from changelog.connectors.sources.postgres.values.lsn import through_lsn
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.columnar import batch
from changelog.envelope.model import MISSING, Envelope, Op, Record
from changelog.envelope.position import Position
from changelog.envelope.signal import Signal
from tests.campaigns._service import Service, is_read

WRITERS = 3
LOAD = "load"
SPOILT = 200

CONFIG = """
name = "{name}"
[source]
kind = "postgres"
dsn = "{dsn}"
snapshot_pages = {pages}
snapshot_workers = {workers}
[sink]
path = "changelog"
commit_seconds = 0.1
[service]
listen = "127.0.0.1:0"
[entities.row]
table = "public.row"
partitions = 4
on_truncate = "publish"
"""

TABLE = """
CREATE SEQUENCE versions;
CREATE TABLE row (id bigint PRIMARY KEY, version bigint NOT NULL, note text);
ALTER TABLE row REPLICA IDENTITY FULL;
INSERT INTO row SELECT n, nextval('versions'), repeat('x', (n % 60)::int) FROM generate_series(1, {rows}) AS n;
"""

States = dict[str, int]
"""Of each key that is alive, its version."""


class Pair:
    """A database with a table of so many rows, the changelog of that table, and the service between them."""

    def __init__(self, name: str, dsn: str, folder: Path, rows: int, *, pages: int, workers: int = 2) -> None:
        self.dsn, self.rows = dsn, rows
        config = folder / "changelog.toml"
        config.write_text(CONFIG.format(name=name, dsn=dsn, pages=pages, workers=workers), "utf-8")
        self.path = folder / "changelog"
        self.service = Service(config)

    def begin(self, timeout_s: float) -> None:
        """Makes the table, and starts the service, which reads it."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(TABLE.format(rows=self.rows).encode())
        self.service.start()
        self.service.until(self.path, is_read, timeout_s)

    @property
    def checkpoint(self) -> Checkpoint:
        """How far the changelog is."""
        found = read_checkpoint(self.path)
        assert found is not None
        return found

    @property
    def position(self) -> Position:
        """Of its last row."""
        found = self.checkpoint.position
        assert found is not None
        return found

    def spoil(self, rng: random.Random) -> list[str]:
        """Puts ghosts, older states and deletes behind the end of the log; gives their keys. The service is stopped."""
        alive = _fold(self.path)
        keys = rng.sample(sorted(alive), min(SPOILT, len(alive) // 4))
        ghosts = [str(10 * self.rows + rng.randrange(10 * SPOILT)) for _ in range(len(keys) // 2)]
        like = next(record for rows in read_log(self.path, entity="row") for record in batch.records(rows))
        sink = FileSink(self.path)
        try:
            checkpoint = sink.recover()
            assert checkpoint is not None
            assert checkpoint.position is not None
            position, forged = checkpoint.position, []
            for key in dict.fromkeys([*keys, *ghosts]):
                position = Position(position.epoch, position.commit, position.ordinal + 2)
                forged.append(_forged(like, key, lost=key in alive and rng.random() < 0.5, position=position))
            sink.add([batch.from_records(forged)])
            sink.commit(replace(checkpoint, position=position))
        finally:
            sink.close()
        return [record.place.key for record in forged]

    def ask(self, signals: Sequence[Signal], after: Callable[[], object] = lambda: None) -> set[str]:
        """Sends the signals, each followed by `after`; their ids."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for signal in signals:
                send(connection, signal, None)
                after()
        return {signal.id for signal in signals}

    def ended(self, asked: set[str]) -> bool:
        """Whether what these signals asked for has come to an end."""
        return asked <= Repairs.parse(self.checkpoint.repairs).ended.keys()

    def until_ended(self, asked: set[str], timeout_s: float) -> None:
        """Waits for that, and for all that was written until now."""
        end = _last_write(self.dsn)
        self.service.until(self.path, lambda found: through_lsn(found) > end and self.ended(asked), timeout_s)

    def orderly(self, begun: Position) -> int:
        """What came behind `begun` against what was before it; how many keys the service deleted by itself."""
        return _orderly(self.path, begun)

    def judge(self, begun: Position) -> int:
        """The same, and the log against the table; all that was written is published."""
        alive = _fold(self.path)
        deleted = self.orderly(begun)
        with psycopg.connect(self.dsn) as connection:
            table = {str(key): version for key, version in connection.execute("SELECT id, version FROM row")}
        wrong = {key for key in alive.keys() | table.keys() if alive.get(key) != table.get(key)}
        assert not wrong, f"{len(wrong)} keys differ from the table, {sorted(wrong)[:5]} say"
        return deleted


def _forged(like: Record, key: str, *, lost: bool, position: Position) -> Record:
    told = like.envelope.provenance
    source = replace(told.source, op=Op.DELETE if lost else Op.UPDATE, position=position)
    state = None if lost else Raw(msgspec.json.encode({"id": int(key), "version": 0, "note": "spoilt"}))
    envelope = Envelope(provenance=replace(told, source=source), current=state, original=MISSING)
    return replace(like, place=replace(like.place, key=key), envelope=envelope)


class _State(msgspec.Struct):
    version: int


_states = msgspec.json.Decoder(_State)


def _fold(path: Path) -> States:
    alive: States = {}
    for rows in read_log(path, entity="row"):
        for key, current in zip(rows.column("key").to_pylist(), rows.column("current").to_pylist(), strict=True):
            if current is None:
                alive.pop(key, None)
            else:
                alive[key] = _states.decode(current).version
    return alive


def _orderly(path: Path, begun: Position) -> int:
    """Behind `begun`, of no key does a version go back, and what the service deletes by itself is there; how many."""
    newest: States = {}
    alive: dict[str, bool] = {}
    deletes = 0
    for rows in read_log(path, entity="row"):
        columns = (rows.column(name).to_pylist() for name in ("key", "op", "position", "current", "service_name"))
        for key, op, position, current, by in zip(*columns, strict=True):
            if position > str(begun):
                version = newest.get(key, 0) if current is None else _states.decode(current).version
                assert version >= newest.get(key, 0), f"{position}: {key} goes back to {version}"
                newest[key] = version
                if op == "delete" and by != LOAD:
                    assert alive.get(key), f"{position}: {key} is deleted, and was not there"
                    deletes += 1
            alive[key] = current is not None
    return deletes


def _last_write(dsn: str) -> int:
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchone()
        connection.execute("UPDATE row SET version = nextval('versions') WHERE id = (SELECT min(id) FROM row)")
    assert row is not None
    return int(row[0])


@contextlib.contextmanager
def written_to(pair: Pair, seed: int, *, pause_s: float = 0.01) -> Iterator["Load"]:
    """The table is written to meanwhile; each of the writers pauses for so long at most."""
    load = Load(pair.dsn, pair.rows, seed, pause_s)
    load.start()
    try:
        yield load
    finally:
        load.stop()


class Load:
    """Threads that insert, update, delete and move rows, each the keys of one remainder; a few transactions linger."""

    def __init__(self, dsn: str, rows: int, seed: int, pause_s: float) -> None:
        self._dsn, self._rows, self._pause_s = dsn, rows, pause_s
        self._over = threading.Event()
        self.writes = 0
        self._failed: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._guarded, args=(number, random.Random(f"{seed}/{number}")))
            for number in range(WRITERS)
        ]

    def start(self) -> None:
        """Begins to write."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ends; `writes` is how many transactions there were."""
        self._over.set()
        for thread in self._threads:
            thread.join()
        if self._failed:
            raise self._failed[0]

    def _guarded(self, number: int, rng: random.Random) -> None:
        try:
            with psycopg.connect(self._dsn, autocommit=True) as connection:
                while not self._over.is_set():
                    self._transaction(connection, number, rng)
                    self.writes += 1
                    self._over.wait(rng.random() * self._pause_s)
        except BaseException as error:
            self._failed.append(error)
            raise

    def _transaction(self, connection: psycopg.Connection, number: int, rng: random.Random) -> None:
        with contextlib.suppress(psycopg.Rollback), connection.transaction(), connection.cursor() as cursor:
            cursor.execute("SELECT pg_logical_emit_message(true, 'provenance', %s)", [f'{{"serviceName": "{LOAD}"}}'])
            for _ in range(rng.choice((1, 1, 3, 30))):
                self._write(cursor, rng, lambda: rng.randrange(1, 2 * self._rows) // WRITERS * WRITERS + number)
            if rng.random() < 0.03:
                self._over.wait(rng.random())
            if rng.random() < 0.1:
                raise psycopg.Rollback

    def _write(self, cursor: psycopg.Cursor, rng: random.Random, own: Callable[[], int]) -> None:
        match rng.random():
            case chance if chance < 0.5:
                cursor.execute("UPDATE row SET version = nextval('versions') WHERE id = %s", [own()])
            case chance if chance < 0.7:
                cursor.execute(
                    "INSERT INTO row VALUES (%s, nextval('versions'), 'new') ON CONFLICT (id) DO NOTHING", [own()]
                )
            case chance if chance < 0.85:
                cursor.execute("DELETE FROM row WHERE id = %s", [own()])
            case _:
                new = own()
                cursor.execute(
                    "UPDATE row SET id = %s, version = nextval('versions') WHERE id = %s"
                    " AND NOT EXISTS (SELECT FROM row WHERE id = %s)",
                    [new, own(), new],
                )
