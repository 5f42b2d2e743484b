"""Tests `XaCommits`, which finds out a place in the log: a snapshot sees every XA COMMIT before it.

The tests use a model of a server and its log.
"""

import random
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest
from structlog.testing import capture_logs

from changelog.connectors.sources.mysql.decode.events.events import XaId
from changelog.connectors.sources.mysql.session.connection import Connection
from changelog.connectors.sources.mysql.session.flavour import Flavour
from changelog.connectors.sources.mysql.snapshot import orphans, xa_commits
from changelog.connectors.sources.mysql.snapshot.orphans import Orphans, literal
from changelog.connectors.sources.mysql.snapshot.visibility import Deliveries, GtidSnapshot
from changelog.connectors.sources.mysql.snapshot.xa_commits import SETTLED_AFTER_S, XaCommits, prepared_transactions
from changelog.connectors.sources.mysql.values.positions.gtid_set import GtidSet

STEPS = 2_000
ROUNDS = 200
NAMES = 4
UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


def xa_id(name: int) -> XaId:
    return XaId(format_id=1, gtrid=bytes([name]), bqual=b"")


@dataclass(slots=True)
class Server:
    """A server that logs an XA COMMIT before it commits the rows, and a stream of its log.

    `log` has each XA PREPARE, XA COMMIT and XA COMMIT in ONE PHASE, with the name of the transaction. The coordinate of
    an entry is its index. `running` has the names of transactions whose XA COMMIT is in the log, but not yet visible.
    `unlisted` has those that were committed in ONE PHASE, and that are not in the list of prepared transactions yet.
    `in_one_phase` says how likely a transaction is committed in ONE PHASE. The stream has read the first `read`
    entries; `held` has the names of transactions that are prepared, but not committed, in these entries.
    """

    in_one_phase: float = 0.0
    log: list[tuple[str, int]] = field(default_factory=list)
    prepared: set[int] = field(default_factory=set)
    running: dict[int, int] = field(default_factory=dict)
    unlisted: set[int] = field(default_factory=set)
    read: int = 0
    held: set[int] = field(default_factory=set)

    def step(self, rng: random.Random) -> None:
        """Begins or ends an XA statement, or delivers an event."""
        name = rng.randrange(NAMES)
        if rng.random() < 0.4 and self.read < len(self.log):
            statement, delivered = self.log[self.read]
            (self.held.add if statement == "PREPARE" else self.held.discard)(delivered)
            self.read += 1
        elif name in self.unlisted:
            self.unlisted.remove(name)
            self.prepared.add(name)
        elif name not in self.prepared and rng.random() < self.in_one_phase:
            self.unlisted.add(name)
            self.running[name] = len(self.log)
            self.log.append(("ONE PHASE", name))
        elif name not in self.prepared:
            self.prepared.add(name)
            self.log.append(("PREPARE", name))
        elif name not in self.running:
            self.running[name] = len(self.log)
            self.log.append(("COMMIT", name))
        else:
            del self.running[name]
            self.prepared.remove(name)

    def undecided_before(self, xa: XaId) -> int:
        """See `LogState.undecided_before`."""
        return self.read if xa.gtrid[0] in self.held else 0


