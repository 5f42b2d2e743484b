"""Kills, stops and freezes processes that serve views, while changes are written and readers ask for rows.

The campaign `views_brokers` does the same with three brokers, and also kills brokers.

Each answer has the headers `X-Position` and `X-Staleness`, and is judged by three rules. Its row must include every
change of this row up to `X-Position`. The position in `X-Position` must include everything that was stored up to
`X-Staleness` seconds before the request. If the reader gave a `min_position`, `X-Position` must not be before it.

After a process was killed, a reader who allows stale rows must get every key within two seconds. After each round, the
rows of every view on every process must be those that follow from the written changes. One view ignores the changes
that a certain service made. They change no row of this view, but the view's position must move on.
"""

import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from urllib.parse import urlsplit

from changelog.connectors.kafka.client import Client
from changelog.connectors.servers.kafka import Broker
from changelog.connectors.servers.unprivileged import free_port, reachable, temporary_folder
from changelog.connectors.sinks.kafka.sink import KafkaSettings
from changelog.connectors.views.streams.application import MAIN
from changelog.connectors.views.streams.partitions import OtherInstances, PartitionQuestion
from changelog.envelope.errors import ChangelogError
from tests.campaigns._background import Background
from tests.campaigns._pieces import Campaign, Figures, Piece
from tests.campaigns._view_history import Answer, History
from tests.campaigns._view_writer import ENTITIES, KEYS, PARTITIONS, Writer
from tests.integration.kafka.served_views import VIEWS, WITHOUT_BATCH, ServedViews, streams_section
from tests.patience import until
from tests.servers import kafka_lib
from tests.unit.views.running import Got

KEEP = "CHANGELOG_KEEP"
"""An environment variable. It can name a folder. If a piece fails, its files are copied there."""

NAME = "app"
SESSION_S = 6
READERS = 32
TOKEN = "the-token-of-instances"
READABLE_S = 2.0
FAULTS = ("kill", "kill", "stop", "hang", "rolling")
KINDS = ("plain", "stale", "min", "min", "min")
"""The kinds of requests for a row: without a parameter (`plain`), with `stale=allowed`, and with `min_position`. For
`plain` and `min`, an instance that does not own the row gets it from the instance that does, never from a standby.
"""

REPLICATED = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "transaction.state.log.replication.factor": "3",
}
"""With these settings, three brokers continue if one of them fails."""

CONFIG = """
name = "{name}"
source = {{ kind = "postgres", dsn = "host=127.0.0.1 port=9 dbname=app" }}
tables = {{ include = ["*"] }}
[sink]
kind = "kafka"
bootstrap_servers = "{servers}"
prefix = "{prefix}"
{streams}
{views}"""


def campaign(
    instances: int = 3, faults: Sequence[str] = FAULTS, readable_s: float = READABLE_S, brokers: int = 1
) -> Campaign:
    """Each round makes one of `faults`. All rounds use the same brokers. The rounds of one piece, at most ten, also use
    the same instances, writer and readers. The fault "broker" needs three `brokers`.

    After an instance was killed, a reader who allows stale rows must get each key within `readable_s` seconds.
    """

    @contextmanager
    def site() -> Iterator[Callable[[Piece], Figures]]:
        with _running(brokers) as running:

            def run_piece(piece: Piece) -> Figures:
                with tempfile.TemporaryDirectory(prefix="changelog-views-") as folder:
                    try:
                        return _Soak(running, Path(folder), piece, instances, readable_s).run(piece.rounds, faults)
                    except BaseException:
                        if keep_folder := os.environ.get(KEEP):
                            shutil.copytree(folder, Path(keep_folder) / f"views-{piece.seed}", dirs_exist_ok=True)
                        raise

            yield run_piece

    return Campaign(site=site, rounds=10)


@contextmanager
def _running(count: int) -> Iterator[Sequence[Broker]]:
    """Runs one broker, or a cluster of three, in a temporary folder."""
    with ExitStack() as stack:
        folder = stack.enter_context(temporary_folder("changelog-kafka-"))
        jars = reachable(kafka_lib(), folder)
        settings = REPLICATED if count > 1 else {}
        brokers: list[Broker] = []
        for number in range(count):
            joins = brokers[-1] if brokers else None
            broker = Broker(jars, folder / str(number), settings=settings, joins=joins)
            brokers.append(stack.enter_context(broker))
        yield brokers


