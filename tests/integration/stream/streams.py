"""Opens PostgreSQL replication connections and streams for tests, and reads frames from the streams.

A frame is a message of the replication protocol: a header of 25 bytes, and then one message of `pgoutput`.
"""

import contextlib
import struct
import threading
import time
from collections.abc import Callable, Iterator

import psycopg

from changelog.connectors.sources.postgres.stream.pump import Stream
from changelog.connectors.sources.postgres.stream.replication import ReplicationConnection
from changelog.connectors.sources.postgres.values.lsn import parse_lsn
from tests.patience import PATIENCE_S

OPTIONS = {"proto_version": "1", "publication_names": '"p"', "messages": "true"}
COMMIT = struct.Struct("!x8x8x8xcBQQq")


@contextlib.contextmanager
def connected(dsn: str) -> Iterator[ReplicationConnection]:
    connection = ReplicationConnection.connect(dsn)
    try:
        yield connection
    finally:
        connection.close()


def stream(dsn: str, slot: str, **options: int) -> Stream:
    return Stream(ReplicationConnection.connect(dsn), slot=slot, start_lsn=0, options=OPTIONS, **options)


def execute(dsn: str, *statements: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def ask(dsn: str, query: str) -> object:
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute(query.encode()).fetchone()
        return row and row[0]


def confirmed(dsn: str, slot: str) -> int:
    lsn = ask(dsn, f"SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = '{slot}'")
    return parse_lsn(str(lsn))


def take_until(open_stream: Stream, enough: Callable[[list[bytes]], bool]) -> list[bytes]:
    frames: list[bytes] = []
    deadline = time.monotonic() + PATIENCE_S
    while not enough(frames):
        assert time.monotonic() < deadline, f"the expected frames did not arrive, only {kinds(frames)[-50:]}"
        frames += open_stream.take(0.1)
    return frames


def take_first(open_stream: Stream, *, gather_s: float, gather_frames: int) -> list[bytes]:
    """Returns the first frames of the stream. A call of `take` ends without frames when a keepalive arrives. So this
    function calls `take` until it returns frames.
    """
    deadline = time.monotonic() + PATIENCE_S
    while not (frames := open_stream.take(30, gather_s, gather_frames)):
        assert time.monotonic() < deadline
    return frames


def kinds(frames: list[bytes]) -> str:
    return "".join(chr(frame[25]) for frame in frames)


def commits(count: int) -> Callable[[list[bytes]], bool]:
    return lambda frames: kinds(frames).count("C") >= count


def end_of_commit(frame: bytes) -> int:
    return int(COMMIT.unpack(frame)[3])


def cpu_s(slot: str) -> float:
    """Returns the CPU time of this thread and of the thread that receives the slot's stream.

    The CPU time of the whole process would include threads that are left over from earlier tests.
    """
    [pump] = [thread for thread in threading.enumerate() if thread.name == f"stream-{slot}"]
    assert pump.ident is not None
    return time.thread_time() + time.clock_gettime(time.pthread_getcpuclockid(pump.ident))


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
