"""The table reads of one opening of the source: pages of tables, rows of requested keys, and sweeps.

A *window* reads one chunk: a range of pages, or the rows of some keys. A *sweep* searches the changelog for *ghosts*:
the last rows of keys that their table may no longer have. It then reads these keys from the table, and publishes a
delete for each key that is not there. The reads are planned from a stored checkpoint and never change afterwards: if a
signal changes the plan, the source is opened again. So the stored changelog contains every row from before the opening,
and a sweep can search it.
"""

import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any

import pyarrow as pa
import structlog

from changelog.connectors.capture.rows.binding import Binding
from changelog.connectors.capture.rows.json_columns import Template
from changelog.connectors.capture.rows.row_records import Origin
from changelog.connectors.capture.tables import survivors
from changelog.connectors.capture.tables.key_lookup import Ghost, Lookup
from changelog.connectors.capture.tables.repairs import LookedUp, Reached, Repairs
from changelog.connectors.capture.tables.table_progress import is_complete
from changelog.connectors.capture.tables.windows import Windows
from changelog.connectors.failpoints import Reach, nowhere
from changelog.connectors.sources.postgres.admin.catalog import Table, read_tables
from changelog.connectors.sources.postgres.decode.binder import Binder
from changelog.connectors.sources.postgres.decode.columnar import CompiledBinding
from changelog.connectors.sources.postgres.decode.messages import Relation, RelationColumn
from changelog.connectors.sources.postgres.session.connection import Connection, connect, translated
from changelog.connectors.sources.postgres.session.patience import Patience
from changelog.connectors.sources.postgres.session.quoting import identifier
from changelog.connectors.sources.postgres.snapshot.chunk_reader import ChunkReader, nonce, signature, signatures
from changelog.connectors.sources.postgres.snapshot.chunk_rows import ReadTable
from changelog.connectors.sources.postgres.snapshot.key_rows import key_casts
from changelog.connectors.sources.postgres.snapshot.page_progress import LeafProgress, TableProgress
from changelog.connectors.sources.postgres.snapshot.visibility import Snapshot
from changelog.connectors.sources.postgres.values.text_to_json import SETTINGS
from changelog.connectors.sources.postgres.values.types import TypeCatalog
from changelog.envelope.entity import Entity
from changelog.envelope.errors import RETRIED, ChangelogError, Kind

FAIL_POINTS = (
    "signal:heard",
    "reading:planned",
    "window:begun",
    "window:read",
    "window:marked",
    "sweep:read",
    "sweep:found",
    "sweep:published",
    "reading:complete",
)
"""The fail points between two steps of a table read, at which tests can crash the process.

Every window passes the three that begin with `window`.
"""

