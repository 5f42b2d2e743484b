"""Tests how a stream ends if its connection is cut or falls silent, its server stops, or its publication is dropped."""

import contextlib
import socket
import threading
import time

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from changelog.connectors.servers.postgres import temporary_server
from changelog.connectors.sources.postgres.values.lsn import parse_lsn
from changelog.envelope.errors import ChangelogError, Kind
from tests.integration.stream.streams import (
    ask,
    commits,
    confirmed,
    connected,
    end_of_commit,
    execute,
    kinds,
    stream,
    take_until,
    wait_for,
)
from tests.patience import PATIENCE_S
from tests.servers import SETTINGS, fresh_database


class Link:
    """A TCP proxy in front of the server of `dsn`.

    It can be cut. It can also become deaf: then it accepts all data and forwards nothing, not even the end of a
    connection.
    """

    def __init__(self, dsn: str) -> None:
        self._target = ("127.0.0.1", int(str(conninfo_to_dict(dsn)["port"])))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._ends: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self.deaf = False
        self.dsn = make_conninfo(dsn, port=self._listener.getsockname()[1])
        self._threads[0].start()

    def __enter__(self) -> "Link":
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join()

    def cut(self) -> None:
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                server = socket.create_connection(self._target)
                self._ends += [client, server]
                for pair in ((client, server), (server, client)):
                    self._threads.append(threading.Thread(target=self._copy, args=pair))
                    self._threads[-1].start()

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        with source, contextlib.suppress(OSError):
            while data := source.recv(65536):
                if not self.deaf:
                    target.sendall(data)
        if not self.deaf:
            with contextlib.suppress(OSError):
                target.shutdown(socket.SHUT_RDWR)


def test_a_cut_link_is_an_error_after_the_last_frame(dsn: str, slot: str) -> None:
    with Link(dsn) as link, stream(link.dsn, slot) as open_stream:
        execute(dsn, "INSERT INTO t VALUES (1)")
        frames = take_until(open_stream, commits(1))
        assert kinds(frames) == "BRIC"
        link.cut()
        with pytest.raises(ChangelogError, match="connection to PostgreSQL broke") as raised:
            take_until(open_stream, lambda _: False)
        assert raised.value.kind is Kind.CONNECTION
        assert "\n" not in str(raised.value)


def test_a_cut_link_is_noticed_while_the_queue_is_full(dsn: str, slot: str) -> None:
    with Link(dsn) as link, stream(link.dsn, slot, max_bytes=1, status_interval_s=1) as open_stream:
        execute(dsn, "INSERT INTO t SELECT g, repeat('x', 500) FROM generate_series(1, 40000) AS g")
        time.sleep(0.5)
        link.cut()
        before = time.process_time()
        time.sleep(2)
        assert time.process_time() - before < 0.2
        with pytest.raises(ChangelogError) as raised:
            take_until(open_stream, lambda _: False)
        assert raised.value.kind is Kind.CONNECTION


def test_a_deaf_link_times_out(dsn: str, slot: str) -> None:
    dsn = make_conninfo(dsn, options="-c wal_sender_timeout=3s")
    with Link(dsn) as link, stream(link.dsn, slot, answer_s=1) as open_stream:
        take_until(open_stream, lambda _: open_stream.wal_end > 0)
        link.deaf = True
        with pytest.raises(ChangelogError, match="silent for 6 s") as raised:
            take_until(open_stream, lambda _: False)
        assert raised.value.kind is Kind.CONNECTION


def test_a_session_that_the_server_ends_is_an_error(dsn: str, slot: str) -> None:
    with stream(dsn, slot) as open_stream:
        execute(dsn, f"SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{slot}'")
        with pytest.raises(ChangelogError, match="terminating connection") as raised:
            take_until(open_stream, lambda _: False)
        assert raised.value.kind is Kind.CONNECTION


def test_a_missing_publication_ends_the_stream(dsn: str, slot: str) -> None:
    execute(dsn, "DROP PUBLICATION p")
    execute(dsn, "INSERT INTO t VALUES (1)")
    after = parse_lsn(str(ask(dsn, "SELECT pg_current_wal_insert_lsn()::text")))
    with stream(dsn, slot) as open_stream:
        with pytest.raises(ChangelogError, match=r'publication did not exist .*"p"') as raised:
            take_until(open_stream, lambda _: False)
        assert raised.value.kind is Kind.GAP
        assert open_stream.wal_end < after, "the stream has passed the row without reading it"


def test_a_publication_dropped_during_a_stream_ends_the_stream(dsn: str, slot: str) -> None:
    with stream(dsn, slot) as open_stream:
        execute(dsn, "INSERT INTO t VALUES (1)")
        take_until(open_stream, commits(1))
        execute(dsn, "DROP PUBLICATION p", "INSERT INTO t VALUES (2)")
        with pytest.raises(ChangelogError, match=r'publication did not exist .*"p"') as raised:
            take_until(open_stream, lambda _: False)
        assert raised.value.kind is Kind.GAP


def test_a_stream_can_be_closed_in_the_middle_of_a_transaction(dsn: str, slot: str) -> None:
    execute(dsn, "INSERT INTO t SELECT g, repeat('x', 500) FROM generate_series(1, 100000) AS g")
    before = confirmed(dsn, slot)
    open_stream = stream(dsn, slot, max_bytes=100_000)
    take_until(open_stream, lambda frames: len(frames) > 0)
    start = time.monotonic()
    open_stream.close()
    open_stream.close()
    open_stream.ask()  # must not write to the waker's closed file descriptor: another file may have its number now
    assert time.monotonic() - start < 30  # `close` does not wait for the server's data
    with pytest.raises(ChangelogError, match="closed"):
        take_until(open_stream, lambda _: False)
    wait_for(lambda: ask(dsn, f"SELECT active FROM pg_replication_slots WHERE slot_name = '{slot}'") is False)
    assert confirmed(dsn, slot) == before
    with stream(dsn, slot) as new_stream:
        assert len(take_until(new_stream, commits(1))) == 100_003


@pytest.mark.usefixtures("starts_servers")
def test_a_server_that_shuts_down_gets_the_last_confirmation() -> None:
    with temporary_server(settings=SETTINGS) as server, fresh_database(server) as dsn:
        execute(dsn, "CREATE TABLE t (id int PRIMARY KEY, x text)", "CREATE PUBLICATION p FOR TABLE t")
        with connected(dsn) as connection:
            connection.create_slot("s")
        with stream(dsn, "s") as open_stream:
            execute(dsn, "INSERT INTO t VALUES (1)", "INSERT INTO t VALUES (2)")
            open_stream.confirm(end_of_commit(take_until(open_stream, commits(2))[3]))
            stopper = threading.Thread(target=server.stop)
            stopper.start()
            before = time.process_time()
            time.sleep(1)
            assert stopper.is_alive()  # the server waits until everything that it sent is confirmed
            assert time.process_time() - before < 0.5
            with contextlib.suppress(ChangelogError):
                while stopper.is_alive():
                    open_stream.take(0.1)
                    open_stream.confirm(open_stream.wal_end)
            stopper.join(PATIENCE_S)
            assert not stopper.is_alive()
