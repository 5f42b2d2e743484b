"""Tests `XaCommits`, which finds out a place in the log: a snapshot sees every XA COMMIT before it.

The tests use a model of a server and its log.
"""

import random
from dataclasses import dataclass, field

import pytest

from changelog.connectors.sources.mysql.decode.events.events import XaId
from changelog.connectors.sources.mysql.session.connection import Connection
from changelog.connectors.sources.mysql.session.flavour import Flavour
from changelog.connectors.sources.mysql.snapshot.xa_commits import XaCommits, prepared_transactions

STEPS = 2_000
NAMES = 4


def xa_id(name: int) -> XaId:
    return XaId(format_id=1, gtrid=bytes([name]), bqual=b"")


@dataclass(slots=True)
class Server:
    """A server that logs an XA COMMIT before it commits the rows, and a stream of its log.

    `log` has each XA PREPARE and XA COMMIT, with the name of the transaction. The coordinate of an entry is its index.
    `running` has the names of transactions whose XA COMMIT is in the log, but not yet visible. The stream has read the
    first `read` entries; `held` has the names of transactions that are prepared, but not committed, in these entries.
    """

    log: list[tuple[str, int]] = field(default_factory=list)
    prepared: set[int] = field(default_factory=set)
    running: dict[int, int] = field(default_factory=dict)
    read: int = 0
    held: set[int] = field(default_factory=set)

    def step(self, rng: random.Random) -> None:
        """Begins or ends an XA statement, or delivers an event."""
        name = rng.randrange(NAMES)
        if rng.random() < 0.4 and self.read < len(self.log):
            statement, delivered = self.log[self.read]
            (self.held.add if statement == "PREPARE" else self.held.discard)(delivered)
            self.read += 1
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
        (Flavour.MARIADB, (7, 3, 1, "X'00ff41',X'80',7"), XaId(format_id=7, gtrid=b"\0\xffA", bqual=b"\x80")),
        (Flavour.MYSQL, (7, 3, 1, "0x00FF4180"), XaId(format_id=7, gtrid=b"\0\xffA", bqual=b"\x80")),
    ],
)
def test_ids_of_prepared_transactions_are_bytes(flavour: Flavour, row: tuple[object, ...], expected: XaId) -> None:
    session: Connection = Listing(flavour, row)  # type: ignore[assignment]
    assert prepared_transactions(session) == [expected]
