"""What one opening of the source reads from tables: pages, keys that were asked for, what the changelog holds beyond.

It is planned from a stored checkpoint, and does only what was planned: whatever a signal changes of it, another opening
does. So what the changelog stores holds all that stands before the opening.
"""

import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any

import pyarrow as pa
import structlog

from connectors.capture.rows.binding import Binding
from connectors.capture.rows.json_columns import Template
from connectors.capture.rows.row_records import Origin
from connectors.capture.tables import survivors
from connectors.capture.tables.key_lookup import Ghost, Lookup
from connectors.capture.tables.repairs import LookedUp, Reached, Repairs
from connectors.capture.tables.table_progress import is_complete
from connectors.capture.tables.windows import Windows
from connectors.failpoints import Reach, nowhere
from connectors.sources.postgres.admin.catalog import Table, read_tables
from connectors.sources.postgres.decode.binder import Binder
from connectors.sources.postgres.decode.columnar import CompiledBinding
from connectors.sources.postgres.decode.messages import Relation, RelationColumn
from connectors.sources.postgres.session.connection import Connection, connect, translated
from connectors.sources.postgres.session.patience import Patience
from connectors.sources.postgres.snapshot.chunk_reader import ChunkReader, nonce, quoted, signature
from connectors.sources.postgres.snapshot.chunk_rows import ReadTable
from connectors.sources.postgres.snapshot.key_rows import key_casts
from connectors.sources.postgres.snapshot.page_progress import LeafProgress, TableProgress
from connectors.sources.postgres.snapshot.visibility import Snapshot
from connectors.sources.postgres.values.text_to_json import SETTINGS
from connectors.sources.postgres.values.types import TypeCatalog
from envelope.entity import Entity
from envelope.errors import RETRIED, ChangelogError, Kind

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
"""The boundaries between two steps of a repair at which a crash is tried; all windows pass those of `window`."""

GLANCE_S = 5.0
"""How often what need not be known any more is forgotten, while the changelog is looked through."""

