"""Makes the service, the broker, PostgreSQL and the links between them fail while threads write, and wakes zombies.

A zombie is a service that was paused for so long that another instance took its place. Rounds are grouped in blocks,
each with its own servers. At the end of a block, the faults stop, and the service must catch up by itself. Then the
committed messages must equal the rows that the oracle computes, which reads PostgreSQL's log a second time: nothing may
be lost, repeated or reordered. The last states in these messages must equal the tables.

A block that has all its rounds also fails if no message is in an aborted transaction: faults that never abort a
transaction would prove little.
"""

import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from pathlib import Path

import psycopg

from changelog.connectors.servers.kafka import Broker, find_lib
from changelog.connectors.servers.postgres import PostgresServer, temporary_server
from changelog.connectors.servers.unprivileged import reachable, temporary_folder
from changelog.connectors.sinks.kafka.sink import FAIL_POINTS as SINK_FAIL_POINTS
from changelog.connectors.sources.postgres.values.lsn import through_lsn
from changelog.envelope.checkpoint import Checkpoint
from tests.campaigns._hang import HANG_S, TIMEOUTS, hanging
from tests.campaigns._judge import Verdict, judge_rows
from tests.campaigns._load import ENTITIES, Load, Scale, last_write, prepare
from tests.campaigns._oracle import Oracle
from tests.campaigns._pieces import Campaign, Figures, Piece
from tests.campaigns._service import LOOP_FAIL_POINTS, Service, is_read
from tests.campaigns._topics import Positions, Read, rows
from tests.proxy import Proxy

NAME = "soak"
BLOCK = 20
KEEP = "CHANGELOG_KEEP"
"""An environment variable. It can name a folder. If a block fails, its files are copied there."""

TRANSACTION_S = 10
POSTGRES = {"fsync": "off", "max_wal_size": "4GB", "wal_sender_timeout": "3s"}
BROKER = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000"}
SCALE = Scale(universe=4_000, big=1_000, big_every=100, pause_s=0.05)

LOADED_S_MAX = 2.5
SHORT_S = (0.2, 3.0)
LONG_S = (TRANSACTION_S + 2.0, TRANSACTION_S + 6.0)
"""These times are long enough for the broker to abort any open transaction."""
CATCH_UP_S = 180.0
LINGER_S = 0.1
REACHED_S = 20.0
ENDED_S = 150.0

FAIL_POINTS = (*LOOP_FAIL_POINTS, *SINK_FAIL_POINTS)
TOOK_OVER = ("another instance of this service took over", "is read by process")

CONFIG = """
name = "{name}"
[source]
kind = "postgres"
dsn = "{dsn}"
snapshot_pages = 16
{timeouts}
[sink]
kind = "kafka"
bootstrap_servers = "{broker}"
transaction_timeout_seconds = {transaction_s}
commit_seconds = 0.05
[sink.client]
"socket.timeout.ms" = "3000"
"socket.connection.setup.timeout.ms" = "2000"
"reconnect.backoff.max.ms" = "500"
[service]
listen = "127.0.0.1:0"
"""


def campaign() -> Campaign:
    """Each round makes one fault. BLOCK rounds share the servers and the threads that write."""
    return Campaign(site=lambda: nullcontext(_block), rounds=BLOCK)


def _block(piece: Piece) -> Figures:
    with temporary_folder("changelog-soak-kafka-") as folder:
        try:
            with _running(folder, piece.seed) as running:
                return running.run(piece.rounds)
        except BaseException:
            if keep_folder := os.environ.get(KEEP):
                shutil.copytree(folder, Path(keep_folder) / f"kafka-{piece.seed}", dirs_exist_ok=True)
            raise


@contextmanager
def _running(folder: Path, seed: int) -> Iterator["_Block"]:
    """Starts the servers and the links, and yields the block that uses them."""
    with ExitStack() as stack:
        server = stack.enter_context(temporary_server(settings=POSTGRES))
        broker = Broker(reachable(find_lib(), folder), folder / "kafka", settings=BROKER)
        to_server = stack.enter_context(Proxy("127.0.0.1", server.port))
        to_broker = stack.enter_context(Proxy("127.0.0.1", broker.port))
        broker.advertised = to_broker.address
        stack.enter_context(broker)
        running = _Block(folder, server, broker, to_server, to_broker, seed)
        stack.enter_context(closing(running))
        yield running


