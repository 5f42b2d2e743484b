"""Makes an Arrow table of the rows that an entity had at a position: one typed row for each key."""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from changelog.connectors.sinks import Log
from changelog.envelope.columnar import batch
from changelog.envelope.entity import SCHEMAS
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Op, position_of
from changelog.envelope.position import Position
from changelog.envelope.states.arrow_types import states_schema
from changelog.envelope.states.fold import ABOUT, fold
from changelog.envelope.states.newest_changes import NewestChanges
from changelog.envelope.versions import Version
from changelog.schemas.avro import Column

POSITION = b"changelog.position"
"""The name of the metadata entry that holds the position up to which the table includes all changes."""


def states_table(log: Log, entity: str, *, until: Position | None, provenance: bool) -> pa.Table:
    """Returns the rows that existed after the change at `until`, or that exist now if `until` is None.

    The table has the entity's columns as of that position, and with `provenance` also the columns
    `changelog.envelope.states.fold.ABOUT`, which describe each row's last change. Holds the table and one change for
    each key in memory. Raises ChangelogError: USAGE if there is no such entity, if it had no columns yet at `until`, or
    if one of its columns has the same name as one of `ABOUT`; PRECONDITION if its columns are unknown.
    """
    columns = _columns(log, entity, until)
    if provenance:
        _refuse_same_names(entity, columns)
    newest = NewestChanges(until=until)
    for rows in log.read_together([entity]):
        newest.add(rows)
    complete = states_schema(columns)
    schema = pa.schema(list(complete)[: len(columns) + (len(ABOUT) if provenance else 0)])
    op = len(columns) + ABOUT.get_field_index("_op")
    states = fold(newest.changes(), columns=columns, schema=complete, raw=False)
    table = pa.Table.from_batches([_live(state, op, schema) for state in states], schema)
    return table if until is None else table.replace_schema_metadata({POSITION: str(until)})


def _columns(log: Log, entity: str, until: Position | None) -> Sequence[Column]:
    """Returns the columns that an entity had at a position, or has now if `until` is None."""
    records = [record for rows in log.read(entity=SCHEMAS, key=entity) for record in batch.records(rows)]
    states = [
        record.envelope.current
        for record in records
        if record.envelope.current is not None and (until is None or position_of(record) <= until)
    ]
    if states:
        return [
            Column(name=name, type=type_, nullable=True) for name, type_ in Version.parse(states[-1]).columns.fields
        ]
    if records:
        message = (
            f"the entity {entity} has no columns at {until}: its columns are known from {position_of(records[0])} on"
        )
        raise ChangelogError(Kind.USAGE, message)
    for _ in log.read_together([entity]):
        message = f"{log.where} has changes of the entity {entity}, but not their columns"
        raise ChangelogError(Kind.PRECONDITION, message, hint="read the changes instead, which have the rows as JSON")
    raise ChangelogError(
        Kind.PRECONDITION, f"{log.where} has no change of the entity {entity} yet, so its columns are unknown"
    )


def _refuse_same_names(entity: str, columns: Sequence[Column]) -> None:
    for column in columns:
        if column.name in ABOUT.names:
            raise ChangelogError(
                Kind.USAGE,
                f"the entity {entity} has a column {column.name}, which is also a column that the table adds",
                hint="leave the added columns out: provenance=False",
            )


def _live(states: pa.RecordBatch, op: int, schema: pa.Schema) -> pa.RecordBatch:
    """Leaves out the states of deleted keys, and the columns after those of `schema`. `states` begins with the columns
    of `schema`.

    `op` is the index of the column with the operation. It is not found by its name `_op`, because a column of the
    entity may have the same name.
    """
    live = states.filter(pc.not_equal(states.column(op), Op.DELETE.value))
    return pa.RecordBatch.from_arrays(live.columns[: len(schema)], schema=schema)
