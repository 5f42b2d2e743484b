"""Finds the values in the rows of a query's result, and converts them, for all rows at once."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from changelog.connectors.capture.rows.text_columns import Data, TextColumns
from changelog.connectors.sources.mysql.session.packets import HEADER_BYTES
from changelog.connectors.sources.mysql.session.results import TextRows
from changelog.connectors.sources.mysql.values.batches.print_all import print_all
from changelog.connectors.sources.mysql.values.batches.raw_columns import PADDING_BYTES, Ints, PrintColumn, RawColumn
from changelog.connectors.sources.mysql.values.selected import Convert, Selected
from changelog.envelope.columnar.splice import Bytes, Pool
from changelog.envelope.errors import ChangelogError, Kind

_NULL = 0xFB


def parse_rows(rows: TextRows, places: Sequence[int], width: int) -> TextColumns:
    """Returns where the values of a result are in `rows.data`, and adds padding to the end of `rows.data`.

    Column n of the result becomes column `places[n]` of `width` columns; the other columns are null. Raises
    ChangelogError (MALFORMED) if a row does not have as many values as `places`.
    """
    rows.data.extend(bytes(PADDING_BYTES))
    buffer = np.frombuffer(rows.data, np.uint8)
    bounds = np.array(rows.bounds, np.int64)
    at, ends = bounds[:-1] + HEADER_BYTES, bounds[1:]
    columns = TextColumns.empty(width, rows.count)
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


def convert_columns(data: bytearray, columns: TextColumns, selections: Sequence[tuple[int, Selected]]) -> Data:
    """Converts the values of some columns as `Selected.convert` does. `selections` has, for each of these columns, its
    place in `columns` and its `Selected`.

    `data` has the texts and padding. Returns `data`, with the new texts at its end and padding after them, and puts the
    places of these texts into `columns`. Raises ChangelogError (MALFORMED).
    """
    pool, octets = Pool(data), np.frombuffer(data, np.uint8)
    for place, selection in selections:
        if selection.convert is not None:
            _convert(octets, columns, place, selection.convert, selection.convert_column, pool)
    return data if pool.size == len(data) else pool.data()  # a large row is not copied without need


def _convert(
    octets: Bytes, columns: TextColumns, place: int, convert: Convert, convert_column: PrintColumn | None, pool: Pool
) -> None:
    present = np.flatnonzero(~columns.null[place])
    if len(present):
        raw = RawColumn(
            octets=octets,
            starts=columns.starts[place, present].astype(np.int64),
            lengths=columns.lengths[place, present].astype(np.int64),
        )
        starts, lengths = print_all(raw, convert_column, lambda text: convert(bytes(text)), pool)
        columns.starts[place, present], columns.lengths[place, present] = starts, lengths
