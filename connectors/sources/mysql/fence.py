"""Takes a fence: a cut (the transactions that one snapshot of the server sees), and copies of the tables at this cut.

Sessions of MySQL and MariaDB cannot share a snapshot. So one session reads all tables under one snapshot, and the Spark
driver writes their rows to files, which other processes read. The snapshot ends before the rows are compared with the
changelog.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from changelog.connectors.sources.fences import FencedTable, Shown
from changelog.connectors.sources.mysql.admin.columns import ColumnCatalog
from changelog.connectors.sources.mysql.admin.server_log import end_coordinate, server_identity
from changelog.connectors.sources.mysql.admin.signals import send_fence
from changelog.connectors.sources.mysql.decode.rows.binder import Binder
from changelog.connectors.sources.mysql.scan import GROUP_PAGES, CopiedTable, MysqlScan
from changelog.connectors.sources.mysql.session.connection import Connection
from changelog.connectors.sources.mysql.session.names import quoted
from changelog.connectors.sources.mysql.settings import Settings
from changelog.connectors.sources.mysql.snapshot.cut import Cut, take_cut
from changelog.connectors.sources.mysql.snapshot.read_table import ReadTable, read_table
from changelog.connectors.sources.mysql.spool import copy_table
from changelog.connectors.sources.mysql.values.positions.coordinates import coordinate_text
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError, Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class MysqlFence:
    """Implements `changelog.connectors.sources.fences.Fence`.

    The fence shows the transactions of `cut`, on the server with the identity `identity`. `control` is a connection to
    this server.
    """

    cut: Cut
    identity: str
    database: str
    server: str
    taken_at: datetime
    tables: Mapping[str, FencedTable]
    scan: MysqlScan
    control: Connection

    @property
    def text(self) -> str:
        """See `Fence.text`."""
        return self.cut.gtids

    @property
    def place(self) -> str:
        """See `Fence.place`."""
        return coordinate_text(self.cut.end)

    @property
    def shown(self) -> Shown:
        """See `Fence.shown`. The commit in a position is the coordinate at which its transaction begins."""
        return Shown(end=self.cut.end, hidden=(), ids="commits")

    def is_of(self, checkpoint: Checkpoint) -> bool:
        """See `Fence.is_of`. Coordinates of two servers cannot be compared, even if one is a replica of the other."""
        return checkpoint.source.get("server") == self.identity

    def missing(self, checkpoint: Checkpoint) -> str | None:
        """See `Fence.missing`. If the changelog is ahead of the server's log, somebody has reset the log (RESET)."""
        through = int(checkpoint.through, 16)
        if through < self.cut.end:
            return f"it reaches {coordinate_text(through)}, but the snapshot is at {self.place}"
        end = end_coordinate(self.control.query, self.control.version)
        if through > end:
            return f"it reaches {coordinate_text(through)}, but the server's log ends at {coordinate_text(end)}"
        return None


@contextlib.contextmanager
def hold_fence(settings: Settings, entities: Sequence[Entity], *, deadline: float) -> Iterator[MysqlFence]:
    """Yields a fence. Deletes the copies of the tables at the end of the `with` statement.

    `deadline` (in seconds of `time.monotonic`) limits the wait for locked tables. Raises NoFenceError if no cut can be
    taken, and ChangelogError (ALTERED) if a table is gone.
    """
    with settings.connect() as control, _folder(settings) as folder:
        catalog = ColumnCatalog.of(control.query, control.flavour)
        with settings.connect_reading(settings.stopping) as reader:
            names = [quoted(*entity.table) for entity in entities]
            cut = take_cut(reader, control, names, deadline=deadline)
            taken_at = datetime.now(UTC)
            send_fence(control)
            binder = Binder(hmac_key=settings.hmac_key)
            tables = [read_table(catalog, binder, entity) for entity in entities]
            fenced, copied = _copies(reader, tables, folder)
        yield MysqlFence(
            cut=cut,
            identity=server_identity(control.query, control.version),
            database=settings.address.database,
            server=control.version.text,
            taken_at=taken_at,
            tables=fenced,
            scan=MysqlScan(tables=copied),
            control=control,
        )


@contextlib.contextmanager
def _folder(settings: Settings) -> Iterator[Path]:
    """Yields a new folder that only this process's account can read. Deletes it at the end of the `with` statement."""
    try:
        folder = TemporaryDirectory(prefix="changelog-fence-", dir=settings.fence_folder)
    except OSError as error:
        raise ChangelogError(
            Kind.USAGE,
            f"cannot make a folder for copies of tables: {error}",
            hint="set fence_folder in [source] to a folder in which this process may write",
        ) from error
    with folder as name:
        yield Path(name)


def _copies(
    reader: Connection, tables: Sequence[ReadTable], folder: Path
) -> tuple[Mapping[str, FencedTable], Mapping[str, CopiedTable]]:
    """Copies the tables, each to a file of its own."""
    fenced, copied = {}, {}
    for number, table in enumerate(tables):
        binding, file = table.bound.binding, folder / f"{number}.parquet"
        groups = copy_table(reader, table, file)
        fenced[table.entity.name] = FencedTable(binding=binding, leaf_pages=(groups * GROUP_PAGES,))
        copied[table.entity.name] = CopiedTable(file=file, key_columns=len(binding.key))
    return fenced, copied
