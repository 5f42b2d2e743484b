"""The replication connection and the pumped stream, against real servers and broken links."""

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from changelog.connectors.servers.postgres import Server, temporary_server
from changelog.connectors.sources.postgres.stream.pump import Stream
from changelog.connectors.sources.postgres.stream.replication import ReplicationConnection
from changelog.connectors.sources.postgres.values.lsn import parse_lsn
from changelog.envelope.errors import ChangelogError, Kind
from tests.patience import PATIENCE_S
from tests.servers import SETTINGS, fresh_database, postgres_bin

OPTIONS = {"proto_version": "1", "publication_names": '"p"', "messages": "true"}
COMMIT = struct.Struct("!x8x8x8xcBQQq")


@pytest.fixture(params=["18", "15"])
def dsn(request: pytest.FixtureRequest, starts_servers: None) -> str:
    """A fresh database with a table `t` and a publication `p`, on either server."""
    found = request.getfixturevalue("database" if request.param == "18" else "database_15")
    assert isinstance(found, str)
    execute(found, "CREATE TABLE t (id int PRIMARY KEY, x text)", "CREATE PUBLICATION p FOR TABLE t")
    return found


@pytest.fixture
def slot(dsn: str) -> str:
    """A slot of its own name for `dsn`."""
    name = f"slot_{conninfo_to_dict(dsn)['dbname']}"
    with connected(dsn) as connection:
        assert connection.create_slot(name) > 0
    return name


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
    found = ask(dsn, f"SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = '{slot}'")
    return parse_lsn(str(found))


def take_until(open_stream: Stream, enough: Callable[[list[bytes]], bool]) -> list[bytes]:
    frames: list[bytes] = []
    deadline = time.monotonic() + PATIENCE_S
    while not enough(frames):
        assert time.monotonic() < deadline, f"only {kinds(frames)[-50:]}"
        frames += open_stream.take(0.1)
    return frames


def take_first(open_stream: Stream, *, gather_s: float, gather_frames: int) -> list[bytes]:
    """The first frames that are taken at once; a keepalive may end a wait without any."""
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


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


class Link:
    """A TCP proxy before `dsn`'s server that can be cut, or go deaf: accept all and pass nothing on."""

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
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)


def test_identify_system(dsn: str) -> None:
    with connected(dsn) as connection:
        system = connection.identify_system()
        assert (system.timeline, connection.timeline_history(1)) == (1, ())
        assert system.system_identifier == ask(dsn, "SELECT system_identifier::text FROM pg_control_system()")
        assert system.wal_end > 0


def test_session_settings_are_made(dsn: str) -> None:
    settings = {"DateStyle": "ISO, MDY", "application_name": "it's ours"}
    connection = ReplicationConnection.connect(dsn, settings=settings)
    assert connection.query("SHOW application_name") == [("it's ours",)]
    connection.close()


@pytest.mark.usefixtures("starts_servers")
def test_timeline_history_after_a_promotion() -> None:
    for programs in (None, postgres_bin(15)):
        with temporary_server(programs, settings=SETTINGS) as server:
            server.stop()
            (server.data_dir / "standby.signal").touch()
            server.start()
            execute(server.dsn(), "SELECT pg_promote(true, 60)")
            with connected(server.dsn()) as connection:
                wait_for(lambda: connection.identify_system().timeline == 2)
                [(timeline, switch)] = connection.timeline_history(2)
                assert timeline == 1
                assert 0 < switch <= connection.identify_system().wal_end


def test_frames_come_in_order_and_are_confirmed(dsn: str, slot: str) -> None:
    before = confirmed(dsn, slot)
    with stream(dsn, slot) as open_stream:
        for number in range(3):
            execute(dsn, f"INSERT INTO t VALUES ({number})")
        frames = take_until(open_stream, commits(3))
        assert kinds(frames) == "BRICBICBIC"
        assert all(frame[:1] == b"w" for frame in frames)
        assert confirmed(dsn, slot) == before
        end = end_of_commit(frames[6])  # the second of three
        open_stream.confirm(end)
        open_stream.confirm(end - 8)  # never goes back
    assert confirmed(dsn, slot) == end
    with stream(dsn, slot) as open_stream:
        assert kinds(take_until(open_stream, commits(1))) == "BRIC"


def test_the_end_of_the_log_is_known_when_idle(dsn: str, slot: str) -> None:
    with stream(dsn, slot, status_interval_s=1) as open_stream:
        execute(dsn, "INSERT INTO t VALUES (1)", "CREATE TABLE other AS SELECT 1 AS a")
        end = parse_lsn(str(ask(dsn, "SELECT pg_current_wal_lsn()::text")))
        frames = take_until(open_stream, lambda _: open_stream.wal_end >= end)
        assert kinds(frames).startswith("BRIC")
        open_stream.confirm(open_stream.wal_end)
        wait_for(lambda: confirmed(dsn, slot) >= end)


def test_a_frame_that_waits_keeps_the_end_of_the_log_back(dsn: str, slot: str) -> None:
    with stream(dsn, slot, status_interval_s=1) as open_stream:
        execute(dsn, "INSERT INTO t VALUES (1)")
        time.sleep(1.5)
        assert open_stream.wal_end == 0
        frames = take_until(open_stream, commits(1))
        assert open_stream.wal_end >= end_of_commit(frames[-1])


