"""A table is published again, and rebuilt, under random writes, while the service is killed at any time.

Before each round the changelog is spoilt behind the service's back: rows that no table ever had, older states, lost
ones. At its end the changelog, folded, is the table. From the first repair on, no state is older than one before it at
any prefix of the log: every row has a `version` that grows with each write of its key. What a repair deletes is there.
"""

import contextlib
import random
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import psycopg
from msgspec import Raw

from connectors.embedded import temporary_server
from connectors.signals import Do, Signal, send
from connectors.sinks.filelog import read_checkpoint, read_log
from connectors.sinks.files import FileSink
from connectors.sources.postgres.repairs import Repairs
from envelope import batch
from envelope.checkpoint import Checkpoint
from envelope.model import MISSING, Envelope, Op, Record
from envelope.position import Position
from tests.campaigns._pieces import Campaign, Figures, Piece
from tests.campaigns._service import FAIL_POINTS, Service, is_read
from tests.servers import fresh_database

ROWS = 200_000
ROUNDS_A_LOG = 10
CATCH_UP_S = 300.0
WRITERS = 3
LOAD = "load"
WRITES_S = 1.5
SPOILT = 200

CONFIG = """
name = "{name}"
[source]
kind = "postgres"
dsn = "{dsn}"
snapshot_pages = {pages}
[sink]
path = "changelog"
commit_seconds = 0.1
[service]
listen = "127.0.0.1:0"
[entities.row]
table = "public.row"
partitions = 4
"""

TABLE = """
CREATE SEQUENCE versions;
CREATE TABLE row (id bigint PRIMARY KEY, version bigint NOT NULL, note text);
ALTER TABLE row REPLICA IDENTITY FULL;
INSERT INTO row SELECT n, nextval('versions'), repeat('x', (n % 60)::int) FROM generate_series(1, {rows}) AS n;
"""

States = dict[str, int]
"""Of each key that is alive, its version."""


def campaign(rows: int = ROWS) -> Campaign:
    """Ten rounds have one database and one log, which grows."""
    return Campaign(site=lambda: _site(rows), rounds=ROUNDS_A_LOG)


@contextlib.contextmanager
def _site(rows: int) -> Iterator[Callable[[Piece], Figures]]:
    with temporary_server(settings={"fsync": "off", "max_wal_size": "4GB"}) as server:

        def one(piece: Piece) -> Figures:
            with tempfile.TemporaryDirectory(prefix="changelog-repair-") as folder, fresh_database(server) as dsn:
                log = _Log(f"r{piece.first}", dsn, Path(folder), rows, random.Random(piece.seed))
                return log.run(piece.rounds)

        yield one


