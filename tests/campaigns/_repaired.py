"""Runs a service for one table, and threads that write to this table. The campaigns that use this module spoil the
table's changelog, send signals that ask the service to repair the changelog, and then judge it.

Every row has a `version`, which grows with each write to its key. So the versions in the changelog show whether an old
state of a key comes after a newer one.
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
"""The version of each live key."""


class Pair:
    """A table of `rows` rows, its changelog, and the service that publishes the table."""

    def __init__(self, name: str, dsn: str, folder: Path, rows: int, *, pages: int, workers: int = 2) -> None:
        self.dsn, self.rows = dsn, rows
        config = folder / "changelog.toml"
        config.write_text(CONFIG.format(name=name, dsn=dsn, pages=pages, workers=workers), "utf-8")
        self.path = folder / "changelog"
        self.service = Service(config)

    def begin(self, timeout_s: float) -> None:
        """Creates the table, starts the service, and waits until the service has read the table."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(TABLE.format(rows=self.rows).encode())
        self.service.start()
        self.service.until(self.path, is_read, timeout_s)

    @property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint of the changelog."""
        checkpoint = read_checkpoint(self.path)
        assert checkpoint is not None
        return checkpoint

    @property
    def position(self) -> Position:
        """The position of the last row in the changelog."""
        position = self.checkpoint.position
        assert position is not None
        return position

    def spoil(self, rng: random.Random) -> list[str]:
        """Appends forged rows to the changelog while the service is stopped. Returns the keys of these rows.

        Some forged rows have keys that the table never had. The others have keys of the table, and are deletes or wrong
        states.
        """
        alive = _fold(self.path)
        keys = rng.sample(sorted(alive), min(SPOILT, len(alive) // 4))
        ghosts = [str(10 * self.rows + rng.randrange(10 * SPOILT)) for _ in range(len(keys) // 2)]
        template = next(record for rows in read_log(self.path, entity="row") for record in batch.records(rows))
        sink = FileSink(self.path)
        try:
            checkpoint = sink.recover()
            assert checkpoint is not None
            assert checkpoint.position is not None
            position, forged = checkpoint.position, []
            for key in dict.fromkeys([*keys, *ghosts]):
                position = Position(position.epoch, position.commit, position.ordinal + 2)
                forged.append(
                    _forged_record(template, key, deleted=key in alive and rng.random() < 0.5, position=position)
                )
            sink.add([batch.from_records(forged)])
            sink.commit(replace(checkpoint, position=position))
        finally:
            sink.close()
        return [record.place.key for record in forged]

    def ask(self, signals: Sequence[Signal], after: Callable[[], object] = lambda: None) -> set[str]:
        """Sends the signals, and calls `after` after each signal. Returns the ids of the signals."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for signal in signals:
                send(connection, signal, None)
                after()
        return {signal.id for signal in signals}

    def ended(self, signal_ids: set[str]) -> bool:
        """Whether the repairs for which these signals asked have ended."""
        return signal_ids <= Repairs.parse(self.checkpoint.repairs).ended.keys()

    def until_ended(self, signal_ids: set[str], timeout_s: float) -> None:
        """Waits until the repairs for which these signals asked have ended, and all writes until now are published."""
        end = _last_write(self.dsn)
        self.service.until(
            self.path, lambda checkpoint: through_lsn(checkpoint) > end and self.ended(signal_ids), timeout_s
        )

    def orderly(self, after: Position) -> int:
        """Checks the rows after this position: the versions of a key must not go back.

        A repair also publishes deletes of its own, for keys that the table does not have. Such a key must exist in the
        changelog just before its delete. Returns the number of these deletes.
        """
        return _orderly(self.path, after)

    def judge(self, after: Position) -> int:
        """Checks and returns the same as `orderly`, and also compares the changelog with the table. All writes must be
        published before the call.
        """
        alive = _fold(self.path)
        deleted = self.orderly(after)
        with psycopg.connect(self.dsn) as connection:
            table = {str(key): version for key, version in connection.execute("SELECT id, version FROM row")}
        wrong = {key for key in alive.keys() | table.keys() if alive.get(key) != table.get(key)}
        assert not wrong, f"{len(wrong)} keys differ from the table, for example {sorted(wrong)[:5]}"
        return deleted


def _forged_record(template: Record, key: str, *, deleted: bool, position: Position) -> Record:
    provenance = template.envelope.provenance
    source = replace(provenance.source, op=Op.DELETE if deleted else Op.UPDATE, position=position)
    state = None if deleted else Raw(msgspec.json.encode({"id": int(key), "version": 0, "note": "spoilt"}))
    envelope = Envelope(provenance=replace(provenance, source=source), current=state, original=MISSING)
    return replace(template, place=replace(template.place, key=key), envelope=envelope)


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


def _orderly(path: Path, after: Position) -> int:
    """Implements `Pair.orderly` for the changelog at `path`."""
    newest: States = {}
    alive: dict[str, bool] = {}
    deletes = 0
    for rows in read_log(path, entity="row"):
        columns = (rows.column(name).to_pylist() for name in ("key", "op", "position", "current", "service_name"))
        for key, op, position, current, service_name in zip(*columns, strict=True):
            if position > str(after):
                version = newest.get(key, 0) if current is None else _states.decode(current).version
                assert version >= newest.get(key, 0), f"{position}: {key} goes back to {version}"
                newest[key] = version
                if op == "delete" and service_name != LOAD:
                    assert alive.get(key), f"{position}: {key} is deleted, but did not exist"
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
    """Writes to the table until the `with` block ends. After each transaction, a writer pauses for at most `pause_s`
    seconds.
    """
    load = Load(pair.dsn, pair.rows, seed, pause_s)
    load.start()
    try:
        yield load
    finally:
        load.stop()


class Load:
    """Threads that insert, update and delete rows, and change keys. Each key is written by only one thread: that with
    the number key % WRITERS.
    """

    def __init__(self, dsn: str, rows: int, seed: int, pause_s: float) -> None:
        self._dsn, self._rows, self._pause_s = dsn, rows, pause_s
        self._over = threading.Event()
        self.writes = 0
        self._failed: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._run_guarded, args=(number, random.Random(f"{seed}/{number}")))
            for number in range(WRITERS)
        ]

    def start(self) -> None:
        """Starts to write."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stops the writers. If one of them failed, raises its error."""
        self._over.set()
        for thread in self._threads:
            thread.join()
        if self._failed:
            raise self._failed[0]

    def _run_guarded(self, number: int, rng: random.Random) -> None:
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