@pytest.mark.parametrize("holds", [True, False])
def test_a_snapshot_sees_the_xa_commits_before_the_place(seed: int, holds: bool) -> None:
    """Several threads find out the place and take snapshots. The steps of different threads come in any order.

    With `holds`, `XaCommits` also learns which prepared transactions the stream has.
    """
    rng, server = random.Random(seed), Server()
    commits = XaCommits(server.undecided_before if holds else lambda _: 0)
    ends, listed, places, lags = dict[int, int](), dict[int, tuple[int, list[XaId]]](), dict[int, int](), list[int]()
    for _ in range(STEPS):
        for _ in range(rng.randrange(4)):
            server.step(rng)
        thread = rng.randrange(3)
        if thread in places:
            place = places.pop(thread)
            assert all(commit >= place for commit in server.running.values())
            lags.append(len(server.log) - place)
        elif thread in listed:
            places[thread] = commits.seen_before(*listed.pop(thread))
        elif thread in ends:
            listed[thread] = ends.pop(thread), [xa_id(name) for name in server.prepared]
        else:
            ends[thread] = len(server.log)
    assert sorted(lags)[len(lags) // 2] < 100, "the places do not move on"


def test_a_warning_names_no_transaction_whose_prepare_the_stream_will_read(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In each round, the service begins while the stream lags. The stream does not have the transactions that were
    prepared at an earlier place. The steps of different threads come in any order; there are ten seconds between them.
    """
    rng, now_s, warned = random.Random(seed), 0.0, 0
    monkeypatch.setattr(orphans, "time", SimpleNamespace(monotonic=lambda: now_s))
    for _ in range(ROUNDS):
        server = Server()
        for _ in range(rng.randrange(1, 30)):
            server.step(rng)
        server.held.clear()
        commits = XaCommits(server.undecided_before, lambda server=server: server.read)  # type: ignore[misc]
        ends, listed, waiting = dict[int, int](), dict[int, tuple[int, list[XaId], dict[int, int]]](), set[int]()
        prepares: dict[int, int] | None = None
        for _ in range(60):
            now_s += 10
            for _ in range(rng.randrange(3)):
                server.step(rng)
            thread = rng.randrange(3)
            if thread in waiting:
                commits.prepared_before(len(server.log))
                waiting.remove(thread)
            elif thread in listed:
                end, xa_ids, prepares_listed = listed.pop(thread)
                prepares = prepares_listed if prepares is None else prepares
                with capture_logs() as logs:
                    if commits.seen_before(end, xa_ids) == 0:
                        waiting.add(thread)
                names = [bytes.fromhex(text[2:-1])[0] for event in logs for text in event["transactions"]]
                assert all(prepares[name] < server.read for name in names)
                warned += len(logs)
            elif thread in ends:
                listed[thread] = ends.pop(thread), [xa_id(name) for name in server.prepared], last_prepares(server)
            else:
                ends[thread] = len(server.log)
    assert warned


def last_prepares(server: Server) -> dict[int, int]:
    """Returns where in the log each transaction was prepared last."""
    return {name: place for place, (statement, name) in enumerate(server.log) if statement == "PREPARE"}


@dataclass(slots=True)
class Clock:
    """The seconds of `time.monotonic`. A commit of `Server` takes much less than SETTLED_AFTER_S."""

    now_s: float = 0.0

    def monotonic(self) -> float:
        """Lets some time go by. Returns the time."""
        self.now_s += SETTLED_AFTER_S / 100
        return self.now_s


def test_a_snapshot_misses_commits_in_one_phase_that_are_not_visible(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server adds the GTID of a transaction to the executed ones when it writes the transaction into the log."""
    monkeypatch.setattr(xa_commits, "time", Clock())
    rng, server = random.Random(seed), Server(in_one_phase=0.5)
    deliveries, delivered = Deliveries(GtidSet.parse(""), 0, server.undecided_before), 0
    taken, misses = list[tuple[GtidSnapshot, list[int]]](), list[int]()
    for _ in range(STEPS):
        for _ in range(rng.randrange(4)):
            server.step(rng)
        for place in range(delivered, server.read):
            deliveries.add(place, f"{UUID}:{place + 1}", server.log[place][0] == "ONE PHASE")
        delivered = server.read
        executed = GtidSet.parse(f"{UUID}:1-{len(server.log)}" if server.log else "")
        end, listed = len(server.log), [xa_id(name) for name in server.prepared]
        place = deliveries.xa_commits.seen_before(end, listed)
        snapshot = deliveries.snapshot(executed, place, deliveries.xa_commits.settled(executed))
        taken.append((snapshot, list(server.running.values())))
        if len(taken) > 10:
            snapshot, running = taken.pop(rng.randrange(10))
            assert snapshot.misses(np.array([place for place in running if place < delivered], np.int64)).all()
            misses.append(int(snapshot.misses(np.arange(delivered)).sum()))
    assert sorted(misses)[len(misses) // 2] < 200, "commits are not settled"


def test_a_transaction_that_stays_prepared_holds_nothing_up_if_the_stream_has_it() -> None:
    reached = 0
    commits = XaCommits(lambda _: reached)
    assert commits.seen_before(100, [xa_id(1)]) == 0
    reached = 90
    assert commits.seen_before(110, [xa_id(1)]) == 90
    assert commits.seen_before(120, [xa_id(1), xa_id(2)]) == 90
    reached = 115
    assert commits.seen_before(130, [xa_id(1), xa_id(2)]) == 115
    assert commits.seen_before(140, []) == 140


def test_table_reads_that_wait_for_a_prepared_transaction_say_for_which(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list is read every five seconds. The stream lags for a hundred seconds, and does not have the transaction
    then. Later, it has the transaction as prepared.
    """
    now_s, reached, passed = 0.0, 0, 99
    monkeypatch.setattr(orphans, "time", SimpleNamespace(monotonic=lambda: now_s))
    commits = XaCommits(lambda _: reached, lambda: passed)
    warned_at: list[float] = []
    with capture_logs() as logs:
        for now_s in np.arange(-100, 1500, 5).tolist():
            passed = 99 if now_s < 0 else 100
            if commits.seen_before(100, [xa_id(1)]) == 0:
                commits.prepared_before(100)
            warned_at += [now_s] * (len(logs) - len(warned_at))
        reached = 90
        commits.seen_before(110, [xa_id(1)])
        reached = 0
        now_s += 30
        commits.seen_before(120, [xa_id(1)])
    assert warned_at == [10, 30, 70, 150, 310, 610, 910, 1210]
    assert len(logs) == len(warned_at)
    assert {(event["log_level"], *event["transactions"], event["count"]) for event in logs} == {("warning", "X'01'", 1)}
    assert len({event["since"] for event in logs}) == 1


def test_a_wait_that_table_reads_begin_after_a_pause_is_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr(orphans, "time", SimpleNamespace(monotonic=lambda: now_s))
    waits = Orphans()
    warned_at: list[float] = []
    with capture_logs() as logs:
        for now_s in [0.0, 5.0, 4000.0, 4005.0, 4010.0]:
            waits.wait_for([xa_id(1)])
            warned_at += [now_s] * (len(logs) - len(warned_at))
    assert warned_at == [4010]


@pytest.mark.parametrize(
    ("gtrid", "bqual", "format_id", "expected"),
    [
        (b"plain id", b"", 1, "'plain id'"),
        (b"", b"b", 1, "'','b'"),
        (b"a", b"", 7, "'a','',7"),
        (b"it's", b"back\\slash", 0, "X'69742773',X'6261636b5c736c617368',0"),
        (b"\x1b[31m", b"\xff", 1, "X'1b5b33316d',X'ff'"),
        (b"line\n", b"\x7f", 1, "X'6c696e650a',X'7f'"),
    ],
)
def test_the_id_of_a_transaction_is_printed_as_a_statement_names_it(
    gtrid: bytes, bqual: bytes, format_id: int, expected: str
) -> None:
    assert literal(XaId(format_id=format_id, gtrid=gtrid, bqual=bqual)) == expected


class Listing:
    """A session whose queries return only `row`."""

    def __init__(self, flavour: Flavour, row: tuple[object, ...]) -> None:
        self.flavour, self._row = flavour, row

    def query(self, _query: str) -> list[tuple[object, ...]]:
        return [self._row]


@pytest.mark.parametrize(
    ("flavour", "row", "expected"),
    [
        (Flavour.MARIADB, (1, 3, 0, "'abc'"), XaId(format_id=1, gtrid=b"abc", bqual=b"")),
        (Flavour.MARIADB, (7, 5, 2, "'a','b','c\\',7"), XaId(format_id=7, gtrid=b"a','b", bqual=b"c\\")),
        (Flavour.MARIADB, (7, 3, 1, "X'00ff41',X'80',7"), XaId(format_id=7, gtrid=b"\0\xffA", bqual=b"\x80")),
        (Flavour.MYSQL, (7, 3, 1, "0x00FF4180"), XaId(format_id=7, gtrid=b"\0\xffA", bqual=b"\x80")),
    ],
)
def test_ids_of_prepared_transactions_are_bytes(flavour: Flavour, row: tuple[object, ...], expected: XaId) -> None:
    session: Connection = Listing(flavour, row)  # type: ignore[assignment]
    assert prepared_transactions(session) == [expected]
