"""Fills in the values that rows lack, for many rows at once. The result is the same as that of `fill_rows`.

Most rows lack nothing, or only the original of an update. That original is the `current` of the key's previous row. It
is taken as it is, from the same batch or from the store. If a row may lack other values, `fill_rows` fills in that row
and all other rows of its key.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from changelog.connectors.state.columns import UNKNOWN
from changelog.connectors.state.fill_row import Row
from changelog.connectors.state.fill_rows import Mask, fill_one, fill_rows, may_lack, replaced
from changelog.connectors.state.pending import Pending
from changelog.connectors.state.stored_row import HEADER, row_key, usual_prefix
from changelog.envelope.columnar import batch
from changelog.envelope.entity import GAPS, SCHEMAS, TRUNCATE_KEY
from changelog.envelope.model import Op

Ints = npt.NDArray[np.int64]

FEW_ROWS = 8
"""For batches of at most this many rows, `fill_rows` is faster."""

_MARKED = frozenset({GAPS, SCHEMAS})


def fill_batch(pending: Pending, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Fills in values that rows of the batch lack. Stages all rows (see `Pending`), and returns them.

    Raises ChangelogError (MALFORMED) if a row cannot be read.
    """
    if rows.num_rows <= FEW_ROWS:
        return fill_rows(pending, rows)
    entities = rows.column("entity").dictionary_encode()
    names = entities.dictionary.to_pylist()
    if not _MARKED.isdisjoint(names) or pc.any(pc.equal(rows.column("key"), TRUNCATE_KEY)).as_py():
        return fill_rows(pending, rows)
    codes = entities.indices.to_numpy()
    fast = _Fast(rows)
    for code, entity in enumerate(names):
        if pending.tracks(entity):
            fast.fill(pending, entity, np.flatnonzero(codes == code))
    return replaced(fast.result(), dict(sorted(fast.changed_rows.items())))


