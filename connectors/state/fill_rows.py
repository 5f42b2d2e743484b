"""Fills in the values that rows lack, row by row. `fill_batches` does the same faster."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import json

from changelog.connectors.state.columns import PlacedVersion
from changelog.connectors.state.fill_row import Row, fill, known
from changelog.connectors.state.pending import Pending
from changelog.connectors.state.stored_row import StoredRow, row_key
from changelog.envelope.columnar import batch
from changelog.envelope.entity import GAPS, SCHEMAS, TRUNCATE_KEY
from changelog.envelope.gap import Gap
from changelog.envelope.model import Op
from changelog.envelope.versions import Version

Mask = npt.NDArray[np.bool_]

LACKING = ('"unavailable', '"jsonNull')
"""If a row's provenance has none of these strings, its `current` and `original` have no unavailable columns and no JSON
nulls."""

_WHOLE = 'Z"}}'
"""The end of a provenance whose last member is the time of the commit, so that no member in LACKING follows it."""


def may_lack(provenances: pa.StringArray) -> Mask:
    """Returns a mask of the rows whose provenance has one of the strings in LACKING."""
    others = pc.invert(pc.ends_with(provenances, _WHOLE))  # checking the ends first saves much time
    mask: Mask = others.to_numpy(zero_copy_only=False).copy()
    if mask.any():
        texts = provenances.filter(others)
        has_text = pc.or_(*(pc.match_substring(texts, text) for text in LACKING))
        mask[mask] = has_text.to_numpy(zero_copy_only=False)
    return mask


def fill_rows(pending: Pending, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Fills in values that rows of the batch lack. Stages all rows (see `Pending`), and returns them.

    Raises ChangelogError (MALFORMED) if a row cannot be read.
    """
    return replaced(rows, {number: row for number in range(rows.num_rows) if (row := fill_one(pending, rows, number))})


def fill_one(pending: Pending, rows: pa.RecordBatch, number: int) -> Row | None:
    """Stages the row with this number. Returns the row if values that it lacks were filled in, otherwise None."""
    entity, key, op, position = (rows.column(name)[number].as_py() for name in ("entity", "key", "op", "position"))
    current = rows.column("current")[number].as_py()
    if entity == SCHEMAS:
        pending.see_version(PlacedVersion(position=position, version=Version.parse(current.encode())))
    elif entity == GAPS:
        for name in Gap.parse(current.encode()).entities:
            pending.forget(name)
    elif pending.tracks(entity) and key == TRUNCATE_KEY:
        pending.forget(entity)
    elif pending.tracks(entity):
        original = rows.column("original")[number].as_py()
        row = Row(
            op=op,
            provenance=rows.column("provenance")[number].as_py(),
            current=None if current is None else current.encode(),
            original=None if original is None else original.encode(),
        )
        return _fill(pending, entity, row_key(entity, key), position, row, rows.column("moved")[number].as_py())
    return None


def _fill(pending: Pending, entity: str, key: bytes, position: str, row: Row, moved: str | None) -> Row | None:
    to, from_ = moves(entity, moved)
    before: bytes | None = None
    if from_ is not None:
        before = pending.moved.pop(key, None)  # the row under its old key, which was deleted just before
    elif lacks(row) or to is not None:
        before = pending.get(entity, key)
    if to is not None:
        pending.moved[to] = before
    columns, number = pending.columns.names(entity), pending.columns.number(entity)
    values = None
    if before is not None:
        old_row = StoredRow.decode(before)
        values = known(old_row, pending.columns.usable(entity, old_row.version))
    filled_row = fill(row, values, columns)
    state = filled_row.row.current
    pending.put(
        {
            key: None
            if state is None
            else StoredRow(
                version=number,
                position=position,
                state=state,
                json_null=filled_row.json_null,
                complete=filled_row.complete,
            ).encode()
        }
    )
    return filled_row.row if filled_row.row is not row and _is_affordable(pending, row, filled_row.row) else None


def lacks(row: Row) -> bool:
    """Returns whether a row may lack values. Updates and deletes should have an original; other rows have none."""
    no_original = row.original is None and row.op in (Op.UPDATE, Op.DELETE)
    return no_original or LACKING[0] in row.provenance


def moves(entity: str, moved: str | None) -> tuple[bytes | None, bytes | None]:
    """Returns two keys of the store: the one to which a row moved, and the one from which it moved.

    Each is None if the row made no such move. `moved` is the row's value in the column `moved`.
    """
    if moved is None:
        return None, None
    places = json.decode(moved)
    to, from_ = (row_key(entity, places[name]["key"]) if name in places else None for name in ("movedTo", "movedFrom"))
    return to, from_


def _is_affordable(pending: Pending, row: Row, filled_row: Row) -> bool:
    """Returns whether the budget has room for the values that were filled in. If so, reduces the budget."""
    growth = sum(
        len(after or b"") - len(before or b"")
        for after, before in ((filled_row.current, row.current), (filled_row.original, row.original))
    )
    if growth > pending.budget:
        return False
    pending.budget -= max(growth, 0)
    return True


def replaced(rows: pa.RecordBatch, changed_rows: Mapping[int, Row]) -> pa.RecordBatch:
    """Returns the batch with some rows replaced. It keeps the metadata of its schema.

    `changed_rows` maps the numbers of these rows, in ascending order, to their new values.
    """
    if not changed_rows:
        return rows
    mask = np.zeros(rows.num_rows, bool)
    mask[list(changed_rows)] = True
    values = {
        "provenance": [row.provenance.encode() for row in changed_rows.values()],
        "current": [row.current for row in changed_rows.values()],
        "original": [row.original for row in changed_rows.values()],
    }
    for name, column in values.items():
        new = pa.array(column, pa.binary()).cast(pa.utf8())
        merged = pc.replace_with_mask(rows.column(name), pa.array(mask), new)
        rows = rows.set_column(rows.schema.get_field_index(name), batch.SCHEMA.field(name), merged)
    return rows
