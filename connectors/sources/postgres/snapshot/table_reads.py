"""Plans and starts the table reads of an opened source. `capture.table_reads` does the part that all databases share.

Tables are read in chunks. A chunk is a range of pages, or the rows with some requested keys.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from changelog.connectors.capture.rows.binding import Binding
from changelog.connectors.capture.rows.json_columns import CompiledBinding
from changelog.connectors.capture.rows.row_records import Origin
from changelog.connectors.capture.table_reads import TableReads
from changelog.connectors.capture.tables import survivors
from changelog.connectors.capture.tables.planned_reads import PlannedReads
from changelog.connectors.capture.tables.repairs import Repairs
from changelog.connectors.failpoints import Reach, nowhere
from changelog.connectors.sources.postgres.admin.catalog import Table, read_tables
from changelog.connectors.sources.postgres.decode.binder import Binder
from changelog.connectors.sources.postgres.decode.messages import Relation, RelationColumn
from changelog.connectors.sources.postgres.session.connection import Connection, translated
from changelog.connectors.sources.postgres.session.quoting import identifier
from changelog.connectors.sources.postgres.snapshot.chunk_reader import ChunkReader, nonce, signature, signatures
from changelog.connectors.sources.postgres.snapshot.key_rows import key_casts
from changelog.connectors.sources.postgres.snapshot.page_progress import LeafProgress, TableProgress
from changelog.connectors.sources.postgres.snapshot.read_table import ReadTable
from changelog.connectors.sources.postgres.snapshot.visibility import Snapshot
from changelog.connectors.sources.postgres.values.types import TypeCatalog
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError, Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadContext:
    """What the table reads of an opened source need.

    `workers` is the number of threads that read; `connect` opens their connections. At first, a chunk has `chunk_pages`
    pages. `tables` holds the tables of the catalogue, by schema and name. `horizon` is a transaction id above all ids
    that the server had assigned before the source was opened. `changelog` reads the stored rows of entities; it is None
    if the sink cannot be read. `reach` is called at each of the `FAIL_POINTS` of `capture.table_reads`, so that tests
    can crash the process there.
    """

    origin: Origin
    connect: Callable[[], Connection]
    hmac_key: bytes
    workers: int
    chunk_pages: int
    horizon: int
    tables: Mapping[tuple[str, str], Table]
    changelog: survivors.Read | None
    reach: Reach = nowhere


def planned_reads(
    catalog: Connection,
    context: ReadContext,
    entities: Sequence[Entity],
    windows: Mapping[str, Any],
    repairs: Repairs,
) -> TableReads:
    """Plans what an opened source reads. The checkpoint has `windows` (the progress of each table) and `repairs`."""
    plan = PlannedReads(entities, windows, repairs, can_sweep=context.changelog is not None)
    hashes = signatures(catalog, [entity.table for entity in plan.unread])
    tables = {
        entity.name: _progress(context, entity, hashes[entity.table], windows.get(entity.name))
        for entity in plan.unread
    }
    return TableReads(plan, tables, horizon=context.horizon, nonces=nonce, reach=context.reach)


def start(reads: TableReads, context: ReadContext, entities: Sequence[Entity]) -> None:
    """Starts the threads that read, if there is something to read."""
    by_name = {entity.name: entity for entity in entities}
    reader = ChunkReader(
        reads.windows,
        context.origin,
        bind=partial(read_table, by_name, context.hmac_key),
        connect=context.connect,
        reach=context.reach,
    )
    snapshots = partial(_snapshots, context.connect)
    reads.start(entities, reader.session, snapshots, workers=context.workers, changelog=context.changelog)


def _progress(
    context: ReadContext, entity: Entity, table_signature: str, document: Mapping[str, Any] | None
) -> TableProgress:
    leaves = {
        identifier(leaf.schema, leaf.name): LeafProgress(
            filenode=leaf.filenode, pages=leaf.pages, ranges_left=[(0, None)]
        )
        for leaf in context.tables[entity.table].leaves
    }
    progress = TableProgress.resume(entity.name, table_signature, leaves, document)
    progress.chunk_pages = context.chunk_pages
    return progress


@contextmanager
def _snapshots(connect: Callable[[], Connection]) -> Iterator[Callable[[], Snapshot]]:
    with connect() as connection:
        yield partial(_snapshot, connection)


def _snapshot(connection: Connection) -> Snapshot:
    with translated("reading the running transactions"):
        row = connection.execute("SELECT pg_current_snapshot()::text").fetchone()
    assert row is not None
    return Snapshot.parse(row[0])


def read_table(entities: Mapping[str, Entity], hmac_key: bytes, connection: Connection, name: str) -> ReadTable:
    """Returns how to read an entity's table now. The rows get the same binding as streamed rows with the same columns.

    Raises ChangelogError: ALTERED if the table no longer exists, PRECONDITION in the same case as `bind_table`.
    """
    entity = entities[name]
    table = next(iter(read_tables(connection, named=entity.table)), None)
    if table is None:
        message = f"table {'.'.join(entity.table)} of the entity {name} disappeared while it was being read"
        message += "; the service tries again"
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
    def ask(query: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        with translated("asking the catalogue"):
            return connection.execute(query.encode(), values).fetchall()

    return TypeCatalog(ask)
