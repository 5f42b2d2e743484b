"""Lets the service repair the changelog of a table while threads write to the table, and kills the service at random
moments. There are two kinds of repair: to *republish* means to read rows again and to publish them; to *rebuild* means
to republish the whole table, and to publish a delete of each key that the table lacks.

Before each round, the service is stopped, and forged rows are appended to its changelog: rows with keys that the table
never had, wrong states of existing rows, and deletes of existing rows. At the end of a round, the last states in the
changelog must equal the table. In the rows that come after the forged ones, an old state of a key must not follow a
newer one. A repair may delete only keys that exist in the changelog.
"""

import contextlib
import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from changelog.connectors.capture.table_reads import FAIL_POINTS as READING_FAIL_POINTS
from changelog.connectors.servers.postgres import temporary_server
from changelog.envelope.signal import Do, Signal
from tests.campaigns._pieces import Campaign, Figures, Piece
from tests.campaigns._repaired import Pair, written_to
from tests.campaigns._service import FAIL_POINTS
from tests.servers import fresh_database

ROWS = 200_000
ROUNDS_A_LOG = 10
CATCH_UP_S = 300.0
WRITES_S = 1.5
REPAIR_POINTS = (*FAIL_POINTS, *READING_FAIL_POINTS)


def campaign(rows: int = ROWS) -> Campaign:
    """Each round spoils the changelog once. Ten rounds share one database and one changelog."""
    return Campaign(site=lambda: _site(rows), rounds=ROUNDS_A_LOG)


@contextlib.contextmanager
def _site(rows: int) -> Iterator[Callable[[Piece], Figures]]:
    with temporary_server(settings={"fsync": "off", "max_wal_size": "4GB"}) as server:

        def run_piece(piece: Piece) -> Figures:
            with tempfile.TemporaryDirectory(prefix="changelog-repair-") as folder, fresh_database(server) as dsn:
                rng = random.Random(piece.seed)
                pair = Pair(f"r{piece.first}", dsn, Path(folder), rows, pages=rng.choice((4, 16, 64)))
                return _Rounds(pair, rng).run(piece.rounds)

        yield run_piece


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
        position = pair.position
        pair.service.start()
        rebuild = self._rng.random() < 0.6
        with written_to(pair, self._rng.randrange(1 << 32)) as load:
            signals = self._signals(number, spoilt, rebuild=rebuild)
            signal_ids = pair.ask(signals, lambda: pair.service.wait(self._rng.random() * 0.5))
            self._crash(lambda: pair.ended(signal_ids))
        self._figures["writes"] += load.writes
        pair.until_ended(signal_ids, CATCH_UP_S)
        self._figures["deletes"] += pair.judge(position)

    def _signals(self, number: int, spoilt: list[str], *, rebuild: bool) -> list[Signal]:
        """Returns signals that ask for the repair of all spoilt keys. They rebuild the table, republish these keys, or
        do both.

        Signals that republish keys also name keys that are correct. Sometimes, one more signal republishes the whole
        table.
        """
        signals: list[Signal] = []

        def add(do: Do, keys: tuple[str, ...] | None = None) -> None:
            signals.append(Signal(do=do, id=f"{number}-{len(signals)}", entity="row", keys=keys))

        if rebuild:
            add("rebuild")
            self._figures["rebuilt"] += 1
        if not rebuild or self._rng.random() < 0.3:
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
        """Kills the service up to four times, at fail points or at random moments. Then starts it a last time."""
        service = self._pair.service
        for _ in range(self._rng.choice((1, 2, 3))):
            if service.wait(self._rng.random() * WRITES_S):
                pass  # it crashed at its fail point
            elif done() and self._rng.random() < 0.5:
                continue
            service.kill()
            self._figures["kills"] += 1
            fail_point = f"{self._rng.choice(REPAIR_POINTS)}:{self._rng.randrange(1, 20)}"
            service.start(fail_point if self._rng.random() < 0.4 else None)
        service.wait(self._rng.random() * WRITES_S)
        service.kill()
        self._figures["kills"] += 1
        service.start()