GLANCE_S = 5.0
"""How often, in seconds, the windows drop the tracked keys that they no longer need, during a sweep."""

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
        self._revision = repairs.revision
        active = [entity for entity in entities if entity.name not in repairs.paused]
        unread = [entity for entity in active if not is_complete(windows.get(entity.name))]
        hashes = signatures(catalog, [entity.table for entity in unread])
        tables = {
            entity.name: self._progress(entity, hashes[entity.table], windows.get(entity.name)) for entity in unread
        }
        open_repairs = {entity.name: repairs.open[entity.name] for entity in active if entity.name in repairs.open}
        self._lookups = {name: Lookup(name, repair.keys) for name, repair in open_repairs.items() if repair.keys}
        due = repairs.sweeps(windows) if context.changelog is not None else ()
        self._sweeps = {name: Lookup(name, sweeping=True) for name in sorted(due)}
        self._repairs = open_repairs
        lookups = [*self._lookups.values(), *self._sweeps.values()]
        self.windows = Windows(tables, horizon=context.horizon, nonces=nonce, lookups=lookups)
        self._reader: ChunkReader | None = None
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._sweeper: threading.Thread | None = None
        if tables or lookups:
            names = [*tables, *(lookup.entity for lookup in lookups)]
            _log.info("reading tables", entities=sorted(set(names)), swept=sorted(self._sweeps))

    def start(self) -> None:
        """Starts the threads if there is something to read."""
        if self.windows.complete:
            return
        context = self._context
        context.reach("reading:planned")
        self._reader = ChunkReader(
            self.windows,
            {name: entity.table for name, entity in self._entities.items()},
            context.origin,
            bind=partial(read_table, self._entities, context.hmac_key),
            connect=self._connect,
            workers=context.workers,
            reach=context.reach,
        )
        if self._sweeps:
            self._sweeper = threading.Thread(target=self._sweep, daemon=True, name="sweep")
            self._sweeper.start()

    def _connect(self) -> Connection:
        patience = Patience(silence_s=self._context.read_s, stopping=self._stopping.is_set, stopping_s=0.0)
        return connect(self._context.dsn, settings=SETTINGS, patience=patience)

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
        return self._failure or (None if self._reader is None else self._reader.failure)

    @property
    def running(self) -> bool:
        """Whether the reading threads are running."""
        return self._reader is not None

    @property
    def sweeping(self) -> bool:
        """Whether a sweep is reading the changelog; an interrupted sweep starts again from the beginning."""
        return not all(lookup.complete for lookup in self._sweeps.values())

    def reached(self, changed: Collection[str]) -> Reached:
        """Returns the progress of lookups and sweeps, without the entities `changed`, whose plan is out of date."""
        lookups = {name: lookup for name, lookup in self._lookups.items() if name not in changed}
        sweeps = {name: sweep for name, sweep in self._sweeps.items() if name not in changed}
        return Reached(
            revision=self._revision,
            idle=self.windows.complete,
            looked_up={name: LookedUp(left=lookup.left, absent=lookup.absent) for name, lookup in lookups.items()},
            sweeping=frozenset(self._sweeps),
            swept={name: sweep.more for name, sweep in sweeps.items() if sweep.complete},
            failed=frozenset(name for name, sweep in sweeps.items() if sweep.failed),
        )

    def close(self) -> None:
        """Stops the threads. A later opening reads the unpublished chunks again."""
        self._stopping.set()
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        if self._sweeper is not None:
            self._sweeper.join()
            self._sweeper = None

    # The thread that sweeps the changelog

    def _sweep(self) -> None:
        try:
            with self._connect() as connection:
                self._sweep_all(partial(self._stored, connection))
        except _StoppedError:
            pass
        except BaseException as error:  # noqa: BLE001 - the source raises it; otherwise the sweep would end silently
            self._failure = error

    def _sweep_all(self, read: survivors.Read) -> None:
        starts = {}
        for name in self._sweeps:
            entity, repair = self._entities[name], self._repairs[name]
            if entity.immutable and entity.on_change_of_immutable == "ignore":
                self._end([name])  # the changelog keeps rows that were deleted from this entity's table
            elif repair.sweep:
                starts[name] = repair.start
            else:
                self._sweep_keys(read, name, repair.absent)
        self._sweep_older(read, starts)

    def _sweep_keys(self, read: survivors.Read, name: str, keys: Collection[str]) -> None:
        try:
            self._hand_over({name: survivors.of_keys(read, name, keys)})
        except ChangelogError as error:
            self._fail(name, error)
        else:
            self._end([name])

    def _sweep_older(self, read: survivors.Read, starts: Mapping[str, str]) -> None:
        """Sweeps several entities in one pass over the changelog.

        `starts` gives for each entity the position where the reading of its table began: rows that are older may be
        ghosts. If an entity cannot be read from the changelog, its sweep fails, and the other entities are swept again
        without it.
        """
        pending, with_ghosts = {*starts}, set[str]()
        try:
            absent_keys = {name: self._repairs[name].absent for name in starts}
            for portion in survivors.older_than(read, starts, absent_keys):
                self._hand_over(portion.ghosts)
                self._end(portion.whole)
                self._end(portion.cut, more=True)
                with_ghosts |= portion.ghosts.keys()
                pending -= portion.whole | portion.cut
        except ChangelogError as error:
            if error.kind in RETRIED:
                raise
            # An entity that has yielded ghosts was being read alone, so the error is of this entity. It must not be
            # read again: it would yield the same ghosts, whose deletes may not be committed yet.
            unreadable = {*pending} if len(pending) == 1 else with_ghosts & pending
            for name in unreadable:
                self._fail(name, error)
            others = [name for name in starts if name in pending - unreadable]
            middle = (len(others) + 1) // 2
            for names in filter(None, (others[:middle], others[middle:])):
                self._sweep_older(read, {name: starts[name] for name in names})

    def _fail(self, name: str, error: ChangelogError) -> None:
        """Ends the sweep of an entity whose rows in the changelog cannot be read; the service continues.

        Raises an error that can be retried, because the next opening may succeed.
        """
        if error.kind in RETRIED:
            raise error
        _log.error("the sweep cannot read the changelog", entity=name, error=str(error))
        self._end([name], failed=True)

    def _end(self, names: Collection[str], *, more: bool = False, failed: bool = False) -> None:
        def end() -> None:
            for name in names:
                self._sweeps[name].end(more=more, failed=failed)

        self.windows.offered(end)

    def _hand_over(self, ghosts: Mapping[str, Sequence[Ghost]]) -> None:
        """Offers the ghosts to the windows and waits until they are handled, so that only these are in memory."""

        def offer() -> None:
            for name, rows in ghosts.items():
                self._sweeps[name].offer(rows)

        for name, rows in ghosts.items():
            _log.info("looking up rows of the changelog in their table", entity=name, rows=len(rows))
        self._context.reach("sweep:found")
        self.windows.offered(offer)
        while not all(self._sweeps[name].idle for name in ghosts):
            if self._stopping.wait(0.1):
                raise _StoppedError
        self._context.reach("sweep:published")

    def _stored(self, connection: Connection, entities: Collection[str], key: str | None) -> Iterator[pa.RecordBatch]:
        assert self._context.changelog is not None
        horizon = _HorizonUpdates(connection, self.windows)
        for rows in self._context.changelog(entities, key):
            if self._stopping.is_set():
                raise _StoppedError
            horizon.update_if_due()
            self._context.reach("sweep:read")
            yield rows


class _StoppedError(Exception):
    """The reads were closed."""


class _HorizonUpdates:
    """Takes a snapshot now and then; with it, the windows can forget the changes of transactions that have ended."""

    def __init__(self, connection: Connection, windows: Windows) -> None:
        self._connection, self._windows = connection, windows
        self._due = 0.0

    def update_if_due(self) -> None:
        now = monotonic()
        if now < self._due:
            return
        self._due = now + GLANCE_S
        with translated("reading the running transactions"):
            row = self._connection.execute("SELECT pg_current_snapshot()::text").fetchone()
        assert row is not None
        self._windows.glance(Snapshot.parse(row[0]))


def read_table(entities: Mapping[str, Entity], hmac_key: bytes, connection: Connection, name: str) -> ReadTable:
    """Returns how to read an entity's table now. Its binding is the one that streamed rows with these columns have.

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
        bound=CompiledBinding(binding=binding, template=Template(binding)),
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