class _Log:
    """A database, the changelog of its one table, and the service between them."""

    def __init__(self, name: str, dsn: str, folder: Path, rows: int, rng: random.Random) -> None:
        self._name, self._dsn, self._rows, self._rng = name, dsn, rows, rng
        config = folder / "changelog.toml"
        config.write_text(CONFIG.format(name=name, dsn=dsn, pages=rng.choice((4, 16, 64))), "utf-8")
        self._path = folder / "changelog"
        self._service = Service(config)
        self._figures = {"kills": 0, "writes": 0, "spoilt": 0, "keys": 0, "republished": 0, "rebuilt": 0, "deletes": 0}

    def run(self, rounds: int) -> Figures:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute(TABLE.format(rows=self._rows).encode())
        try:
            self._service.start()
            self._service.until(self._path, is_read, CATCH_UP_S)
            for number in range(rounds):
                self._round(number)
            self._service.stop()
        finally:
            self._service.kill()
        return self._figures

    def _round(self, number: int) -> None:
        self._service.stop()
        spoilt = self._spoil()
        begun = self._checkpoint().position
        assert begun is not None
        self._service.start()
        whole = self._rng.random() < 0.6
        load = _Load(self._dsn, self._rows, self._rng.randrange(1 << 32))
        load.start()
        try:
            asked = self._ask(number, spoilt, whole=whole)
            self._crash(lambda: asked <= Repairs.parse(self._checkpoint().repairs).ended.keys())
        finally:
            self._figures["writes"] += load.stop()
        end = _last_write(self._dsn)
        self._service.until(
            self._path,
            lambda found: found.through_lsn > end and asked <= Repairs.parse(found.repairs).ended.keys(),
            CATCH_UP_S,
        )
        self._judge(begun)

    def _ask(self, number: int, spoilt: list[str], *, whole: bool) -> set[str]:
        """One rebuild, or all spoilt keys by several signals; now and then both, or more than is needed."""
        signals: list[tuple[Do, tuple[str, ...] | None]] = []
        if whole:
            signals.append(("rebuild", None))
            self._figures["rebuilt"] += 1
        if not whole or self._rng.random() < 0.3:
            keys = [*spoilt, *(str(self._rng.randrange(2 * self._rows)) for _ in range(len(spoilt)))]
            self._rng.shuffle(keys)
            half = self._rng.randrange(1, len(keys))
            signals += [("republish", tuple(keys[:half])), ("republish", tuple(keys[half:]))]
            self._figures["keys"] += len(keys)
        if self._rng.random() < 0.2:
            signals.append(("republish", None))
            self._figures["republished"] += 1
        asked = set()
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            for place, (do, chosen) in enumerate(signals):
                signal = Signal(do=do, id=f"{number}-{place}", entity="row", keys=chosen)
                send(connection, signal, None)
                asked.add(signal.id)
                self._service.wait(self._rng.random() * 0.5)
        return asked

    def _crash(self, done: Callable[[], bool]) -> None:
        """Kills the service once to thrice, at a place or at any time; then it may go on."""
        for _ in range(self._rng.choice((1, 2, 3))):
            if self._service.wait(self._rng.random() * WRITES_S):
                pass  # it crashed at its place
            elif done() and self._rng.random() < 0.5:
                continue
            self._service.kill()
            self._figures["kills"] += 1
            place = f"{self._rng.choice(FAIL_POINTS)}:{self._rng.randrange(1, 20)}"
            self._service.start(place if self._rng.random() < 0.4 else None)
        self._service.wait(self._rng.random() * WRITES_S)
        self._service.kill()
        self._service.start()

    def _checkpoint(self) -> Checkpoint:
        found = read_checkpoint(self._path)
        assert found is not None
        return found

    def _spoil(self) -> list[str]:
        """Puts ghosts, older states and deletes behind the end of the log; gives their keys."""
        alive = _fold(self._path)
        keys = self._rng.sample(sorted(alive), min(SPOILT, len(alive) // 4))
        ghosts = [str(10 * self._rows + self._rng.randrange(10 * SPOILT)) for _ in range(len(keys) // 2)]
        like = next(record for rows in read_log(self._path, entity="row") for record in batch.records(rows))
        sink = FileSink(self._path)
        try:
            checkpoint = sink.recover()
            assert checkpoint is not None
            assert checkpoint.position is not None
            position, forged = checkpoint.position, []
            for key in dict.fromkeys([*keys, *ghosts]):
                position = Position(position.epoch, position.commit, position.ordinal + 2)
                forged.append(_forged(like, key, lost=key in alive and self._rng.random() < 0.5, position=position))
            sink.add([batch.from_records(forged)])
            sink.commit(replace(checkpoint, position=position))
        finally:
            sink.close()
        self._figures["spoilt"] += len(forged)
        return [record.place.key for record in forged]

    def _judge(self, begun: Position) -> None:
        """The log against the table, and what came behind `begun` against what was before it."""
        alive = _fold(self._path)
        deleted = _orderly(self._path, begun)
        self._figures["deletes"] += deleted
        with psycopg.connect(self._dsn) as connection:
            table = {str(key): version for key, version in connection.execute("SELECT id, version FROM row")}
        wrong = {key for key in alive.keys() | table.keys() if alive.get(key) != table.get(key)}
        assert not wrong, f"{len(wrong)} keys differ from the table, {sorted(wrong)[:5]} say"


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


class _Load:
    """Threads that insert, update, delete and move rows, each the keys of one remainder; a few transactions linger."""

    def __init__(self, dsn: str, rows: int, seed: int) -> None:
        self._dsn, self._rows = dsn, rows
        self._over = threading.Event()
        self._writes = 0
        self._failed: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._guarded, args=(number, random.Random(f"{seed}/{number}")))
            for number in range(WRITERS)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> int:
        """How many transactions there were."""
        self._over.set()
        for thread in self._threads:
            thread.join()
        if self._failed:
            raise self._failed[0]
        return self._writes

    def _guarded(self, number: int, rng: random.Random) -> None:
        try:
            with psycopg.connect(self._dsn, autocommit=True) as connection:
                while not self._over.is_set():
                    self._transaction(connection, number, rng)
                    self._writes += 1
                    self._over.wait(rng.random() * 0.01)
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
