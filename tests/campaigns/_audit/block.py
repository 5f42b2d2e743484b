"""Rounds of faults under one load, and the verdict on the changelog that came of it; for any sink."""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import psycopg

from changelog.connectors.servers.postgres import Server
from changelog.connectors.sources.postgres.values.lsn import through_lsn
from tests.campaigns._audit.faults import ROWS, Faults
from tests.campaigns._audit.history import BRANCH, history, tables, with_lost
from tests.campaigns._audit.judge import Since, judge
from tests.campaigns._audit.load import Load, touch
from tests.campaigns._audit.losses import Crossed
from tests.campaigns._audit.rows import Gap
from tests.campaigns._audit.site import CATCH_UP_S, NAME, Sink
from tests.campaigns._audit.tables import ENTITIES, MIGRATED, prepare
from tests.campaigns._pieces import Figures
from tests.campaigns._service import is_read
from tests.proxy import Proxy

LOADED_S_MAX = 2.0
_GIVEN_UP = re.compile(r'(?m)^.*(?:no answer for|has been silent for).*"connection lost"')


class Block(Faults):
    """One database, one changelog, one load; a subclass adds what can go wrong with its sink to `faults`."""

    def __init__(
        self, server: Server, link: Proxy, folder: Path, seed: int, sink: Sink, small: Sequence[str] = ()
    ) -> None:
        super().__init__(server, link, folder, seed, sink, small)
        self._tables = [*ENTITIES, *small]
        prepare(self.dsn, ROWS, small)
        self._load = Load(self.dsn, self.rng.randrange(1 << 32), small)

    def close(self) -> None:
        super().close()
        self._load.stop()

    def run(self, rounds: int) -> Figures:
        """`rounds` faults, and the verdict."""
        self._load.start()
        with self.unmigrated():
            self.service.start()
            begun = self.service.slot_made(self.dsn, NAME)
        self.since = {name: Since(nothing=begun) for name in self.names}
        started = time.monotonic()
        for fault in self._dealt(rounds):
            if self.rng.random() < 0.7:
                self.advance()
            self.loaded(self.rng.random() * LOADED_S_MAX)
            fault()
        self._load.finish()
        loaded_s = time.monotonic() - started
        self._catch_up()
        return self._judged(loaded_s)

    def _dealt(self, rounds: int) -> list[Callable[[], None]]:
        """As many faults as there are rounds, from a deck that is shuffled again when it is used up."""
        dealt: list[Callable[[], None]] = []
        while len(dealt) < rounds:
            deck = self.faults()
            dealt += self.rng.sample(deck, len(deck))
        return dealt[:rounds]

    def _catch_up(self) -> None:
        """Faults have ceased: all that was written is published, and a table is rebuilt."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for table in MIGRATED:
                touch(connection, table, 0)
        end = self.log_end()
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute("INSERT INTO seat VALUES ('last', 'write')")
        self.service.until_stored(
            self.sink.stored,
            lambda stored: through_lsn(stored) > end and is_read(stored) and not stored.repairs.get("open"),
            CATCH_UP_S,
        )
        self.command("rebuild", self.rng.choice(self.names))
        self.service.stop()

    def _judged(self, loaded_s: float) -> Figures:
        gaps = _checked(self.sink.gaps(), self.crossed)
        transactions = with_lost(history(self.dsn), self.restored)
        rows = self.sink.rows(self.names)
        verdict = judge(rows, transactions, self.since, tables(self.dsn, self._tables), gaps)
        counts = self._load.counts
        verdict.check()
        assert not verdict.as_text or self.done["types altered"], "a composite is text, though nobody altered its type"
        return {
            "faults": dict(sorted(self.done.items())),
            "changes": verdict.changes,
            "reads": verdict.reads,
            "transactions": verdict.transactions,
            "in_gaps": verdict.in_gaps,
            "as_text": verdict.as_text,
            "prepared": counts.prepared,
            "altered": counts.altered,
            "given_up": len(_GIVEN_UP.findall(self.service.said())),
            "unknown": verdict.unknown,
            "load_s": round(loaded_s),
            "changes_per_s": [round(verdict.changes / loaded_s)],
            "lost": verdict.lost,
            "repeated": verdict.repeated,
            "reordered": verdict.reordered,
        }


def _checked(gaps: Sequence[Gap], crossed: Sequence[Crossed]) -> list[Gap]:
    """Each gap that was made is told, no other, and none is told to be wider than it may be."""
    assert len(gaps) == len(crossed), f"{len(crossed)} gaps were made, and these are told: {gaps}"
    checked = []
    for gap, most in zip(gaps, crossed, strict=True):
        known = gap.start or most.through % BRANCH  # nothing of before is told where no checkpoint is left
        assert known == most.through % BRANCH, f"{gap} begins elsewhere than the changelog ended, at {most}"
        assert gap.end <= most.end % BRANCH, f"{gap} ends after the service went on, at {most}"
        end = most.end // BRANCH * BRANCH + gap.end
        assert most.through <= end, f"{gap} ends before it begins, at {most}"
        last = gap.last or most.last
        checked.append(
            replace(gap, last=last, start=most.through, end=end, emptied=most.emptied, restored=most.restored)
        )
    return checked
