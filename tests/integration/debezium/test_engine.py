"""The embedded Debezium reads a PostgreSQL: events, restarts, back-pressure and kills."""

import json
import random
import sqlite3
import subprocess
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import psycopg
import pytest

from changelog.connectors.debezium.frames import End, LogLine, RecordBatch
from changelog.connectors.debezium.launch import Launch
from changelog.connectors.debezium.process import EngineProcess
from changelog.connectors.java.program import find_java
from changelog.debezium import ChangeEvent, DebeziumEngine, FileStore
from changelog.envelope.errors import ChangelogError, Kind
from tests.integration.debezium.site import connector, create_table, has_ended, java_of, kill, program
from tests.patience import PATIENCE_S, until
from tests.servers import engine_jars


@pytest.fixture(scope="module")
def jars(starts_servers: None) -> Path:
    return engine_jars("postgres")


def ignore(_line: LogLine) -> None:
    """Drops Debezium's log."""


class HandlerError(Exception):
    """What a handler raises."""


def test_a_handler_receives_the_snapshot_and_the_stream_and_a_refused_batch_again(
    database: str, jars: Path, tmp_path: Path
) -> None:
    create_table(database, 3)
    engine = DebeziumEngine(connector(database), store=FileStore(tmp_path / "state"), jars=jars)
    received: list[ChangeEvent] = []

    def refuse_the_stream(events: Sequence[ChangeEvent]) -> None:
        if b'"op":"r"' not in (events[0].value or b""):
            raise HandlerError
        received.extend(events)
        if len(received) == 3:
            with psycopg.connect(database) as connection:
                connection.execute("UPDATE orders SET amount = 13.5, status = 'PAID' WHERE id = 1")
                connection.execute("UPDATE orders SET id = 7 WHERE id = 2")
                connection.execute("DELETE FROM orders WHERE id = 3")

    with pytest.raises(HandlerError):
        engine.run(refuse_the_stream)
    assert [event.decoded_key() for event in received] == [{"id": 1}, {"id": 2}, {"id": 3}]
    assert {event.topic for event in received} == {"shop.public.orders"}

    received.clear()

    def close_after_six() -> None:
        until(lambda: len(received) >= 6, "no events")
        engine.close()

    closer = threading.Thread(target=close_after_six)
    closer.start()
    engine.run(received.extend)
    closer.join()
    changes = [
        (event.decoded_key(), event.value and json.loads(event.value)["op"], [name for name, _ in event.headers])
        for event in received
    ]
    assert changes == [
        ({"id": 1}, "u", []),
        ({"id": 2}, "d", ["__debezium.newkey"]),
        ({"id": 2}, None, ["__debezium.newkey"]),
        ({"id": 7}, "c", ["__debezium.oldkey"]),
        ({"id": 3}, "d", []),
        ({"id": 3}, None, []),
    ]
    assert received[1].headers == (("__debezium.newkey", {"id": 7}),)
    after = json.loads(received[0].value or b"")["after"]
    assert after == {"id": 1, "status": "PAID", "amount": "BUY="}  # 1350 in base64; the schema has the scale
    schema = json.loads(received[0].value_with_schema() or b"")["schema"]
    [row] = [field for field in schema["fields"] if field["field"] == "after"]
    assert [field.get("parameters", {}).get("scale") for field in row["fields"]] == [None, None, "2"]
    assert received[0].offset["lsn"] == json.loads(received[0].value or b"")["source"]["lsn"]


def test_a_run_closes_before_it_has_begun_and_in_its_handler(database: str, jars: Path, tmp_path: Path) -> None:
    create_table(database, 1)
    engine = DebeziumEngine(connector(database), store=FileStore(tmp_path / "state"), jars=jars)
    engine.close()
    counts = []

    def close(events: Sequence[ChangeEvent]) -> None:
        counts.append(len(events))
        engine.close()

    engine.run(close)
    assert counts == [1]


def read_batches(process: EngineProcess, count: int) -> list[RecordBatch]:
    """Reads until there are this many records, and acknowledges nothing."""
    batches: list[RecordBatch] = []
    deadline = time.monotonic() + PATIENCE_S
    while sum(map(len, batches)) < count:
        assert time.monotonic() < deadline, "the records do not come"
        received = process.read(1)
        assert not isinstance(received, End)
        if isinstance(received, RecordBatch):
            batches.append(received)
    return batches


def nbytes(batch: RecordBatch) -> int:
    return len(batch.values.data) + len(batch.offsets.data)


def test_bytes_in_flight_are_limited_and_a_transaction_continues_after_any_row(database: str, jars: Path) -> None:
    create_table(database, 1)
    launch = Launch(properties=connector(database), jars=jars, in_flight_bytes=100_000, frame_bytes=20_000)
    process = EngineProcess(launch, {}, [], ignore)
    try:
        snapshot = read_batches(process, 1)[0]
        process.acknowledge(snapshot.last)
        with psycopg.connect(database) as connection:
            connection.execute("INSERT INTO orders SELECT i, 'NEW', i FROM generate_series(2, 2001) AS i")
        batches: list[RecordBatch] = []
        while sum(map(nbytes, batches)) <= 50_000:
            batches += read_batches(process, 1)
        while isinstance(batch := process.read(3), RecordBatch):
            batches.append(batch)
        assert max(map(nbytes, batches)) < 25_000
        assert sum(map(nbytes, batches)) < 100_000
        # Frames end at different rows in each run, so the test resumes from the middle of the longest frame.
        longest = max(batches, key=len)
        half = len(longest) // 2
        process.acknowledge(batches[-1].last)
        assert len(read_batches(process, 1)) == 1
    finally:
        process.kill()

    resumed = EngineProcess(launch, longest.last_offsets(half), [], ignore)
    try:
        keys = [key for batch in read_batches(resumed, 3) for key in batch.keys]
        assert keys[:3] == list(longest.keys)[half : half + 3]
    finally:
        resumed.close()
        resumed.close()