_log = structlog.get_logger("postgres")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadContext:
    """Where an opening reads: `tables` as the catalogue has them, over `dsn` with `workers` threads.

    A server that gives no byte for `read_s` hangs. `changelog` gives what is stored of an entity, None where nobody
    can. `reach` is called with each of `FAIL_POINTS`
    as it is passed, so that tests can crash there.
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
    """The windows of one opening, and the threads that read for them. `entities` are all that there are."""

    def __init__(
        self,
        catalog: Connection,
        place: ReadContext,
        entities: Sequence[Entity],
        windows: Mapping[str, Any],
        repairs: Repairs,
    ) -> None:
        self._place, self._entities = place, {entity.name: entity for entity in entities}
        self._revision = repairs.revision
        active = [entity for entity in entities if entity.name not in repairs.paused]
        tables = {
            entity.name: self._progress(catalog, entity, windows.get(entity.name))
            for entity in active
            if not is_complete(windows.get(entity.name))
        }
        asked = {entity.name: repairs.open[entity.name] for entity in active if entity.name in repairs.open}
        self._lookups = {name: Lookup(name, repair.keys) for name, repair in asked.items() if repair.keys}
        due = repairs.sweeps(windows) if place.changelog is not None else ()
        self._sweeps = {name: Lookup(name, sweeping=True) for name in sorted(due)}
        self._repairs = asked
        lookups = [*self._lookups.values(), *self._sweeps.values()]
        self.windows = Windows(tables, horizon=place.horizon, nonces=nonce, lookups=lookups)
        self._reader: ChunkReader | None = None
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._sweeper: threading.Thread | None = None
        if tables or lookups:
            names = [*tables, *(lookup.entity for lookup in lookups)]
            _log.info("reading tables", entities=sorted(set(names)), swept=sorted(self._sweeps))

    def start(self) -> None:
        """Starts the threads, if there is something to read."""
        if self.windows.complete:
            return
        place = self._place
        place.reach("reading:planned")
        self._reader = ChunkReader(
            self.windows,
            {name: entity.table for name, entity in self._entities.items()},
            place.origin,
            bind=partial(read_table, self._entities, place.hmac_key),
            connect=self._connect,
            workers=place.workers,
            reach=place.reach,
        )
        if self._sweeps:
            self._sweeper = threading.Thread(target=self._sweep, daemon=True, name="sweep")
            self._sweeper.start()

    def _connect(self) -> Connection:
        patience = Patience(silence_s=self._place.read_s, stopping=self._stopping.is_set, stopping_s=0.0)
        return connect(self._place.dsn, settings=SETTINGS, patience=patience)

    def _progress(self, catalog: Connection, entity: Entity, stored: Mapping[str, Any] | None) -> TableProgress:
        leaves = {
            quoted((leaf.schema, leaf.name)): LeafProgress(filenode=leaf.filenode, pages=leaf.pages, left=[(0, None)])
            for leaf in self._place.tables[entity.table].leaves
        }
        found = TableProgress.resume(entity.name, signature(catalog, entity.table), leaves, stored)
        found.chunk_pages = self._place.chunk_pages
        return found

    @property
    def failure(self) -> BaseException | None:
        """Why the reading ended early."""
        return self._failure or (None if self._reader is None else self._reader.failure)

    @property
    def running(self) -> bool:
        """Whether threads read."""
        return self._reader is not None

    @property
    def sweeping(self) -> bool:
        """Whether the changelog is looked through: what begins from its start again, each time it is interrupted."""
        return not all(lookup.complete for lookup in self._sweeps.values())

    def reached(self, changed: Collection[str]) -> Reached:
        """How far keys and sweeps are, but for the entities of which something else is to be done by now."""
        looked_up = {name: each for name, each in self._lookups.items() if name not in changed}
        sweeps = {name: each for name, each in self._sweeps.items() if name not in changed}
        return Reached(
            revision=self._revision,
            idle=self.windows.complete,
            looked_up={name: LookedUp(left=each.left, absent=each.absent) for name, each in looked_up.items()},
            sweeping=frozenset(self._sweeps),
            swept={name: each.more for name, each in sweeps.items() if each.complete},
            failed=frozenset(name for name, each in sweeps.items() if each.failed),
        )

    def close(self) -> None:
        """Stops the threads; what was not published is read again another time."""
        self._stopping.set()
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        if self._sweeper is not None:
            self._sweeper.join()
            self._sweeper = None

    # The thread that looks through the changelog.

    def _sweep(self) -> None:
        try:
            with self._connect() as connection:
                for name, lookup in self._sweeps.items():
                    self._sweep_one(connection, self._entities[name], lookup)
        except _StoppedError:
            pass
        except BaseException as error:  # noqa: BLE001 - raised again by who asks, or the sweep would end in silence
            self._failure = error

    def _sweep_one(self, connection: Connection, entity: Entity, lookup: Lookup) -> None:
        """A changelog that cannot be read ends the sweep, and not the service: whoever asked for it is told."""
        try:
            more = not self._offer(connection, entity, lookup)
        except ChangelogError as error:
            if error.kind in RETRIED:
                raise
            _log.error("the changelog cannot be looked through", entity=entity.name, error=str(error))
            self.windows.offered(partial(lookup.end, failed=True))
        else:
            self.windows.offered(partial(lookup.end, more=more))

    def _offer(self, connection: Connection, entity: Entity, lookup: Lookup) -> bool:
        """Offers ghost after ghost; whether these were all."""
        if entity.immutable and entity.on_change_of_immutable == "ignore":
            return True  # what its table lost, the changelog keeps
        repair = self._repairs[entity.name]
        read = partial(self._stored, connection)
        if not repair.sweep:
            self._hand_over(lookup, survivors.of_keys(read, entity.name, repair.absent))
            return True
        for found, more in survivors.older_than(read, entity.name, repair.start):
            self._hand_over(lookup, found)
            if more:
                return False
        return True

    def _hand_over(self, lookup: Lookup, found: Sequence[Ghost]) -> None:
        """Waits until these are published, so that no more than they are held."""
        if found:
            _log.info("rows of the changelog are looked up in their table", entity=lookup.entity, rows=len(found))
        self._place.reach("sweep:found")
        self.windows.offered(partial(lookup.offer, found))
        while not lookup.idle:
            if self._stopping.wait(0.1):
                raise _StoppedError
        self._place.reach("sweep:published")

    def _stored(self, connection: Connection, entity: str, key: str | None) -> Iterator[pa.RecordBatch]:
        assert self._place.changelog is not None
        glance = _Glances(connection, self.windows)
        for rows in self._place.changelog(entity, key):
            if self._stopping.is_set():
                raise _StoppedError
            glance.now_and_then()
            self._place.reach("sweep:read")
            yield rows


class _StoppedError(Exception):
    """The reading was closed."""


class _Glances:
    """Snapshots by which what is touched can be forgotten."""

    def __init__(self, connection: Connection, windows: Windows) -> None:
        self._connection, self._windows = connection, windows
        self._due = 0.0

    def now_and_then(self) -> None:
        now = monotonic()
        if now < self._due:
            return
        self._due = now + GLANCE_S
        with translated("looking at running transactions"):
            row = self._connection.execute("SELECT pg_current_snapshot()::text").fetchone()
        assert row is not None
        self._windows.glance(Snapshot.parse(row[0]))


def read_table(entities: Mapping[str, Entity], hmac_key: bytes, connection: Connection, name: str) -> ReadTable:
    """How an entity's table is read now: bound as the stream's rows would be, were its columns these."""
    entity = entities[name]
    table = next(table for table in read_tables(connection) if (table.schema, table.name) == entity.table)
    binding = bind_table(connection, entity, table, hmac_key)
    oids = {column.name: column.type_oid for column in table.columns}
    types = _types(connection)
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
    """The binding that the stream's rows would have, were the table's columns those in the catalogue."""
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
    binding = Binder(resolve=_types(connection).resolve, hmac_key=hmac_key).bind(entity, relation, crossing=False)
    if binding.lost is not None:
        raise ChangelogError(Kind.PRECONDITION, binding.lost, hint=f"name the new key in [entities.{entity.name}]")
    return binding


def _types(connection: Connection) -> TypeCatalog:
    return TypeCatalog(lambda query, values: connection.execute(query.encode(), values).fetchall())