def test_a_consumer_that_stops_taking_keeps_its_connection(dsn: str, slot: str) -> None:
    dsn = make_conninfo(dsn, options="-c wal_sender_timeout=2s")
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


def test_frames_that_waited_long_enough_are_not_gathered_for(dsn: str, slot: str) -> None:
    with stream(dsn, slot) as open_stream:
        execute(dsn, "INSERT INTO t VALUES (1)")
        frames = take_first(open_stream, gather_s=1.0, gather_frames=1000)
        assert kinds(frames) == "BRIC"


def test_an_idle_stream_costs_nothing(dsn: str, slot: str) -> None:
    with stream(dsn, slot) as open_stream:
        take_until(open_stream, lambda _: open_stream.wal_end > 0)
        open_stream.confirm(open_stream.wal_end)
        before = time.process_time()
        assert open_stream.take(2) == []
        assert time.process_time() - before < 0.1


def test_a_full_queue_costs_nothing(dsn: str, slot: str) -> None:
    with stream(dsn, slot, max_bytes=1) as open_stream:
        execute(dsn, "INSERT INTO t SELECT g, repeat('x', 500) FROM generate_series(1, 40000) AS g")
        time.sleep(1)
        before = time.process_time()
        time.sleep(2)
        assert time.process_time() - before < 0.1
        assert len(take_until(open_stream, commits(1))) == 40_003


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


def test_a_deaf_link_is_given_up(dsn: str, slot: str) -> None:
    dsn = make_conninfo(dsn, options="-c wal_sender_timeout=1s")
    with Link(dsn) as link, stream(link.dsn, slot, answer_s=1) as open_stream:
        take_until(open_stream, lambda _: open_stream.wal_end > 0)
        link.deaf = True
        with pytest.raises(ChangelogError, match=r"silent for 2 s|PostgreSQL broke") as raised:
            take_until(open_stream, lambda _: False)
        assert raised.value.kind is Kind.CONNECTION


def test_a_session_that_the_server_ends(dsn: str, slot: str) -> None:
    with stream(dsn, slot) as open_stream:
        execute(dsn, f"SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{slot}'")
        with pytest.raises(ChangelogError, match="terminating connection") as raised:
            take_until(open_stream, lambda _: False)
        assert raised.value.kind is Kind.CONNECTION


def test_a_missing_publication_ends_the_stream(dsn: str, slot: str) -> None:
    execute(dsn, "DROP PUBLICATION p")
    before = parse_lsn(str(ask(dsn, "SELECT pg_current_wal_insert_lsn()::text")))
    execute(dsn, "INSERT INTO t VALUES (1)")
    with stream(dsn, slot) as open_stream:
        with pytest.raises(ChangelogError, match=r'publication did not exist .*"p"') as raised:
            take_until(open_stream, lambda _: False)
        assert raised.value.kind is Kind.GAP
        assert open_stream.wal_end <= before


def test_a_publication_dropped_in_mid_stream_ends_it(dsn: str, slot: str) -> None:
    with stream(dsn, slot) as open_stream:
        execute(dsn, "INSERT INTO t VALUES (1)")
        take_until(open_stream, commits(1))
        execute(dsn, "DROP PUBLICATION p", "INSERT INTO t VALUES (2)")
        with pytest.raises(ChangelogError, match=r'publication did not exist .*"p"') as raised:
            take_until(open_stream, lambda _: False)
        assert raised.value.kind is Kind.GAP


def test_close_in_the_middle_of_a_transaction(dsn: str, slot: str) -> None:
    execute(dsn, "INSERT INTO t SELECT g, repeat('x', 500) FROM generate_series(1, 100000) AS g")
    before = confirmed(dsn, slot)
    open_stream = stream(dsn, slot, max_bytes=100_000)
    take_until(open_stream, lambda frames: len(frames) > 0)
    start = time.monotonic()
    open_stream.close()
    open_stream.close()
    open_stream.ask()  # which would write to whatever file has the waker's number by now
    assert time.monotonic() - start < 30  # it waits for nothing that the server sends
    with pytest.raises(ChangelogError, match="closed"):
        take_until(open_stream, lambda _: False)
    wait_for(lambda: ask(dsn, f"SELECT active FROM pg_replication_slots WHERE slot_name = '{slot}'") is False)
    assert confirmed(dsn, slot) == before
    with stream(dsn, slot) as again:
        assert len(take_until(again, commits(1))) == 100_003


def test_a_slot_that_is_in_use_names_its_reader(dsn: str, slot: str) -> None:
    with stream(make_conninfo(dsn, application_name="the other one"), slot):
        with pytest.raises(ChangelogError, match=rf"slot {slot} is read by process \d+ \(the other one, ") as raised:
            stream(dsn, slot)
        assert raised.value.kind is Kind.IN_USE
        with connected(dsn) as connection, pytest.raises(ChangelogError) as raised:
            connection.drop_slot(slot)
        assert raised.value.kind is Kind.IN_USE


