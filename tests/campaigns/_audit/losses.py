"""Makes faults after which the service can never read some changes. After each of these faults, the service stops with
an error that names a command. The campaign then runs this command.
"""

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

from changelog.connectors.servers.postgres import PostgresServer
from changelog.connectors.sources.postgres.crossing import FAIL_POINTS as GAP_FAIL_POINTS
from changelog.connectors.sources.postgres.values.lsn import through_lsn
from changelog.envelope.checkpoint import Checkpoint
from tests.campaigns._audit.history import Restored, history, place
from tests.campaigns._audit.site import CATCH_UP_S, NAME, Sink, Site
from tests.campaigns._audit.tables import table_of
from tests.proxy import Proxy

HIDDEN_S = (0.2, 3.0)
REFUSED, SHOWN = 3, 1
"""Exit codes: that of a service that cannot continue, and that of a command that only shows what it would do."""

_WAY = re.compile(r"`changelog (run [^`]+)`")
_END = re.compile(r"(?m)^Latest checkpoint location: +(\w+)/(\w+)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class GapLimits:
    """The widest gap that a fault may leave in the changelog.

    The gap begins at `through`, where the changelog ended before the fault; the changelog's last row had the position
    `last`. The gap must end at `end` or before: the server's log ended at `end` when the service was running again.
    `emptied` and `restored` mean the same as in `rows.Gap`.
    """

    through: int
    last: str
    end: int
    emptied: frozenset[str] | None
    restored: bool


class Losses(Site):
    """A service whose slot, publication or database can be lost."""

    def __init__(
        self, server: PostgresServer, link: Proxy, folder: Path, seed: int, sink: Sink, small: Sequence[str] = ()
    ) -> None:
        super().__init__(server, link, folder, seed, sink, small)
        self.gap_limits: list[GapLimits] = []

    def losses(self) -> list[Callable[[], None]]:
        """The faults that lose changes, each once."""
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
        """Drops the publication, either while the service runs or while it is stopped."""
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
        """Restores the database to an earlier state on the same timeline. The database then lacks changes that the
        service has already published.
        """
        self.done["database restored"] += 1
        copy, at = self._copy_server()
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute("INSERT INTO seat VALUES (%s, 'with the restore')", [f"lost {len(self.restored)}"])
        end = self.log_end()
        self.service.until_stored(self.sink.stored, lambda stored: through_lsn(stored) > end, CATCH_UP_S)
        self.let_run(self.rng.uniform(*HIDDEN_S))
        if away := self.rng.random() < 0.5:
            self.end_service()
        self.link.stop()
        self.until_gone()
        # The service has no session any more, so it cannot have published a transaction that this history lacks.
        restored = Restored(at=at, transactions=history(self.dsn))
        self.server.stop("immediate")
        shutil.rmtree(self.server.data_dir)
        copy.rename(self.server.data_dir)
        self.server.start()
        self.link.resume()
        if away:
            self.service.start()
        self.go_over_gap(restored=restored)

    def _copy_server(self) -> tuple[Path, int]:
        """Stops the server, copies its files, and starts it again. Returns the copy, and where its log ends."""
        self.server.stop()
        output = self.server.run("pg_controldata", str(self.server.data_dir))
        assert "shut down\n" in output, f"the server did not shut down properly: {output}"
        end = _END.search(output)
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
        """Waits until the service stops. The last line of its log names a command that shows the gap. The output of
        this command names a second one, which continues after the gap. Runs both. Sometimes makes the second one crash,
        and runs it again.

        `before` is the last checkpoint of the changelog. The caller gives it if the checkpoint can no longer be read.
        """
        code, last = self.service.ended(CATCH_UP_S), self.last_line()
        ways = _WAY.findall(last)
        assert code == REFUSED, f"the service ended with {code}: {last}"
        assert ways, f"the service names no command to continue with: {last}"
        time.sleep(self.rng.uniform(*HIDDEN_S))
        stored = before or self.sink.stored()
        assert stored is not None
        through = place(through_lsn(stored), [earlier.at for earlier in self.restored])
        if restored is not None:
            self.restored.append(restored)
        point = self.rng.choice((None, *GAP_FAIL_POINTS))
        with self.without_migrations():
            self._run_over_gap(self._arguments_to_continue(ways[-1].split()), point, stored.epoch)
        emptied_entities: frozenset[str] | None = frozenset(emptied)
        # After a crash at this point, the new slot exists, and begins after the end of the changelog. The second run
        # then assumes that the changelog has lost rows, and empties all entities.
        if point == "gap:slot-made" and before is None:
            emptied_entities = None if restored is not None else frozenset(self.names)
        self.gap_limits.append(
            GapLimits(
                through=through,
                last=str(stored.position),
                end=self.here(),
                emptied=emptied_entities,
                restored=restored is not None,
            )
        )

    def _arguments_to_continue(self, arguments: Sequence[str]) -> Sequence[str]:
        """Runs a command that only shows the gap. Its output names the command that continues after the gap. Returns
        the arguments of that second command.
        """
        self.until_gone()
        output = self.command(*arguments, code=SHOWN)
        before, _, way = output.rstrip().rpartition("to go on: changelog run ")
        assert before, f"no command to continue with is shown: {output}"
        return way.split()

    def _run_over_gap(self, arguments: Sequence[str], point: str | None, epoch: int) -> None:
        """Lets the service continue after the gap. If `point` is given, lets the service crash there first."""
        self.until_gone()
        if point is not None:
            self.service.start(point, *arguments)
            assert self.service.wait(CATCH_UP_S), f"{point} was not reached: {self.service.said()[-2000:]}"
            self.until_gone()
        self.service.start(None, *(() if point == GAP_FAIL_POINTS[-1] else arguments))
        self.service.until_stored(self.sink.stored, lambda stored: stored.epoch > epoch, CATCH_UP_S)

    @contextmanager
    def without_migrations(self) -> Iterator[None]:
        """Locks all tables, so that none is altered or truncated while PostgreSQL creates a slot.

        When PostgreSQL begins to create a slot, it does not track commits yet. If a table were altered or truncated in
        this moment, PostgreSQL would decode its changes with the old columns, or would not find its file.
        """
        tables = sql.SQL(", ").join(map(table_of, self.names))
        # These locks do not delay the slot, because its creation waits only for transactions that write.
        with psycopg.connect(self.dsn) as connection:
            connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(tables))
            yield

    def last_line(self) -> str:
        """The last line that the service logged."""
        return self.service.said().rstrip().rpartition("\n")[2]
