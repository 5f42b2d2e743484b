"""A table is published again, and rebuilt, under random writes, while the service is killed at any time.

Before each round the changelog is spoilt behind the service's back: rows that no table ever had, older states, lost
ones. At its end the changelog, folded, is the table. From the first repair on, no state is older than one before it at
any prefix of the log. What a repair deletes is there.
"""

import contextlib
import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from changelog.connectors.servers.postgres import temporary_server
from changelog.connectors.sources.postgres.snapshot.table_reads import FAIL_POINTS as READING_FAIL_POINTS
from changelog.envelope.signal import Do, Signal
from tests.campaigns._pieces import Campaign, Figures, Piece
from tests.campaigns._repaired import Pair, written_to
from tests.campaigns._service import FAIL_POINTS
from tests.servers import fresh_database

ROWS = 200_000
ROUNDS_A_LOG = 10
CATCH_UP_S = 300.0
WRITES_S = 1.5
PLACES = (*FAIL_POINTS, *READING_FAIL_POINTS)


def campaign(rows: int = ROWS) -> Campaign:
    """Ten rounds have one database and one log, which grows."""
    return Campaign(site=lambda: _site(rows), rounds=ROUNDS_A_LOG)


@contextlib.contextmanager
def _site(rows: int) -> Iterator[Callable[[Piece], Figures]]:
    with temporary_server(settings={"fsync": "off", "max_wal_size": "4GB"}) as server:

        def one(piece: Piece) -> Figures:
            with tempfile.TemporaryDirectory(prefix="changelog-repair-") as folder, fresh_database(server) as dsn:
                rng = random.Random(piece.seed)
                pair = Pair(f"r{piece.first}", dsn, Path(folder), rows, pages=rng.choice((4, 16, 64)))
                return _Rounds(pair, rng).run(piece.rounds)

        yield one


class _Rounds:
    def __init__(self, pair: Pair, rng: random.Random) -> None:
        self._pair, self._rng = pair, rng
        self._figures = {"kills": 0, "writes": 0, "spoilt": 0, "keys": 0, "republished": 0, "rebuilt": 0, "deletes": 0}

    def run(self, rounds: int) -> Figures:
        service = self._pair.service
        try:
            self._pair.begin(CATCH_UP_S)
            for number in range(rounds):
                self._round(number)
            service.stop()
        finally:
            service.kill()
        return self._figures

    def _round(self, number: int) -> None:
        pair = self._pair
        pair.service.stop()
        spoilt = pair.spoil(self._rng)
        self._figures["spoilt"] += len(spoilt)
        begun = pair.position
        pair.service.start()
        whole = self._rng.random() < 0.6
        with written_to(pair, self._rng.randrange(1 << 32)) as load:
            signals = self._wanted(number, spoilt, whole=whole)
            asked = pair.ask(signals, lambda: pair.service.wait(self._rng.random() * 0.5))
            self._crash(lambda: pair.ended(asked))
        self._figures["writes"] += load.writes
        pair.until_ended(asked, CATCH_UP_S)
        self._figures["deletes"] += pair.judge(begun)

    def _wanted(self, number: int, spoilt: list[str], *, whole: bool) -> list[Signal]:
        """One rebuild, or all spoilt keys by several signals; now and then both, or more than is needed."""
        signals: list[Signal] = []

        def add(do: Do, keys: tuple[str, ...] | None = None) -> None:
            signals.append(Signal(do=do, id=f"{number}-{len(signals)}", entity="row", keys=keys))

        if whole:
            add("rebuild")
            self._figures["rebuilt"] += 1
        if not whole or self._rng.random() < 0.3:
            rows = self._pair.rows
            keys = [*spoilt, *(str(self._rng.randrange(2 * rows)) for _ in range(len(spoilt)))]
            self._rng.shuffle(keys)
            half = self._rng.randrange(1, len(keys))
            add("republish", tuple(keys[:half]))
            add("republish", tuple(keys[half:]))
            self._figures["keys"] += len(keys)
        if self._rng.random() < 0.2:
            add("republish")
            self._figures["republished"] += 1
        return signals

    def _crash(self, done: Callable[[], bool]) -> None:
        """Kills the service once to thrice, at a place or at any time; then it may go on."""
        service = self._pair.service
        for _ in range(self._rng.choice((1, 2, 3))):
            if service.wait(self._rng.random() * WRITES_S):
                pass  # it crashed at its place
            elif done() and self._rng.random() < 0.5:
                continue
            service.kill()
            self._figures["kills"] += 1
            place = f"{self._rng.choice(PLACES)}:{self._rng.randrange(1, 20)}"
            service.start(place if self._rng.random() < 0.4 else None)
        service.wait(self._rng.random() * WRITES_S)
        service.kill()
        self._figures["kills"] += 1
        service.start()