class _Reader(Background):
    """Reads random rows from random instances until it is stopped, and judges each answer."""

    def __init__(self, views: Sequence[ServedViews], history: History, seed: int) -> None:
        super().__init__()
        self._views, self._history, self._rng = views, history, random.Random(seed)
        self.statuses: Counter[str] = Counter()
        self._seen = ""

    def work(self) -> None:
        while not self.stopping.wait(0.01):
            with suppress(OSError, HTTPException):  # the instance does not run, or is frozen
                self._read()

    def _read(self) -> None:
        rng = self._rng
        name, key, kind = rng.choice(list(ENTITIES)), rng.choice(KEYS), rng.choice(KINDS)
        min_position = self._seen if kind == "min" and self._seen else None
        parameters = {"stale": "?stale=allowed", "min": f"?min_position={min_position}"}
        sent_s = time.time()
        target = f"/{name}/{key}{parameters.get(kind, '') if kind == 'stale' or min_position else ''}"
        got = rng.choice(self._views).api.get(target)
        self.statuses[f"{kind} {got.status}"] += 1
        if got.status == 503:
            return
        assert got.status in {200, 404}, got.body
        answer = _answer(name, key, sent_s, got)
        self._history.judge(answer, min_position)
        self._seen = max(self._seen, answer.reached)


def _answer(name: str, key: str, sent_s: float, got: Got) -> Answer:
    return Answer(
        view=name,
        key=key,
        sent_s=sent_s,
        row=got.json["position"] if got.status == 200 else None,
        reached=got.headers["x-position"],
        staleness_s=float(got.headers["x-staleness"]),
    )


