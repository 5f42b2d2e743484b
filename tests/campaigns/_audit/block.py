"""Makes faults while writers change the tables, and then judges the changelog."""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import psycopg

from changelog.connectors.servers.postgres import PostgresServer
from changelog.connectors.sources.postgres.values.lsn import through_lsn
from tests.campaigns._audit.faults import ROWS, Faults
from tests.campaigns._audit.history import BRANCH, history, tables, with_lost
from tests.campaigns._audit.judge import Since, judge
from tests.campaigns._audit.load import Load, touch
from tests.campaigns._audit.losses import GapLimits
from tests.campaigns._audit.rows import Gap
from tests.campaigns._audit.site import CATCH_UP_S, NAME, Sink
from tests.campaigns._audit.tables import ENTITIES, MIGRATED, prepare
from tests.campaigns._pieces import Figures
from tests.campaigns._service import is_read
from tests.proxy import Proxy

LOADED_S_MAX = 2.0
_GIVEN_UP = re.compile(r'(?m)^.*(?:no answer for|has been silent for).*"connection lost"')


class Block(Faults):
    """The rounds of a campaign that share one database, its changelog, and the threads that write to its tables.

    Each kind of sink has a subclass. The subclass adds the faults of its sink to those that `faults` returns.
    """

    def __init__(
        self, server: PostgresServer, link: Proxy, folder: Path, seed: int, sink: Sink, small: Sequence[str] = ()
    ) -> None:
        super().__init__(server, link, folder, seed, sink, small)
        self._tables = [*ENTITIES, *small]
        prepare(self.dsn, ROWS, small)
        self._load = Load(self.dsn, self.rng.randrange(1 << 32), small)

    def close(self) -> None:
        super().close()
        self._load.stop()

    def run(self, rounds: int) -> Figures:
        """Makes `rounds` faults, and judges the changelog."""
        self._load.start()
        with self.without_migrations():
            self.service.start()
            slot_start = self.service.slot_made(self.dsn, NAME)
        self.since = {name: Since(nothing=slot_start) for name in self.names}
        started = time.monotonic()
        for fault in self._choose_faults(rounds):
            if self.rng.random() < 0.7:
                self.advance()
            self.let_run(self.rng.random() * LOADED_S_MAX)
            fault()
        self._load.finish()
        loaded_s = time.monotonic() - started
        self._catch_up()
        return self._judge(loaded_s)

    def _choose_faults(self, rounds: int) -> list[Callable[[], None]]:
        """Chooses a fault for each round. Takes all of `faults()` in random order, then all again in another order."""
        choices: list[Callable[[], None]] = []
        while len(choices) < rounds:
            faults = self.faults()
            choices += self.rng.sample(faults, len(faults))
        return choices[:rounds]

    def _catch_up(self) -> None:
        """Waits until all writes are published and all repairs are done. Then runs `rebuild` for one table."""
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

    def _judge(self, loaded_s: float) -> Figures:
        gaps = _check_gaps(self.sink.gaps(), self.gap_limits)
        transactions = with_lost(history(self.dsn), self.restored)
        rows = self.sink.rows(self.names)
        verdict = judge(rows, transactions, self.since, tables(self.dsn, self._tables), gaps)
        counts = self._load.counts
        verdict.check()
        assert not verdict.as_text or self.done["types altered"], (
            "a row has a composite as text, although no fault altered a type"
        )
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


def _check_gaps(gaps: Sequence[Gap], gap_limits: Sequence[GapLimits]) -> list[Gap]:
    """Checks that the changelog has exactly the gaps that were made, and that no gap is wider than its limits.

    Adds to the gaps what only the campaign knows: exact positions, and what was emptied or restored. Returns them.
    """
    assert len(gaps) == len(gap_limits), f"{len(gap_limits)} gaps were made, but the changelog has these: {gaps}"
    checked = []
    for gap, most in zip(gaps, gap_limits, strict=True):
        start = gap.start or most.through % BRANCH  # a gap does not name its start if the checkpoint was lost, too
        assert start == most.through % BRANCH, f"{gap} does not begin where the changelog ended: {most}"
        assert gap.end <= most.end % BRANCH, f"{gap} ends after the position from which the service continued: {most}"
        end = most.end // BRANCH * BRANCH + gap.end
        assert most.through <= end, f"{gap} ends before it begins: {most}"
        last = gap.last or most.last
        checked.append(
            replace(gap, last=last, start=most.through, end=end, emptied=most.emptied, restored=most.restored)
        )
    return checked
