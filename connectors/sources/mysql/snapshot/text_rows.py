"""Finds the values in the rows of a result, for all rows at once."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from changelog.connectors.capture.rows.json_columns import Columns
from changelog.connectors.sources.mysql.session.results import TextRows
from changelog.envelope.columnar.splice import INLINE
from changelog.envelope.errors import ChangelogError, Kind

Ints = npt.NDArray[np.int64]
Convert = Callable[[bytes], bytes]

_NULL = 0xFB
_PADDING = max(INLINE, 9)  # a length that begins at the last byte of the data takes 8 more


def parse_rows(rows: TextRows, places: Sequence[int], width: int) -> Columns:
    """Returns where the values of a result are in `rows.data`, which gets the padding that `splice` needs.

    Column n of the result becomes column `places[n]` of `width` columns; the others are null. Raises ChangelogError
    (MALFORMED) if a row does not have as many values as `places`.
    """
    count = len(rows.starts) - 1
    rows.data.extend(bytes(_PADDING))
    buffer = np.frombuffer(rows.data, np.uint8)
    bounds = np.array(rows.starts, np.int64)
    at, ends = bounds[:-1], bounds[1:]
    columns = Columns.empty(width, count)
    columns.starts[:], columns.lengths[:], columns.null[:] = 0, 0, True
    for place in places:
        start, length, null = _values(buffer, at)
        columns.starts[place], columns.lengths[place], columns.null[place] = start, length, null
        at = start + length
        if (at > ends).any():
            raise _wrong_width(places)
    if (at != ends).any():
        raise _wrong_width(places)
    return columns


def _wrong_width(places: Sequence[int]) -> ChangelogError:
    return ChangelogError(Kind.MALFORMED, f"the server sent rows that do not have {len(places)} values")


def _values(buffer: npt.NDArray[np.uint8], at: Ints) -> tuple[Ints, Ints, npt.NDArray[np.bool_]]:
    """Returns the start and the length of the value that begins at each place, and which of them are null.

    Source: the page *Protocol::LengthEncodedInteger* of MySQL's documentation.
    """
    first = buffer[at].astype(np.int64)
    null = first == _NULL
    length = np.where(null, 0, first)
    start = at + 1
    for mark, size in ((0xFC, 2), (0xFD, 3), (0xFE, 8)):
        long = np.flatnonzero(first == mark)
        if long.size:
            digits = buffer[at[long][:, None] + np.arange(1, size + 1)].astype(np.int64)
            length[long] = (digits << (8 * np.arange(size))).sum(axis=1)
            start[long] += size
    return start, length, null


def convert_column(data: bytearray, columns: Columns, place: int, convert: Convert) -> None:
    """Replaces the texts of one column by what `convert` makes of them, at the end of `data`, which is padded again."""
    del data[len(data) - _PADDING :]
    for number in np.flatnonzero(~columns.null[place]).tolist():
        start = int(columns.starts[place, number])
        text = convert(bytes(data[start : start + int(columns.lengths[place, number])]))
        columns.starts[place, number], columns.lengths[place, number] = len(data), len(text)
        data += text
    data += bytes(_PADDING)