def test_the_process_ends_with_its_parent_although_its_input_stays_open(jars: Path) -> None:
    """The test holds the pipe's other end open, as if another child of the parent had inherited the pipe."""
    command = Launch(properties={}, jars=jars).command(find_java())
    parent = ["sh", "-c", 'exec 3<&0; "$@" <&3 3<&- & exec sleep 1000', "sh", *command]
    with subprocess.Popen(parent, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.read(8)[4:5] == b"H"
        process.kill()
        process.stdout.read()  # until Java has ended


ROUNDS = 4
ROWS_MIN = 1000


def test_kills_lose_nothing_and_repeat_nothing_if_events_and_offsets_are_one_commit(
    database: str, jars: Path, tmp_path: Path, seed: int
) -> None:
    draw = random.Random(seed)
    create_table(database)
    applied, log = tmp_path / "applied.sqlite", tmp_path / "log"
    arguments = (json.dumps(connector(database, max_batch_size="64")), str(jars), str(applied))
    inserted = 0

    def count() -> int:
        with sqlite3.connect(applied) as connection:
            table_exists = connection.execute(
                "SELECT count(*) FROM sqlite_master WHERE name = 'events'"
            ).fetchone() != (0,)
            return int(connection.execute("SELECT count(*) FROM events").fetchone()[0]) if table_exists else 0

    def wait_for(events: int) -> None:
        until(lambda: count() >= events, f"events are missing: {log.read_text('utf-8')}")

    for number in range(ROUNDS + 1):
        with program(*arguments, log=log) as process:
            if number == 0:
                until(lambda: _streams(database), f"no start: {log.read_text('utf-8')}")
            begun = count()
            inserted = _insert(database, inserted, draw.randrange(ROWS_MIN, 2 * ROWS_MIN))
            wait_for(begun + 1)
            java = java_of(process.pid)
            assert java is not None
            if number == ROUNDS:
                wait_for(inserted)
                break
            time.sleep(draw.random() * 0.1)
            killed = [java, process.pid][number % 2]
            kill(killed)
            until(partial(has_ended, java), "Java outlives its parent")
            if killed == java:
                wait_for(inserted)  # the program runs the engine again
    with sqlite3.connect(applied) as connection_to_applied:
        events = connection_to_applied.execute("SELECT op, row FROM events ORDER BY id").fetchall()
    assert events == [("c", row) for row in range(1, inserted + 1)]
    assert "the Debezium process was killed (SIGKILL)" in log.read_text("utf-8")


def _insert(dsn: str, before: int, rows: int) -> int:
    """Inserts this many rows in two transactions, and returns the new number of rows in the table."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for first, last in ((before + 1, before + rows // 2), (before + rows // 2 + 1, before + rows)):
            series = "SELECT i, 'NEW', i FROM generate_series(%s::int, %s::int) AS i"
            connection.execute(f"INSERT INTO orders {series}", [first, last])
    return before + rows


def _streams(dsn: str) -> bool:
    """Returns whether the connector has taken its slot."""
    with psycopg.connect(dsn) as connection:
        query = "SELECT count(*) FROM pg_replication_slots WHERE active AND database = current_database()"
        return connection.execute(query).fetchone() == (1,)


def refused(properties: dict[str, str], jars: Path, state: Path, *, heap_mib: int = 256) -> ChangelogError:
    """Runs an engine that must fail, and returns its error."""
    engine = DebeziumEngine(properties, store=FileStore(state), jars=jars, heap_mib=heap_mib)
    with pytest.raises(ChangelogError) as error:
        engine.run(lambda _events: None)
    assert "\n" not in str(error.value)
    return error.value


def test_an_error_of_debezium_is_one_line(database: str, jars: Path, tmp_path: Path) -> None:
    good = connector(database)
    error = refused({**good, "snapshot.mode": "sometimes"}, jars, tmp_path)
    assert (error.kind, "'snapshot.mode'" in error.message) == (Kind.USAGE, True), error.message
    error = refused({**good, "connector.class": "com.example.Nothing"}, jars, tmp_path)
    assert (error.kind, "class com.example.Nothing is not in the jars" in error.message) == (Kind.PRECONDITION, True)
    error = refused({**good, "database.hostname": "127.0.0.1", "database.port": "1"}, jars, tmp_path)
    assert (error.kind, "Connection to 127.0.0.1:1 refused" in error.message) == (Kind.CONNECTION, True), error.message


def test_a_heap_that_is_too_small_is_named(database: str, jars: Path, tmp_path: Path) -> None:
    create_table(database, 1)
    with psycopg.connect(database) as connection:
        connection.execute("UPDATE orders SET status = repeat('x', 30_000_000)")
    error = refused(connector(database), jars, tmp_path, heap_mib=32)
    assert error.kind is Kind.LIMIT, error.message
    assert "heap of 32 MiB" in error.message
