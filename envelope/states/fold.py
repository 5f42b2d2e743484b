"""Folds the last changes of each key into its last state, with typed values.

If the database's log did not send a value with a change (the value is *unavailable*), the value is taken from an
earlier state. The input has the columns `CHANGES`. The changes of a key are adjacent, the newest first. They go back to
a delete, or to a change that has all values. If the key has no such change, the input has all changes of the key.

This module works row by row, and reads values of every form. It first gives changes that are complete states to
`changelog.envelope.states.fold_batch`, which reads many of them at once. `fold_batch` must give the same result, and
leaves changes with unusual values, such as an infinite date, to this module.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from changelog.envelope.codec import json_codec
from changelog.envelope.codec.json_codec import members
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Op
from changelog.envelope.position import Position
from changelog.envelope.states.fold_batch import BatchReader
from changelog.envelope.states.json_values import NULL, Read, reader, text
from changelog.schemas.avro import Column

_OF_CHANGE: Final = ("key", "position", "op", "committed_at", "api_version", "service_name", "identifier", "context")

_OF_STATE: Final = (*_OF_CHANGE, "current", "gaps")

WHOLE: Final = "whole"

CHANGES: Final = (*_OF_STATE, WHOLE)
"""The columns of a change. Those in `_OF_CHANGE` become the first columns of `ABOUT`.

`gaps` is the change's provenance if the provenance names unavailable values or JSON nulls; otherwise it is null.
`WHOLE` says that the change is the newest one of its key, and has all values. Then no other change of this key is
needed, and the input has none.
"""

CONTEXT: Final = "_context"

ABOUT: Final = pa.schema(
    [
        pa.field("_key", pa.utf8()),
        pa.field("_position", pa.utf8()),
        pa.field("_op", pa.utf8()),
        pa.field("_committed_at", pa.timestamp("us", tz="UTC")),
        pa.field("_api_version", pa.utf8()),
        pa.field("_service_name", pa.utf8()),
        pa.field("_identifier", pa.utf8()),
        pa.field(CONTEXT, pa.utf8()),
        pa.field("_unavailable", pa.list_(pa.utf8())),
        pa.field("_out_of_range", pa.list_(pa.utf8())),
    ]
)
"""The columns that describe a state: its key, its last change, and which of its columns are null for a special reason.

`_unavailable` names the columns whose value was in none of the changes. `_out_of_range` names the columns whose type
cannot hold the value. The names are sorted.
"""

BEGUN: Final = "_begun"
BEGUN_FIELD: Final = pa.field(BEGUN, pa.bool_())
"""Whether the oldest change that the fold read is a delete of the key, or a create with `gaps`. If so, no earlier state
can supply an unavailable value. If the fold read back to any other change, `_begun` is false, even if the state is
complete.
"""

ROWS_MAX: Final = 4096
"""The most rows that are read one by one before they are yielded as a batch."""


KeyChange = tuple[str, str, str | None, str | None]
"""A change of one key: its position, its op, its `current`, and its `gaps` (see `CHANGES`)."""


@dataclass(slots=True)
class FoldedState:
    """A key's last state, as far as it is known.

    `values` maps columns to JSON tokens. `missing` names the columns whose values are unavailable, and `json_null`
    those whose null is JSON's null. `has_reached_begin` is the value of `BEGUN_FIELD`.
    """

    values: dict[str, bytes]
    missing: set[str]
    json_null: set[str] = field(default_factory=set)
    has_reached_begin: bool = False


def fold(
    batches: Iterable[pa.RecordBatch], *, columns: Sequence[Column], schema: pa.Schema, raw: bool
) -> Iterator[pa.RecordBatch]:
    """Turns batches of `CHANGES` into batches of `schema`, with one row for each key, also for deleted keys.

    `schema` has the fields for `columns`, then those of `ABOUT`, then `BEGUN_FIELD`. With `raw`, each value is text:
    the content of a JSON string, or the JSON of any other value. Raises ChangelogError (MALFORMED), with the position
    of the change, if a state that has to be read is missing or is not a JSON object.
    """
    readers = {column.name: text if raw else reader(column.type) for column in columns}
    read_batch = BatchReader(columns, schema.types[: len(columns)], raw).reader()
    rows: list[tuple[Any, ...]] = []
    changes_of_key: list[tuple[Any, ...]] = []
    for batch in batches:
        usual_mask = _usual(batch)
        usual_changes = batch.filter(pa.array(usual_mask))
        values, unusual_mask = read_batch(usual_changes.column("current").to_pylist())
        rows += (_row([change], readers) for change in _changes(usual_changes.filter(pa.array(unusual_mask))))
        usual_rows = pa.array(~unusual_mask)
        yield _with_about([array.filter(usual_rows) for array in values], usual_changes.filter(usual_rows), schema)
        for change in _changes(batch.filter(pa.array(~usual_mask))):
            if changes_of_key and changes_of_key[0][0] != change[0]:
                rows.append(_row(changes_of_key, readers))
                changes_of_key = []
            changes_of_key.append(change)
        while len(rows) >= ROWS_MAX:
            yield _batch(rows[:ROWS_MAX], schema)
            del rows[:ROWS_MAX]
    if changes_of_key:
        rows.append(_row(changes_of_key, readers))
    if rows:
        yield _batch(rows, schema)


def _usual(batch: pa.RecordBatch) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Returns a mask of the changes that are probably complete states, without parsing them."""
    whole, gaps = batch.column(WHOLE), batch.column("gaps")
    not_deleted = pc.not_equal(batch.column("op"), Op.DELETE.value)
    return np.asarray(pc.and_(pc.and_(whole, gaps.is_null()), not_deleted))


