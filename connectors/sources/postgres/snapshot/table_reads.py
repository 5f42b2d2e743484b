"""The table reads of one opening of the source: pages of tables, rows of requested keys, and sweeps.

A *window* reads one chunk: a range of pages, or the rows of some keys. A *sweep* searches the changelog for *ghosts*:
the last rows of keys that their table may no longer have. It then reads these keys from the table, and publishes a
delete for each key that is not there.
"""

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog

from changelog.connectors.capture.rows.binding import Binding
from changelog.connectors.capture.rows.json_columns import CompiledBinding
from changelog.connectors.capture.rows.row_records import Origin
from changelog.connectors.capture.tables import survivors, sweeper
from changelog.connectors.capture.tables.chunk_threads import ChunkThreads
from changelog.connectors.capture.tables.planned_reads import PlannedReads
from changelog.connectors.capture.tables.repairs import Reached, Repairs
from changelog.connectors.capture.tables.sweeper import Sweeper
from changelog.connectors.capture.tables.windows import Windows
from changelog.connectors.failpoints import Reach, nowhere
from changelog.connectors.sources.postgres.admin.catalog import Table, read_tables
from changelog.connectors.sources.postgres.decode.binder import Binder
from changelog.connectors.sources.postgres.decode.messages import Relation, RelationColumn
from changelog.connectors.sources.postgres.session.connection import Connection, connect, translated
from changelog.connectors.sources.postgres.session.patience import Patience
from changelog.connectors.sources.postgres.session.quoting import identifier
from changelog.connectors.sources.postgres.snapshot.chunk_reader import ChunkReader, nonce, signature, signatures
from changelog.connectors.sources.postgres.snapshot.key_rows import key_casts
from changelog.connectors.sources.postgres.snapshot.page_progress import LeafProgress, TableProgress
from changelog.connectors.sources.postgres.snapshot.read_table import ReadTable
from changelog.connectors.sources.postgres.snapshot.visibility import Snapshot
from changelog.connectors.sources.postgres.values.text_to_json import SETTINGS
from changelog.connectors.sources.postgres.values.types import TypeCatalog
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError, Kind

FAIL_POINTS = (
    "signal:heard",
    "reading:planned",
    "window:begun",
    "window:read",
    "window:marked",
    *sweeper.FAIL_POINTS,
    "reading:complete",
)
"""The fail points between two steps of a table read, at which tests can crash the process.

Every window passes the three that begin with `window`.
"""

_log = structlog.get_logger("postgres")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadContext:
    """What the table reads of one opening need.

    `workers` threads read over connections to `dsn`, at first in chunks of `chunk_pages` pages. `tables` describes the
    tables, as the catalogue has them. A server that sends no byte for `read_s` seconds counts as hung. `horizon` is a
    transaction id above all ids that the server had assigned before the opening. `changelog` reads the stored rows of
    entities; it is None if the sink cannot be read. `reach` is called at each of `FAIL_POINTS`, so that tests can crash
    there.
    """

    origin: Origin
    dsn: str
    hmac_key: bytes
    workers: int
    chunk_pages: int
    read_s: float
    horizon: int
    tables: Mapping[tuple[str, str], Table]
    changelog: survivors.Read | None
    reach: Reach = nowhere