class _Fast:
    """Fills one batch, entity by entity.

    `changed_rows` has the rows that `fill_rows` changed. `_odd` marks the rows that need `fill_rows`; all other rows of
    their keys need it, too. `_lacks` marks the updates without an original.

    `_takes` says, for each row, which state becomes its original. A number below the count of rows stands for the
    `current` of the batch's row with this number. The count plus i stands for `_stored_states[i]`, which comes from the
    store. -1 means that the row takes no original.
    """

    def __init__(self, rows: pa.RecordBatch) -> None:
        self.changed_rows: dict[int, Row] = {}
        self._rows = rows
        deleted = pc.and_(pc.equal(rows.column("op"), Op.DELETE.value), pc.is_null(rows.column("original")))
        self._odd = may_lack(rows.column("provenance")) | _mask(pc.or_(pc.is_valid(rows.column("moved")), deleted))
        updated = pc.and_(pc.equal(rows.column("op"), Op.UPDATE.value), pc.is_null(rows.column("original")))
        self._lacks = _mask(updated)
        self._takes = np.full(rows.num_rows, -1, np.int64)
        self._stored_states: list[bytes] = []

    def fill(self, pending: Pending, entity: str, index: Ints) -> None:
        """Fills and stages the rows of one entity. `index` has the numbers of these rows in the batch."""
        keys = _joined(row_key(entity, ""), self._taken("key", index)).to_pylist()
        odd, lacks = self._odd[index], self._lacks[index]
        if pending.columns.number(entity) == UNKNOWN:
            odd = np.ones(len(index), bool)
        odd_keys = {keys[number] for number in np.flatnonzero(odd).tolist()}
        pending.fetch(entity, odd_keys)
        plain = [number for number, key in enumerate(keys) if key in odd_keys] if odd_keys else []
        fast = np.ones(len(keys), bool)
        fast[plain] = False
        previous, last = _chain(keys, fast, lacks)
        first = np.flatnonzero(previous == _STORE)
        first_keys = [keys[number] for number in first.tolist()]
        unusual = self._look_up(pending, entity, index[first], first_keys)
        if unusual:
            plain = [number for number, key in enumerate(keys) if key in odd_keys or key in unusual]
            fast[plain] = False
        chained = np.flatnonzero((previous >= 0) & fast)
        self._takes[index[chained]] = index[previous[chained]]
        for key in unusual:
            last.pop(key, None)
        self._stage(pending, entity, index, last)
        for number in index[plain].tolist():
            row = fill_one(pending, self._rows, number)
            if row is not None:
                self.changed_rows[number] = row

    def _look_up(self, pending: Pending, entity: str, numbers: Ints, keys: Sequence[bytes]) -> set[bytes]:
        """Takes originals from the store for the rows `numbers`, whose keys are `keys`, as far as the budget has room.

        Leaves out keys whose stored rows are not *usual* (`StoredRow`) or have another version of the columns, and
        returns these keys.
        """
        prefix = usual_prefix(pending.columns.number(entity))
        unusual = set()
        count, budget, stored_states = self._rows.num_rows, pending.budget, self._stored_states
        for number, key, value in zip(numbers.tolist(), keys, pending.lookup(entity, keys), strict=True):
            if value is None:
                continue
            if not value.startswith(prefix):
                unusual.add(key)
            elif len(value) <= budget:
                budget -= len(value)
                self._takes[number] = count + len(stored_states)
                stored_states.append(value[HEADER:])
        pending.budget = budget
        return unusual

    def _stage(self, pending: Pending, entity: str, index: Ints, last: dict[bytes, int]) -> None:
        """Stages the last row of each key."""
        numbers = index[list(last.values())]
        prefix = usual_prefix(pending.columns.number(entity))
        values = _joined(prefix, self._taken("position", numbers), self._taken("current", numbers))
        pending.put(dict(zip(last, values.to_pylist(), strict=True)))

    def _taken(self, column: str, numbers: Ints) -> pa.StringArray:
        """Returns a column's values in the rows `numbers`. `numbers` has no duplicates; if it has all rows, they are in
        order.
        """
        values = self._rows.column(column)
        return values if len(numbers) == len(values) else values.take(pa.array(numbers))

    def result(self) -> pa.RecordBatch:
        """Returns the batch with the originals that were taken."""
        rows, takes = self._rows, self._takes
        numbers = np.flatnonzero(takes >= 0)
        if not len(numbers):
            return rows
        states = [rows.column("current"), pa.array(self._stored_states, pa.binary()).view(pa.utf8())]
        originals = pa.concat_arrays(states).take(pa.array(takes[numbers]))
        filled = pc.replace_with_mask(rows.column("original"), pa.array(takes >= 0), originals)
        return rows.set_column(rows.schema.get_field_index("original"), batch.SCHEMA.field("original"), filled)


_NONE, _STORE = -1, -2


def _chain(keys: Sequence[bytes], fast: Mask, lacks: Mask) -> tuple[Ints, dict[bytes, int]]:
    """Returns, for each row that lacks its original, the number of the previous row of the same key.

    This number is _STORE if the batch has no previous row of the key, and _NONE if the row needs no original. Also
    returns the number of the last row of each key. Leaves out rows that are not `fast`, because `fill_rows` handles
    them.
    """
    previous = [_NONE] * len(keys)
    last: dict[bytes, int] = {}
    for number, (key, is_fast, is_lacking) in enumerate(zip(keys, fast.tolist(), lacks.tolist(), strict=True)):
        if is_fast:
            if is_lacking:
                previous[number] = last.get(key, _STORE)
            last[key] = number
    return np.array(previous, np.int64), last


def _joined(prefix: bytes, *columns: pa.StringArray) -> pa.BinaryArray:
    """Returns the values of the columns, joined after a prefix; null where one of them is null."""
    return pc.binary_join_element_wise(
        pa.scalar(prefix, pa.binary()), *(column.cast(pa.binary()) for column in columns), b""
    )


def _mask(column: pa.BooleanArray) -> Mask:
    mask: Mask = column.to_numpy(zero_copy_only=False)
    return mask