class _Block:
    def __init__(
        self, folder: Path, server: PostgresServer, broker: Broker, to_server: Proxy, to_broker: Proxy, seed: int
    ) -> None:
        self._folder, self._server, self._broker = folder, server, broker
        self._to_server, self._to_broker = to_server, to_broker
        self._rng = random.Random(seed)
        self._faults: Counter[str] = Counter()
        self._points: list[str] = []
        self._dsn = server.dsn()
        self._config = folder / "changelog.toml"
        through = psycopg.conninfo.make_conninfo(self._dsn, port=to_server.port)
        config = CONFIG.format(
            name=NAME, dsn=through, timeouts=TIMEOUTS, broker=to_broker.address, transaction_s=TRANSACTION_S
        )
        self._config.write_text(config + ENTITIES, "utf-8")
        self._service = Service(self._config)
        self._zombie: Service | None = None
        prepare(self._dsn, SCALE.universe // 2)
        self._load = Load(self._dsn, SCALE, self._rng.randrange(1 << 32))
        self._oracle = Oracle(self._dsn, folder / "frames")
        self._positions = Positions(broker.direct_servers, NAME, NAME)

    def close(self) -> None:
        """Stops all processes and threads."""
        for service in (self._service, self._zombie):
            if service is not None:
                service.kill()
        self._load.stop()
        self._oracle.stop()
        self._positions.close()

    def run(self, rounds: int) -> Figures:
        """Makes `rounds` faults, and compares the messages with the committed changes."""
        self._service.start()
        since = self._service.slot_made(self._dsn, NAME)
        started = time.monotonic()
        self._load.start()
        self._advance()
        for fault in self._choose_faults(rounds):
            if self._rng.random() < 0.7:
                self._advance()
            self._let_run(self._rng.random() * LOADED_S_MAX)
            fault()
        self._load.stop()
        loaded_s = time.monotonic() - started
        self._catch_up()
        counts, verdict = Read(), Verdict()
        log = rows(self._broker.direct_servers, NAME, verdict, counts)
        judge_rows(self._dsn, log, self._oracle.expected(since), verdict)
        assert counts.aborted or rounds < BLOCK, "no fault aborted a transaction that had messages"
        return {
            "faults": dict(sorted(self._faults.items())),
            "changes": verdict.changes,
            "reads": verdict.reads,
            "transactions": verdict.transactions,
            "messages": counts.committed,
            "aborted": counts.aborted,
            "load_s": round(loaded_s),
            "changes_per_s": [round(verdict.changes / loaded_s)],
            "lost": verdict.lost,
            "repeated": verdict.repeated,
            "reordered": verdict.reordered,
        }

    def _choose_faults(self, rounds: int) -> list[Callable[[], None]]:
        """Returns a fault for each round, in random order. If there are fewer rounds than BLOCK, `_take_over` is left
        out, because it may take minutes.
        """
        deck = [
            *[self._kill] * 3,
            *[self._crash] * 4,
            *[self._kill_broker] * 2,
            *[self._fail_broker_link] * 3,
            *[self._fail_broker_link_for_long],
            *[self._kill_server] * 2,
            *[self._fail_server_link] * 2,
            *[self._fail_server_link_for_long],
            *[self._hang_session],
            *[self._take_over],
        ]
        assert len(deck) == BLOCK
        self._rng.shuffle(deck)
        if rounds < BLOCK:
            deck.remove(self._take_over)
        return deck[:rounds]

    def _count(self, fault: str) -> None:
        self._faults[fault] += 1

    def _let_run(self, seconds: float) -> None:
        """Lets the service run for this time. It must not end by itself."""
        assert not self._service.wait(seconds), f"the service ended by itself: {self._service.said()[-2000:]}"

    def _advance(self) -> Checkpoint:
        """Waits until the service has stored a new checkpoint, and returns this checkpoint."""
        before = self._positions.newest()
        self._service.until_stored(self._positions.newest, lambda checkpoint: checkpoint != before, CATCH_UP_S)
        after = self._positions.newest()
        assert after is not None
        return after

    def _wait_while_down(self, seconds: float) -> None:
        """Waits while a server or a link is down. Sometimes also kills the service during this time."""
        if self._rng.random() < 0.75:
            self._let_run(seconds)
            return
        until = self._rng.random() * seconds
        self._let_run(until)
        self._service.kill()
        self._count("kill meanwhile")
        self._service.start()
        self._let_run(seconds - until)

    def _kill(self) -> None:
        """Kills the service with SIGKILL, at a random moment."""
        self._service.kill()
        self._count("kill")
        self._service.start()

    def _crash(self) -> None:
        """Lets the service crash at a fail point. Half of the time, it waits there for LINGER_S before it crashes, so
        that its Kafka client can send messages that are still queued.
        """
        if not self._points:
            self._points = self._rng.sample(FAIL_POINTS, len(FAIL_POINTS))
        point = self._points.pop()
        count = 1 if point == "kafka:recovered" else self._rng.randrange(1, 15)
        self._service.kill()
        self._service.start(f"{point}:{count}@{self._rng.choice((0, LINGER_S))}")
        crashed = self._service.wait(REACHED_S)
        self._service.kill()
        self._count(point if crashed else "kill")
        self._service.start()

    def _kill_broker(self) -> None:
        self._broker.kill()
        self._count("broker killed")
        self._wait_while_down(self._rng.random() * 1.5)
        self._broker.start()

    def _kill_server(self) -> None:
        self._server.kill()
        self._count("postgres killed")
        self._wait_while_down(self._rng.random() * 1.5)
        self._server.start()

    def _hang_session(self) -> None:
        with hanging(self._dsn, NAME, self._rng) as kind:
            if kind is not None:
                self._count(f"hang of a {kind}")
                self._wait_while_down(self._rng.uniform(*HANG_S))

    def _fail_broker_link(self) -> None:
        how = self._rng.choice(("stops", "hangs", "is mute", "resets"))
        self._fail_link(self._to_broker, "link to broker", how, SHORT_S)

    def _fail_server_link(self) -> None:
        self._fail_link(self._to_server, "link to postgres", self._rng.choice(("stops", "hangs", "resets")), SHORT_S)

    def _fail_broker_link_for_long(self) -> None:
        self._fail_link(self._to_broker, "link to broker", self._rng.choice(("stops", "hangs", "is mute")), LONG_S)

    def _fail_server_link_for_long(self) -> None:
        self._fail_link(self._to_server, "link to postgres", self._rng.choice(("stops", "hangs")), LONG_S)

    def _fail_link(self, link: Proxy, name: str, how: str, during_s: tuple[float, float]) -> None:
        """Lets a link fail for a while. `how` says in which way."""
        self._count(f"{name} {how}{' for long' if during_s is LONG_S else ''}")
        match how:
            case "stops":
                link.stop()
            case "hangs":
                link.hang()
            case "is mute":
                link.mute()
            case _:
                link.reset()
        self._wait_while_down(self._rng.uniform(*during_s))
        link.resume()

    def _take_over(self) -> None:
        """Pauses the service, and waits until PostgreSQL has freed its slot. Then starts another instance, which takes
        over, and wakes the paused one, which must end with an error.
        """
        self._advance()
        zombie = self._zombie = self._service
        zombie.pause()
        self._count("zombie")
        self._wait_until_slot_free()
        self._service = Service(self._config, self._folder / f"changelog-{self._faults['zombie']}.log")
        self._service.start()
        self._advance()
        zombie.wake()
        code = zombie.ended(ENDED_S)
        last = zombie.said().rstrip().rpartition("\n")[2]
        assert code not in (0, None), f"the zombie did not end with an error: {last}"
        assert any(text in last for text in TOOK_OVER), f"the zombie ended with {code}: {last}"
        self._zombie = None

    def _wait_until_slot_free(self) -> None:
        deadline = time.monotonic() + CATCH_UP_S
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            while time.monotonic() < deadline:
                query = "SELECT active_pid IS NULL FROM pg_replication_slots WHERE slot_name = %s"
                if connection.execute(query, [NAME]).fetchone() == (True,):
                    return
                time.sleep(0.05)
        raise AssertionError("PostgreSQL keeps the slot of a service that does not answer")

    def _catch_up(self) -> None:
        end = last_write(self._dsn)
        self._service.until_stored(
            self._positions.newest, lambda checkpoint: through_lsn(checkpoint) > end and is_read(checkpoint), CATCH_UP_S
        )
        self._service.stop()
        self._oracle.wait(end, CATCH_UP_S)
        self._oracle.stop()