class TableReads:
    """Holds the windows of one opening, and the threads that read for them.

    `entities` are all configured entities. `windows` and `repairs` are the stored progress and the stored repairs.
    """

    def __init__(
        self,
        catalog: Connection,
        context: ReadContext,
        entities: Sequence[Entity],
        windows: Mapping[str, Any],
        repairs: Repairs,
    ) -> None:
        self._context, self._entities = context, {entity.name: entity for entity in entities}
        self._plan = PlannedReads(entities, windows, repairs, can_sweep=context.changelog is not None)
        unread, lookups = self._plan.unread, self._plan.lookups
        hashes = signatures(catalog, [entity.table for entity in unread])
        tables = {
            entity.name: self._progress(entity, hashes[entity.table], windows.get(entity.name)) for entity in unread
        }
        self.windows = Windows(tables, horizon=context.horizon, nonces=nonce, lookups=lookups)
        self._threads: ChunkThreads | None = None
        self._sweeper: Sweeper | None = None
        self._closing = threading.Event()
        if tables or lookups:
            names = [*tables, *(lookup.entity for lookup in lookups)]
            _log.info("reading tables", entities=sorted(set(names)), swept=sorted(self._plan.sweeps))

    def start(self) -> None:
        """Starts the threads if there is something to read."""
        if self.windows.complete:
            return
        context = self._context
        context.reach("reading:planned")
        reader = ChunkReader(
            self.windows,
            context.origin,
            bind=partial(read_table, self._entities, context.hmac_key),
            connect=self._connect,
            reach=context.reach,
        )
        tables = {name: entity.table for name, entity in self._entities.items()}
        self._threads = ChunkThreads(self.windows, tables, reader.session, workers=context.workers)
        if self._plan.sweeps:
            assert context.changelog is not None
            self._sweeper = Sweeper(
                self.windows,
                self._entities,
                self._plan.sweeps,
                self._plan.repairs,
                context.changelog,
                self._snapshots,
                reach=context.reach,
            )

    def _connect(self) -> Connection:
        patience = Patience(silence_s=self._context.read_s, stopping=self._closing.is_set, stopping_s=0.0)
        return connect(self._context.dsn, settings=SETTINGS, patience=patience)

    @contextmanager
    def _snapshots(self) -> Iterator[Callable[[], Snapshot]]:
        with self._connect() as connection:
            yield partial(_snapshot, connection)

    def _progress(self, entity: Entity, table_signature: str, stored: Mapping[str, Any] | None) -> TableProgress:
        leaves = {
            identifier(leaf.schema, leaf.name): LeafProgress(filenode=leaf.filenode, pages=leaf.pages, left=[(0, None)])
            for leaf in self._context.tables[entity.table].leaves
        }
        progress = TableProgress.resume(entity.name, table_signature, leaves, stored)
        progress.chunk_pages = self._context.chunk_pages
        return progress

    @property
    def failure(self) -> BaseException | None:
        """The error that ended the reading early, if any."""
        return next((part.failure for part in (self._sweeper, self._threads) if part and part.failure), None)

    @property
    def running(self) -> bool:
        """Whether the reading threads are running."""
        return self._threads is not None

    @property
    def sweeping(self) -> bool:
        """Whether a sweep is reading the changelog; an interrupted sweep starts again from the beginning."""
        return self._plan.sweeping

    def reached(self, changed: Collection[str]) -> Reached:
        """Returns the progress of lookups and sweeps, without the entities `changed`, whose plan is out of date."""
        return self._plan.reached(changed, idle=self.windows.complete)

    def close(self) -> None:
        """Stops the threads. A later opening reads the unpublished chunks again."""
        self._closing.set()
        if self._threads is not None:
            self._threads.close()
            self._threads = None
        if self._sweeper is not None:
            self._sweeper.close()
            self._sweeper = None


def _snapshot(connection: Connection) -> Snapshot:
    with translated("reading the running transactions"):
        row = connection.execute("SELECT pg_current_snapshot()::text").fetchone()
    assert row is not None
    return Snapshot.parse(row[0])


def read_table(entities: Mapping[str, Entity], hmac_key: bytes, connection: Connection, name: str) -> ReadTable:
    """Returns how to read an entity's table now. The rows get the same binding as streamed rows with these columns.

    Raises ChangelogError: ALTERED if the table no longer exists, PRECONDITION as `bind_table` does.
    """
    entity = entities[name]
    table = next(iter(read_tables(connection, named=entity.table)), None)
    if table is None:
        message = f"table {'.'.join(entity.table)} of {name} disappeared while it was being read; it is read again"
        raise ChangelogError(Kind.ALTERED, message)
    types = _types(connection)
    binding = _bound(types, entity, table, hmac_key)
    oids = {column.name: column.type_oid for column in table.columns}
    return ReadTable(
        signature=signature(connection, entity.table),
        bound=CompiledBinding.of(binding),
        columns=tuple(column.name for column in table.columns if column.published),
        where=entity.where,
        key=entity.key,
        casts=key_casts(connection, [types.resolve(oids[column]) for column in entity.key]),
        only=table.kind == "r",
    )


def bind_table(connection: Connection, entity: Entity, table: Table, hmac_key: bytes) -> Binding:
    """Returns the binding that streamed rows have if the table's columns are those in the catalogue.

    Raises ChangelogError (PRECONDITION) if the table lacks a column of the entity's key.
    """
    return _bound(_types(connection), entity, table, hmac_key)


def _bound(types: TypeCatalog, entity: Entity, table: Table, hmac_key: bytes) -> Binding:
    relation = Relation(
        relid=table.oid,
        namespace=table.schema,
        name=table.name,
        replica_identity="f",
        columns=tuple(
            RelationColumn(key=True, name=column.name, type_oid=column.type_oid, typmod=column.typmod)
            for column in table.columns
            if column.published
        ),
    )
    binding = Binder(resolve=types.resolve, hmac_key=hmac_key).bind(entity, relation, crossing=False)
    if binding.lost is not None:
        raise ChangelogError(Kind.PRECONDITION, binding.lost, hint=f"name the new key in [entities.{entity.name}]")
    return binding


def _types(connection: Connection) -> TypeCatalog:
    return TypeCatalog(lambda query, values: connection.execute(query.encode(), values).fetchall())
