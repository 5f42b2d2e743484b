"""Tests streams over a working connection: in which order frames come, how a reader confirms them and waits for several
of them, and what happens if the reader is slow.
"""

import threading
import time

import psycopg
from psycopg.conninfo import make_conninfo

from changelog.connectors.sources.postgres.values.lsn import parse_lsn
from tests.integration.stream.streams import (
    ask,
    commits,
    confirmed,
    cpu_s,
    end_of_commit,
    execute,
    kinds,
    stream,
    take_first,
    take_until,
    wait_for,
)


def test_frames_come_in_order_and_are_confirmed(dsn: str, slot: str) -> None:
    before = confirmed(dsn, slot)
    with stream(dsn, slot) as open_stream:
        for number in range(3):
            execute(dsn, f"INSERT INTO t VALUES ({number})")
        frames = take_until(open_stream, commits(3))
        assert kinds(frames) == "BRICBICBIC"
        assert all(frame[:1] == b"w" for frame in frames)
        assert confirmed(dsn, slot) == before
        end = end_of_commit(frames[6])  # the second of three transactions
        open_stream.confirm(end)
        open_stream.confirm(end - 8)  # the confirmed position never goes back
    assert confirmed(dsn, slot) == end
    with stream(dsn, slot) as open_stream:
        assert kinds(take_until(open_stream, commits(1))) == "BRIC"


def test_a_slot_is_free_once_its_stream_is_closed(dsn: str, slot: str) -> None:
    """Another program can then read or drop the slot at once."""
    active = f"SELECT active FROM pg_replication_slots WHERE slot_name = '{slot}'"
    with psycopg.connect(dsn, autocommit=True) as connection:
        for _ in range(10):
            stream(dsn, slot).close()
            assert connection.execute(active.encode()).fetchone() == (False,)


def test_the_end_of_the_log_is_known_even_if_no_frames_come(dsn: str, slot: str) -> None:
    with stream(dsn, slot, status_interval_s=1) as open_stream:
        execute(dsn, "INSERT INTO t VALUES (1)", "CREATE TABLE other AS SELECT 1 AS a")
        end = parse_lsn(str(ask(dsn, "SELECT pg_current_wal_lsn()::text")))
        frames = take_until(open_stream, lambda _: open_stream.wal_end >= end)
        assert kinds(frames).startswith("BRIC")
        open_stream.confirm(open_stream.wal_end)
        wait_for(lambda: confirmed(dsn, slot) >= end)


def test_the_end_of_the_log_is_not_reported_before_a_waiting_frame(dsn: str, slot: str) -> None:
    with stream(dsn, slot, status_interval_s=1) as open_stream:
        execute(dsn, "INSERT INTO t VALUES (1)")
        time.sleep(1.5)
        assert open_stream.wal_end == 0
        frames = take_until(open_stream, commits(1))
        take_until(open_stream, lambda _: open_stream.wal_end >= end_of_commit(frames[-1]))


def test_a_consumer_that_stops_taking_frames_keeps_its_connection(dsn: str, slot: str) -> None:
    dsn = make_conninfo(dsn, options="-c wal_sender_timeout=4s")
    with stream(dsn, slot, max_bytes=100_000) as open_stream:
        execute(dsn, "INSERT INTO t SELECT g, repeat('x', 500) FROM generate_series(1, 40000) AS g")
        pid = ask(dsn, f"SELECT active_pid FROM pg_replication_slots WHERE slot_name = '{slot}'")
        frames = take_until(open_stream, lambda frames: len(frames) > 0)
        time.sleep(6)
        first = open_stream.take(0)
        assert sum(map(len, first)) < 100_000 + 2 * 1024 * 1024
        frames += first + take_until(open_stream, commits(1))
        assert len(frames) == 40_003
        assert ask(dsn, f"SELECT active_pid FROM pg_replication_slots WHERE slot_name = '{slot}'") == pid


def test_frames_are_gathered_until_there_are_enough(dsn: str, slot: str) -> None:
    with stream(dsn, slot) as open_stream:
        execute(dsn, "INSERT INTO t VALUES (1)")
        writer = threading.Timer(0.5, execute, [dsn, "INSERT INTO t VALUES (2)"])
        writer.start()
        frames = take_first(open_stream, gather_s=30, gather_frames=7)
        writer.join()
        assert kinds(frames) == "BRICBIC"


def test_gathering_ends_after_gather_s(dsn: str, slot: str) -> None:
    with stream(dsn, slot) as open_stream:
        execute(dsn, "INSERT INTO t VALUES (1)")
        frames = take_first(open_stream, gather_s=1.0, gather_frames=1000)
        assert kinds(frames) == "BRIC"


def test_an_idle_stream_uses_no_cpu(dsn: str, slot: str) -> None:
    with stream(dsn, slot) as open_stream:
        take_until(open_stream, lambda _: open_stream.wal_end > 0)
        open_stream.confirm(open_stream.wal_end)
        before = cpu_s(slot)
        assert open_stream.take(2) == []
        assert cpu_s(slot) - before < 0.1


def test_a_full_queue_uses_no_cpu(dsn: str, slot: str) -> None:
    with stream(dsn, slot, max_bytes=1) as open_stream:
        execute(dsn, "INSERT INTO t SELECT g, repeat('x', 500) FROM generate_series(1, 40000) AS g")
        time.sleep(1)
        before = cpu_s(slot)
        time.sleep(2)
        assert cpu_s(slot) - before < 0.1
        assert len(take_until(open_stream, commits(1))) == 40_003
