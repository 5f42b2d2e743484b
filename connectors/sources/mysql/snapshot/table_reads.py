"""Plans and starts the table reads of an opened source. `capture.table_reads` does the part that all databases share.

Tables are read in chunks. A chunk is a range of keys, or the rows of some keys.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from changelog.connectors.capture.rows.row_records import Origin
from changelog.connectors.capture.table_reads import TableReads
from changelog.connectors.capture.tables import survivors
from changelog.connectors.capture.tables.planned_reads import PlannedReads
from changelog.connectors.capture.tables.repairs import Repairs
from changelog.connectors.capture.tables.windows import Visibility
from changelog.connectors.failpoints import Reach, nowhere
from changelog.connectors.sources.mysql.admin.catalog import Table, TableName
from changelog.connectors.sources.mysql.admin.columns import ColumnCatalog
from changelog.connectors.sources.mysql.decode.rows.binder import Binder
from changelog.connectors.sources.mysql.session.connection import Connection
from changelog.connectors.sources.mysql.snapshot.chunk_reader import ChunkReader, ReadChunks, nonce, take_snapshot
from changelog.connectors.sources.mysql.snapshot.key_progress import KeyProgress
from changelog.connectors.sources.mysql.snapshot.read_table import ReadTable, read_table, signature
from changelog.connectors.sources.mysql.snapshot.visibility import Deliveries
from changelog.envelope.entity import Entity


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadContext:
    """What the table reads of an opened source need.

    `workers` is the number of threads that read; `connect` opens their sessions. At first, a chunk has `chunk_rows`
    rows. `tables` has what the catalogue says about the tables. `horizon` is the coordinate at which the stream
    begins. Each chunk that was read is added to `chunks`. `changelog` reads the stored rows of entities; it is None if
    the sink cannot be read. `reach` is called at each of `capture.table_reads.FAIL_POINTS`.
    """

    origin: Origin
    connect: Callable[[], Connection]
    binder: Binder
    workers: int
    chunk_rows: int
    horizon: int
    chunks: ReadChunks
    deliveries: Deliveries
    tables: Mapping[TableName, Table]
    changelog: survivors.Read | None
    reach: Reach = nowhere


def planned_reads(
    catalog: ColumnCatalog,
    context: ReadContext,
    entities: Sequence[Entity],
    windows: Mapping[str, Any],
    repairs: Repairs,
) -> TableReads:
    """Plans which tables an opened source reads, and what is left to read of each.

    `windows` and `repairs` are the progress and the repairs that the checkpoint stores.
    """
    plan = PlannedReads(entities, windows, repairs, can_sweep=context.changelog is not None)
    columns = catalog.all_rows([entity.table for entity in plan.unread])
    tables = {
        entity.name: _progress(context, entity, signature(columns.get(entity.table, ())), windows.get(entity.name))
        for entity in plan.unread
    }
    return TableReads(plan, tables, horizon=context.horizon, nonces=nonce, reach=context.reach)


def start(reads: TableReads, catalog: ColumnCatalog, context: ReadContext, entities: Sequence[Entity]) -> None:
    """Starts the threads that read, if there is something to read."""
    by_name = {entity.name: entity for entity in entities}

    def bind(connection: Connection, entity: str) -> ReadTable:
        return read_table(catalog.through(connection.query), context.binder, by_name[entity])

    reader = ChunkReader(
        reads.windows,
        context.origin,
        context.chunks,
        context.deliveries,
        bind=bind,
        connect=context.connect,
        reach=context.reach,
    )
    snapshots = partial(_snapshots, context)
    reads.start(entities, reader.session, snapshots, workers=context.workers, changelog=context.changelog)


def _progress(context: ReadContext, entity: Entity, signature: str, document: Mapping[str, Any] | None) -> KeyProgress:
    table = context.tables.get(entity.table)
    rows = 0 if table is None else table.rows_estimate
    chunk_rows = context.chunk_rows
    return KeyProgress.resume(
        entity.name, signature, chunks=rows // chunk_rows + 1, chunk_rows=chunk_rows, document=document
    )


@contextmanager
def _snapshots(context: ReadContext) -> Iterator[Callable[[], Visibility]]:
    """Yields a function that takes a snapshot, ends it at once, and returns what it saw.

    The search for deleted keys (`capture.tables.sweeper`) calls this function.
    """
    with context.connect() as reader, context.connect() as control:

        def snapshot() -> Visibility:
            visibility = take_snapshot(reader, control, context.deliveries)
            reader.execute("ROLLBACK")
            return visibility

        yield snapshot