class _Soak:
    def __init__(
        self, brokers: Sequence[Broker], folder: Path, piece: Piece, instances: int, readable_s: float
    ) -> None:
        self._rng, self._history, self._readable_s = random.Random(piece.seed), History(ENTITIES), readable_s
        self._brokers = brokers
        prefix = f"views-{piece.seed}"
        client = Client(bootstrap_servers=",".join(broker.bootstrap_servers for broker in brokers))
        settings = KafkaSettings(client=client, name=NAME, prefix=prefix)
        self._views = [_instance(folder / str(number), settings) for number in range(instances)]
        self._writer = Writer(settings, self._history, random.Random(piece.seed))
        self._readers = [_Reader(self._views, self._history, piece.seed + number) for number in range(READERS)]
        self._others = OtherInstances(TOKEN)
        self._faults: Counter[str] = Counter()
        self._unreadable_s: list[float] = []

    def run(self, rounds: int, faults: Sequence[str]) -> Figures:
        try:
            self._writer.start()
            self._writer.running.set()
            until(lambda: self._writer.changes > 100 or not self._writer.is_alive(), "nothing is written")
            self._start(self._views)
            for reader in self._readers:
                reader.start()
            for _ in range(rounds):
                until(self._has_standbys, "there are no standbys")
                self._round(self._rng.choice(faults))
        except BaseException as error:
            error.add_note(f"exit codes of the instances: {[view.exit_code for view in self._views]}")
            error.add_note(f"faults: {dict(self._faults)}")
            raise
        finally:
            self._writer.stopping.set()
            for reader in self._readers:
                reader.stopping.set()
            for view in self._views:
                view.close()
            self._others.close()
        return {
            "faults": dict(self._faults),
            "changes": self._writer.changes,
            "connections of the writer": self._writer.connections,
            "answers": dict(sum((reader.statuses for reader in self._readers), Counter[str]())),
            "slowest_stale_s": [round(max(self._unreadable_s, default=0.0), 2)],
        }

    def _round(self, fault: str) -> None:
        self._faults[fault] += 1
        victim = self._rng.choice(self._views)
        if fault == "kill":
            victim.kill()
            self._await_stale(victim)
            time.sleep(self._rng.choice((0.0, 1.5 * SESSION_S * self._rng.random())))
            self._start([victim])
        elif fault == "stop":
            assert victim.stop() == -signal.SIGTERM
            time.sleep(self._rng.choice((0.0, 1.5 * SESSION_S * self._rng.random())))
            self._start([victim])
        elif fault == "hang":
            victim.send(signal.SIGSTOP)
            time.sleep(2 * SESSION_S * self._rng.random())
            victim.send(signal.SIGCONT)
        elif fault == "broker":
            broker = self._rng.choice(self._brokers[1:])  # the first one is the only controller
            broker.kill()
            time.sleep(2 * SESSION_S * self._rng.random())
            broker.start()
        else:
            for view in self._views:
                assert view.stop() == -signal.SIGTERM
                self._start([view])
        self._judge()

    def _judge(self) -> None:
        """Compares all views on all instances with the rows that follow from the written changes."""
        self._writer.pause()
        for view in self._views:
            for name, expected in self._history.rows.items():
                rows = self._rows(view, name)
                assert rows == expected, _difference(name, rows, expected)
        for reader in self._readers:
            reader.check()
        self._writer.running.set()

    def _rows(self, view: ServedViews, name: str) -> Mapping[str, str]:
        """Waits until an instance answers with all changes of a view. Returns the position of each row.

        On a busy machine, partitions can move between instances at any time, so the view may be unreadable for a
        moment.
        """
        answers: list[Got] = []

        def is_read() -> bool:
            answers.append(view.api.get(f"/{name}?min_position={self._history.last}&limit=1000"))
            return answers[-1].status == 200

        try:
            until(is_read, f"{name} is not complete")
        except AssertionError as error:
            error.add_note(f"the last answer of instance {self._views.index(view)}: {answers[-1].body!r}")
            raise
        return {row["key"]: row["position"] for row in answers[-1].json["rows"]}

    def _await_stale(self, victim: ServedViews) -> None:
        """Checks how soon after the kill of `victim` a reader who allows stale rows gets an answer for ten keys."""
        survivor = next(view for view in self._views if view is not victim)
        for name in self._history.rows:
            for key in KEYS[:10]:
                began_s = time.monotonic()
                while (got := survivor.api.get(f"/{name}/{key}?stale=allowed")).status == 503:
                    assert time.monotonic() - began_s < self._readable_s, f"{name} {key} is not readable: {got.body!r}"
                assert got.status in {200, 404}
                self._unreadable_s.append(time.monotonic() - began_s)

    def _has_standbys(self) -> bool:
        """Returns whether each partition of each view has an instance that can answer for it as a standby."""
        return all(
            any(self._is_standby(view, name, number) for view in self._views)
            for name in self._history.rows
            for number in range(PARTITIONS)
        )

    def _is_standby(self, view: ServedViews, name: str, number: int) -> bool:
        """Returns whether the instance `view` can answer for this partition as a standby."""
        application = view.by_service if name == WITHOUT_BATCH else MAIN
        question = PartitionQuestion(
            table=ENTITIES[name], partition=number, offset=0, application=application, keys=[], is_stale=True
        )
        with suppress(ChangelogError):
            self._others.ask(urlsplit(view.api.address).netloc, question)
            return True
        return False

    def _start(self, views: Sequence[ServedViews]) -> None:
        for view in views:
            view.begin()
        with ThreadPoolExecutor(len(views)) as pool:
            list(pool.map(lambda view: view.ready(), views))


def _difference(name: str, rows: Mapping[str, str], expected: Mapping[str, str]) -> str:
    wrong_keys = sorted({key for key, _ in rows.items() ^ expected.items()})
    differences = [f"{key} is {rows.get(key)}, expected {expected.get(key)}" for key in wrong_keys]
    return f"{name}: {'; '.join(differences)}"


def _instance(folder: Path, settings: KafkaSettings) -> ServedViews:
    folder.mkdir()
    port = free_port()
    rest = (
        f'application = "{settings.prefix}"\nadvertised = "127.0.0.1:{port}"\ninstance_token = "{TOKEN}"\n'
        f"session_seconds = {SESSION_S}\nstandbys = 1\n"
    )
    config = folder / "changelog.toml"
    config.write_text(
        CONFIG.format(
            name=NAME,
            servers=settings.client.bootstrap_servers,
            prefix=settings.prefix,
            streams=streams_section(folder, rest),
            views=VIEWS,
        ),
        "utf-8",
    )
    return ServedViews(config, port)