def test_a_slot_that_is_missing(dsn: str, slot: str) -> None:
    with connected(dsn) as connection:
        connection.drop_slot(slot)
    with pytest.raises(ChangelogError, match=f"slot {slot} does not exist") as raised:
        stream(dsn, slot)
    assert raised.value.kind is Kind.GAP


@pytest.mark.usefixtures("starts_servers")
def test_a_slot_that_lost_its_log() -> None:
    settings = {**SETTINGS, "max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB", "max_wal_size": "32MB"}
    for programs in (None, postgres_bin(15)):
        with temporary_server(programs, settings=settings) as server:
            with connected(server.dsn()) as connection:
                connection.create_slot("s")
            for _ in range(4):
                execute(server.dsn(), "CREATE TABLE x AS SELECT 1 AS a", "DROP TABLE x", "SELECT pg_switch_wal()")
            execute(server.dsn(), "CHECKPOINT")
            with pytest.raises(ChangelogError, match="slot s has lost its log") as raised:
                stream(server.dsn(), "s")
            assert raised.value.kind is Kind.GAP


@pytest.mark.usefixtures("starts_servers")
def test_wal_level_replica() -> None:
    for programs in (None, postgres_bin(15)):
        with (
            temporary_server(programs, settings={**SETTINGS, "wal_level": "replica"}) as server,
            connected(server.dsn()) as connection,
            pytest.raises(ChangelogError, match="wal_level") as raised,
        ):
            connection.create_slot("s")
        assert raised.value.kind is Kind.PRECONDITION


@pytest.fixture(scope="module", params=["18", "15"])
def strict_server(request: pytest.FixtureRequest, starts_servers: None) -> Iterator[Server]:
    """A server that asks the role `reader` for a password (scram) and admits nobody else but postgres."""
    with temporary_server(None if request.param == "18" else postgres_bin(15), settings=SETTINGS) as server:
        execute(server.dsn(), "CREATE ROLE reader LOGIN REPLICATION PASSWORD 'right'", "CREATE ROLE plain LOGIN")
        rules = "host all,replication postgres,plain 127.0.0.1/32 trust\nhost all reader 127.0.0.1/32 scram-sha-256\n"
        _write(server.data_dir / "pg_hba.conf", rules)
        execute(server.dsn(), "SELECT pg_reload_conf()")
        yield server


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"user": "reader", "password": "wrong-secret"}, "password authentication failed"),
        ({"user": "reader"}, "no password supplied"),
        ({"user": "stranger"}, "no pg_hba.conf entry"),
        ({"user": "plain"}, "replication|permission denied"),
    ],
)
def test_who_is_not_admitted(strict_server: Server, change: dict[str, str], message: str) -> None:
    with pytest.raises(ChangelogError, match=message) as raised:
        ReplicationConnection.connect(make_conninfo(strict_server.dsn(), **change))
    assert raised.value.kind is Kind.ACCESS
    assert "\n" not in str(raised.value)
    assert "secret" not in str(raised.value)


def test_who_is_admitted(strict_server: Server) -> None:
    with connected(make_conninfo(strict_server.dsn(), user="reader", password="right")) as connection:
        assert connection.identify_system().timeline == 1


def test_a_database_that_does_not_exist(server: Server) -> None:
    with pytest.raises(ChangelogError, match="does not exist") as raised:
        ReplicationConnection.connect(server.dsn("nowhere"))
    assert raised.value.kind is Kind.PRECONDITION


def test_a_server_that_is_not_there() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(ChangelogError, match="refused") as raised:
            ReplicationConnection.connect(f"host=127.0.0.1 port={taken.getsockname()[1]}")
    assert raised.value.kind is Kind.CONNECTION


def test_a_dsn_that_is_none_is_not_repeated() -> None:
    with pytest.raises(ChangelogError) as raised:
        ReplicationConnection.connect("host=localhost my secret")
    assert raised.value.kind is Kind.USAGE
    assert "secret" not in str(raised.value)


@pytest.mark.usefixtures("starts_servers")
def test_a_server_that_shuts_down_hears_the_last_confirmation() -> None:
    with temporary_server(settings=SETTINGS) as own, fresh_database(own) as dsn:
        execute(dsn, "CREATE TABLE t (id int PRIMARY KEY, x text)", "CREATE PUBLICATION p FOR TABLE t")
        with connected(dsn) as connection:
            connection.create_slot("s")
        with stream(dsn, "s") as open_stream:
            execute(dsn, "INSERT INTO t VALUES (1)", "INSERT INTO t VALUES (2)")
            open_stream.confirm(end_of_commit(take_until(open_stream, commits(2))[3]))
            stopper = threading.Thread(target=own.stop)
            stopper.start()
            before = time.process_time()
            time.sleep(1)
            assert stopper.is_alive()  # it waits for what was sent to be confirmed
            assert time.process_time() - before < 0.5
            with contextlib.suppress(ChangelogError):
                while stopper.is_alive():
                    open_stream.take(0.1)
                    open_stream.confirm(open_stream.wal_end)
            stopper.join(PATIENCE_S)
            assert not stopper.is_alive()
