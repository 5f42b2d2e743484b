"""Tests the embedded Debezium on a PostgreSQL database: its events, restarts, back-pressure, kills and errors."""

import json
import os
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
    """Ignores a line of Debezium's log."""


class HandlerError(Exception):
    """The error that a handler of these tests raises."""


def test_a_handler_receives_snapshot_and_stream_and_gets_a_failed_batch_again(
    database: str, jars: Path, tmp_path: Path
) -> None:
    create_table(database, 3)
    engine = DebeziumEngine(connector(database), store=FileStore(tmp_path / "state"), jars=jars)
    received: list[ChangeEvent] = []

    def fail_at_the_stream(events: Sequence[ChangeEvent]) -> None:
        if b'"op":"r"' not in (events[0].value or b""):
            raise HandlerError
        received.extend(events)
        if len(received) == 3:
            with psycopg.connect(database) as connection:
                connection.execute("UPDATE orders SET amount = 13.5, status = 'PAID' WHERE id = 1")
                connection.execute("UPDATE orders SET id = 7 WHERE id = 2")
                connection.execute("DELETE FROM orders WHERE id = 3")

    with pytest.raises(HandlerError):
        engine.run(fail_at_the_stream)
    assert [event.decoded_key() for event in received] == [{"id": 1}, {"id": 2}, {"id": 3}]
    assert {event.topic for event in received} == {"shop.public.orders"}

    received.clear()

    def close_after_six() -> None:
        until(lambda: len(received) >= 6, "the handler does not receive six events")
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


def test_close_has_no_effect_before_a_run_and_ends_a_run_whose_handler_calls_it(
    database: str, jars: Path, tmp_path: Path
) -> None:
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
    """Reads batches until they have at least `count` records. Acknowledges none of them."""
    batches: list[RecordBatch] = []
    deadline = time.monotonic() + PATIENCE_S
    while sum(map(len, batches)) < count:
        assert time.monotonic() < deadline, "the records do not arrive"
        frame = process.read(1)
        assert not isinstance(frame, End)
        if isinstance(frame, RecordBatch):
            batches.append(frame)
    return batches


def nbytes(batch: RecordBatch) -> int:
    return len(batch.values.data) + len(batch.offsets.data)


def test_bytes_in_flight_are_limited_and_a_run_can_resume_within_a_transaction(database: str, jars: Path) -> None:
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
        # Where the batches end differs from run to run. The longest one surely has enough rows after its middle.
        longest_batch = max(batches, key=len)
        middle = len(longest_batch) // 2
        process.acknowledge(batches[-1].last)
        assert len(read_batches(process, 1)) == 1
    finally:
        process.kill()

    second_process = EngineProcess(launch, longest_batch.last_offsets(middle), [], ignore)
    try:
        keys = [key for batch in read_batches(second_process, 3) for key in batch.keys]
        assert keys[:3] == list(longest_batch.keys)[middle : middle + 3]
    finally:
        second_process.close()
        second_process.close()


def test_the_process_ends_with_its_parent_although_its_input_stays_open(jars: Path) -> None:
    """The test keeps the other end of the input pipe open, as if another child of the parent had inherited it."""
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
    generator = random.Random(seed)
    create_table(database)
    store, log = tmp_path / "store.sqlite", tmp_path / "log"
    arguments = (json.dumps(connector(database, max_batch_size="64")), str(jars), str(store))
    row_count = 0

    def count() -> int:
        with sqlite3.connect(store) as connection:
            table_exists = connection.execute(
                "SELECT count(*) FROM sqlite_master WHERE name = 'events'"
            ).fetchone() != (0,)
            return int(connection.execute("SELECT count(*) FROM events").fetchone()[0]) if table_exists else 0

    def wait_for(events: int) -> None:
        until(lambda: count() >= events, f"events are missing: {log.read_text('utf-8')}")

    for number in range(ROUNDS + 1):
        with program(*arguments, log=log) as process:
            if number == 0:
                until(lambda: _streams(database), f"the engine does not start: {log.read_text('utf-8')}")
            earlier_count = count()
            row_count = _insert(database, row_count, generator.randrange(ROWS_MIN, 2 * ROWS_MIN))
            wait_for(earlier_count + 1)
            java = java_of(process.pid)
            assert java is not None
            if number == ROUNDS:
                wait_for(row_count)
                break
            time.sleep(generator.random() * 0.1)
            victim = [java, process.pid][number % 2]
            kill(victim)
            until(partial(has_ended, java), "Java outlives its parent")
            if victim == java:
                wait_for(row_count)  # the program runs the engine again
    with sqlite3.connect(store) as store_connection:
        events = store_connection.execute("SELECT op, row FROM events ORDER BY id").fetchall()
    assert events == [("c", row) for row in range(1, row_count + 1)]
    assert "the Debezium process was killed (SIGKILL)" in log.read_text("utf-8")


def _insert(dsn: str, before: int, rows: int) -> int:
    """Adds `rows` rows in two transactions to a table with `before` rows. Returns the new number of rows."""
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


def engine_error(properties: dict[str, str], jars: Path, state: Path, *, heap_mib: int = 256) -> ChangelogError:
    """Runs an engine that must fail. Checks that its error is one line, and returns the error."""
    engine = DebeziumEngine(properties, store=FileStore(state), jars=jars, heap_mib=heap_mib)
    with pytest.raises(ChangelogError) as error:
        engine.run(lambda _events: None)
    assert "\n" not in str(error.value)
    return error.value


def test_an_error_of_debezium_is_one_line(database: str, jars: Path, tmp_path: Path) -> None:
    properties = connector(database)
    error = engine_error({**properties, "snapshot.mode": "sometimes"}, jars, tmp_path)
    assert (error.kind, "'snapshot.mode'" in error.message) == (Kind.USAGE, True), error.message
    error = engine_error({**properties, "connector.class": "com.example.Nothing"}, jars, tmp_path)
    assert (error.kind, "class com.example.Nothing is not in the jars" in error.message) == (Kind.PRECONDITION, True)
    error = engine_error({**properties, "database.hostname": "127.0.0.1", "database.port": "1"}, jars, tmp_path)
    assert (error.kind, "Connection to 127.0.0.1:1 refused" in error.message) == (Kind.CONNECTION, True), error.message


def test_options_of_java_from_the_environment_are_not_logged(jars: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Java prints these options on its standard error, and the options may hold passwords."""
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"{os.environ['JAVA_TOOL_OPTIONS']} -Dpassword=tool-secret")
    monkeypatch.setenv("JDK_JAVA_OPTIONS", "-Dpassword=launcher-secret")
    lines: list[LogLine] = []
    process = EngineProcess(
        Launch(properties={"connector.class": "com.example.Nothing"}, jars=jars), {}, [], lines.append
    )
    try:
        with pytest.raises(ChangelogError) as error:
            read_until_it_ends(process)
    finally:
        process.close()
    assert "secret" not in str([error.value, *lines])


def read_until_it_ends(process: EngineProcess) -> None:
    while not isinstance(process.read(PATIENCE_S), End):
        pass


def test_a_heap_that_is_too_small_is_named(database: str, jars: Path, tmp_path: Path) -> None:
    create_table(database, 1)
    with psycopg.connect(database) as connection:
        connection.execute("UPDATE orders SET status = repeat('x', 30_000_000)")
    error = engine_error(connector(database), jars, tmp_path, heap_mib=32)
    assert error.kind is Kind.LIMIT, error.message
    assert "heap of 32 MiB" in error.message
