"""What loses changes for good, and the way on from there: precisely the one that the service names when it stops."""

import re
import shutil
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg import sql

from changelog.connectors.servers.postgres import Server
from changelog.connectors.sources.postgres.crossing import FAIL_POINTS as GAP_FAIL_POINTS
from changelog.connectors.sources.postgres.values.lsn import through_lsn
from changelog.envelope.checkpoint import Checkpoint
from tests.campaigns._audit.history import Restored, history, place
from tests.campaigns._audit.site import CATCH_UP_S, NAME, Sink, Site
from tests.campaigns._audit.tables import table_of
from tests.proxy import Proxy

HIDDEN_S = (0.2, 3.0)
REFUSED, SHOWN = 3, 1
"""Exit codes: of a service that goes no further, and of a way on that was only shown."""

_WAY = re.compile(r"`changelog (run [^`]+)`")
_END = re.compile(r"(?m)^Latest checkpoint location: +(\w+)/(\w+)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossed:
    """What a gap may hide at most: from `through`, where the changelog ended before it, with the row at `last`, to
    where the server's log ended after it; `emptied` and `restored` as of a `Gap`.
    """

    through: int
    last: str
    end: int
    emptied: frozenset[str] | None
    restored: bool


class Losses(Site):
    """A site whose slot, publication or database can be lost."""

    def __init__(
        self, server: Server, link: Proxy, folder: Path, seed: int, sink: Sink, small: Sequence[str] = ()
    ) -> None:
        super().__init__(server, link, folder, seed, sink, small)
        self.crossed: list[Crossed] = []

    def losses(self) -> list[Callable[[], None]]:
        """One of each."""
        return [self._drop_slot, self._drop_publication, self._restore]

    def _drop_slot(self) -> None:
        self.done["slot dropped"] += 1
        self.end_service()
        self.until_gone()
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute("SELECT pg_drop_replication_slot(%s)", [NAME])
        self.service.start()
        self.go_over_gap()

    def _drop_publication(self) -> None:
        """Under a running service, or while it is away."""
        self.done["publication dropped"] += 1
        away = self.rng.random() < 0.5
        if away:
            self.end_service()
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(sql.SQL("DROP PUBLICATION {}").format(sql.Identifier(NAME)))
        if away:
            self.until_gone()
            self.service.start()
        self.go_over_gap()

    def _restore(self) -> None:
        """The database goes back to an earlier point on the same timeline; what was lost so had been published."""
        self.done["database restored"] += 1
        copy, at = self._copied()
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute("INSERT INTO seat VALUES (%s, 'with the restore')", [f"lost {len(self.restored)}"])
        end = self.log_end()
        self.service.until_stored(self.sink.stored, lambda stored: through_lsn(stored) > end, CATCH_UP_S)
        self.loaded(self.rng.uniform(*HIDDEN_S))
        if away := self.rng.random() < 0.5:
            self.end_service()
        self.link.stop()
        self.until_gone()
        restored = Restored(at=at, transactions=history(self.dsn))  # all that the service may have seen
        self.server.stop("immediate")
        shutil.rmtree(self.server.data_dir)
        copy.rename(self.server.data_dir)
        self.server.start()
        self.link.resume()
        if away:
            self.service.start()
        self.go_over_gap(restored=restored)

    def _copied(self) -> tuple[Path, int]:
        """A copy of the stopped server's files, and where its log ends."""
        self.server.stop()
        said = self.server.run("pg_controldata", str(self.server.data_dir))
        assert "shut down\n" in said, f"the server did not stop in order: {said}"
        end = _END.search(said)
        assert end is not None
        copy = self.server.data_dir.with_name("copy")
        subprocess.run(["cp", "-a", str(self.server.data_dir), str(copy)], check=True)
        self.server.start()
        return copy, (int(end[1], 16) << 32) + int(end[2], 16)

    def go_over_gap(
        self,
        before: Checkpoint | None = None,
        *,
        emptied: Collection[str] = (),
        restored: Restored | None = None,
    ) -> None:
        """The service has stopped, or will, and names the way on: it is gone, now and then with a kill on it.

        `before` is the changelog's last checkpoint, where it can no longer be read.
        """
        code, last = self.service.ended(CATCH_UP_S), self.last_line()
        ways = _WAY.findall(last)
        assert code == REFUSED, f"the service ended with {code}: {last}"
        assert ways, f"the service names no way on: {last}"
        time.sleep(self.rng.uniform(*HIDDEN_S))
        stored = before or self.sink.stored()
        assert stored is not None
        through = place(through_lsn(stored), [each.at for each in self.restored])
        if restored is not None:
            self.restored.append(restored)
        point = self.rng.choice((None, *GAP_FAIL_POINTS))
        with self.unmigrated():
            self._go(self._shown(ways[-1].split()), point, stored.epoch)
        gone: frozenset[str] | None = frozenset(emptied)
        if point == "gap:slot-made" and before is None:  # this slot stands past the end, as if rows had been lost
            gone = None if restored is not None else frozenset(self.names)
        self.crossed.append(
            Crossed(
                through=through,
                last=str(stored.position),
                end=self.here(),
                emptied=gone,
                restored=restored is not None,
            )
        )

    def _shown(self, words: Sequence[str]) -> Sequence[str]:
        """The way that was named only shows what is known, and the words to go on with."""
        self.until_gone()
        shown = self.command(*words, code=SHOWN)
        told, _, way = shown.rstrip().rpartition("to go on: changelog run ")
        assert told, f"no way on is shown: {shown}"
        return way.split()

    def _go(self, words: Sequence[str], point: str | None, epoch: int) -> None:
        """With a crash at that point."""
        self.until_gone()
        if point is not None:
            self.service.start(point, *words)
            assert self.service.wait(CATCH_UP_S), f"{point} was not reached: {self.service.said()[-2000:]}"
            self.until_gone()
        self.service.start(None, *(() if point == GAP_FAIL_POINTS[-1] else words))
        self.service.until_stored(self.sink.stored, lambda stored: stored.epoch > epoch, CATCH_UP_S)

    @contextmanager
    def unmigrated(self) -> Iterator[None]:
        """No table is altered or truncated meanwhile: PostgreSQL does not track what is committed while it begins to
        make a slot, and decodes a table that was altered then as it was before, or fails to find its file.
        """
        tables = sql.SQL(", ").join(map(table_of, self.names))
        with psycopg.connect(self.dsn) as connection:  # it writes nothing, so the slot does not wait for it
            connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(tables))
            yield

    def last_line(self) -> str:
        """What the service said last."""
        return self.service.said().rstrip().rpartition("\n")[2]
