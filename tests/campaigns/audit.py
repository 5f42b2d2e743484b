"""Makes faults while writers use two-phase commits, migrations, COPY, MERGE, cascades, key swaps and long values.

Meanwhile, tables are added, and other tables are repaired (read again). The code that judges the changelog shares
nothing with the product. Triggers record every change of the tables, and a slot of `test_decoding` gives the order of
the commits. Each row of the changelog must have the states and the stamp that the triggers recorded, and the rows must
be in the order of the commits. No change may be missing, and the last states in the changelog must equal the tables.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, nullcontext
from pathlib import Path

from changelog.connectors.capture.tables.table_progress import is_complete
from changelog.connectors.servers.postgres import temporary_server
from changelog.connectors.servers.unprivileged import temporary_folder
from changelog.connectors.sinks.files.log import read_checkpoint
from changelog.connectors.sources.postgres.values.lsn import through_lsn
from changelog.envelope.checkpoint import Checkpoint
from tests.campaigns._audit.block import Block
from tests.campaigns._audit.losses import REFUSED
from tests.campaigns._audit.rows import Gap, Row, gaps_of_files, of_files
from tests.campaigns._audit.site import CATCH_UP_S, POSTGRES
from tests.campaigns._audit.wide import SIZES, TABLE, WideRows
from tests.campaigns._pieces import Campaign, Figures, Piece
from tests.campaigns._service import FAIL_POINTS
from tests.campaigns.kafka import KEEP
from tests.proxy import Proxy
from tests.servers.disks import fill, make_room, small_disk

ROUNDS = 10
KILLED_AFTER_S = (1.0, 5.0)
DISK_MIB = 1_500


def campaign() -> Campaign:
    """Each round makes one fault. ROUNDS rounds share one server and the threads that write to it."""
    return Campaign(site=lambda: nullcontext(_block), rounds=ROUNDS)


class Files:
    """A file log (Parquet files) as the sink of the changelog."""

    section = 'path = "changelog"\ncommit_rows = 500\ncommit_seconds = 0.1'
    fail_points = tuple(point for point in FAIL_POINTS if point.startswith("files:"))

    def __init__(self, path: Path) -> None:
        self._path = path

    def stored(self) -> Checkpoint | None:
        return read_checkpoint(self._path)

    def rows(self, entities: Sequence[str]) -> Iterator[Row]:
        return of_files(self._path)

    def gaps(self) -> list[Gap]:
        return gaps_of_files(self._path)


class FilesBlock(Block):
    """A block with a file log. It also has rows that are too wide for Kafka. If the changelog has a `small` disk of its
    own, the block also fills this disk.
    """

    small = False

    def faults(self) -> list[Callable[[], None]]:
        full = [self._fill_disk] * 2 if self.small else []
        return [*super().faults(), *[self._read_wide_rows] * 2, *full]

    def _fill_disk(self) -> None:
        """Fills the disk. The service must stop with an error that asks for free space and a new start. The campaign
        then frees space, and starts the service again.
        """
        self.done["disk full"] += 1
        disk = self.folder / "changelog"
        fill(disk)
        code = self.service.ended(CATCH_UP_S)
        assert (code, "free space, then start again: nothing is lost" in self.last_line()) == (REFUSED, True), (
            f"the service ended with {code}: {self.last_line()}"
        )
        make_room(disk)
        self.service.start()

    def _read_wide_rows(self) -> None:
        """Lets the service read the wide rows while they change. The first time, adds their table for this; later,
        repairs the table. Half of the time, kills the service while it reads.
        """
        self.done["wide rows read"] += 1
        with WideRows(self.dsn, self.rng.randrange(1 << 32)):
            if TABLE in self.names:
                how = self.rng.choice(("rebuild", "republish --all", "republish --keys"))
                self.repair(TABLE, how, *(map(str, SIZES) if how.endswith("--keys") else ()))
            else:
                self.add_table(TABLE)
            if self.rng.random() < 0.5:
                self.let_run(self.rng.uniform(*KILLED_AFTER_S))
                self.kill()
            end = self.log_end()
            self.service.until_stored(self.sink.stored, lambda stored: _is_read(stored, end), CATCH_UP_S)


def _is_read(checkpoint: Checkpoint, end: int) -> bool:
    """Whether the changelog has reached this position, and the service has read the wide rows.

    Other tables are not checked, because one of them may always be under repair.
    """
    wide_rows_read = is_complete(checkpoint.windows.get(TABLE))
    return wide_rows_read and through_lsn(checkpoint) > end and TABLE not in checkpoint.repairs.get("open", {})


def _block(piece: Piece) -> Figures:
    with temporary_folder("changelog-audit-") as folder, temporary_server(settings=POSTGRES) as server:
        try:
            with Proxy("127.0.0.1", server.port) as link, small_disk(folder / "changelog", DISK_MIB) as small:
                block = FilesBlock(server, link, folder, piece.seed, Files(folder / "changelog"))
                block.small = small
                with closing(block):
                    return block.run(piece.rounds)
        except BaseException:
            if keep_folder := os.environ.get(KEEP):
                shutil.copytree(folder, Path(keep_folder) / f"audit-{piece.seed}", dirs_exist_ok=True)
            raise