def _changes(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    return zip(*(batch.column(name).to_pylist() for name in _OF_STATE), strict=True)


def _with_about(values: Sequence[pa.Array], changes: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Returns the output rows for changes that are complete states."""
    empty_lists = pa.ListArray.from_arrays(pa.array(np.zeros(len(changes) + 1, np.int32)), pa.array([], pa.utf8()))
    begun_flags = pa.array(np.zeros(len(changes), np.bool_))
    arrays = [*values, *(changes.column(name) for name in _OF_CHANGE), empty_lists, empty_lists, begun_flags]
    return pa.RecordBatch.from_arrays(
        [array.cast(field.type) for array, field in zip(arrays, schema, strict=True)], schema=schema
    )


def _batch(rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)], schema=schema
    )


def _row(changes: Sequence[tuple[Any, ...]], readers: Mapping[str, Read]) -> tuple[Any, ...]:
    """Returns the output row of one key, from the key's changes."""
    last_change = changes[0]
    state = fold_key((position, op, current, gaps) for _, position, op, *_, current, gaps in changes)
    values: list[object] = []
    out_of_range: list[str] = []
    for name, read in readers.items():
        token = state.values.get(name, NULL)
        if token == NULL and name not in state.json_null:
            values.append(None)
            continue
        try:
            values.append(read(token))
        except ValueError:
            values.append(None)
            out_of_range.append(name)
    missing = sorted(state.missing & readers.keys())
    return (*values, *last_change[: len(_OF_CHANGE)], missing, sorted(out_of_range), state.has_reached_begin)


def fold_key(changes: Iterable[KeyChange]) -> FoldedState:
    """Returns the last state of a key. `changes` are the changes of the key, the newest first.

    Takes only as many of them as it needs. Raises ChangelogError (MALFORMED) as `fold` does.
    """
    newest_first = iter(changes)
    state = _state(next(newest_first))
    while state.missing and not state.has_reached_begin:
        change = next(newest_first, None)
        if change is None:
            break
        earlier = _state(change)
        recovered = state.missing & earlier.values.keys()
        state.values |= {name: earlier.values[name] for name in recovered}
        state.json_null |= recovered & earlier.json_null
        state.missing -= recovered
        state.has_reached_begin = earlier.has_reached_begin
    return state


def _state(change: KeyChange) -> FoldedState:
    position, op, current, gaps = change
    if op == Op.DELETE:
        return FoldedState(values={}, missing=set(), has_reached_begin=True)
    try:
        values = members((current or "").encode())
    except (ValueError, RecursionError):
        message = f"the state of a change ({op}) is not a JSON object"
        raise ChangelogError(Kind.MALFORMED, message, position=Position.parse(position)) from None
    if gaps is None:
        return FoldedState(values=values, missing=set())
    source = json_codec.decode_provenance(gaps).source
    return FoldedState(
        values=values,
        missing=set(source.unavailable),
        json_null=set(source.json_null),
        has_reached_begin=op == Op.CREATE,
    )
