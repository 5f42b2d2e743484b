"""Converts all values of a column to text: as many as possible together, and the others one by one."""

import numpy as np

from changelog.connectors.sources.mysql.values.batches.raw_columns import Ints, PrintColumn, RawColumn
from changelog.connectors.sources.mysql.values.numbers import Printer
from changelog.envelope.columnar.splice import Pool


def print_all(raw: RawColumn, print_column: PrintColumn | None, printer: Printer, pool: Pool) -> tuple[Ints, Ints]:
    """Adds the texts of the values in `raw` to `pool`, and returns the start and the length of each text in `pool`.

    The text of a value is what `printer` returns for it. `pool` must begin with the bytes of `raw.octets`; a text that
    equals its stored bytes is then in `pool` already. `print_column` converts many values together; it is None if each
    value must be converted alone. Raises the errors of `printer`.
    """
    if print_column is None:
        starts, lengths = np.zeros(raw.count, np.int64), np.zeros(raw.count, np.int64)
        unprintable = np.arange(raw.count)
    else:
        printed = print_column(raw)
        starts, lengths = printed.starts, printed.lengths
        if printed.data is not None:
            starts = starts + pool.add(printed.data)
        unprintable = np.flatnonzero(printed.unprintable) if printed.unprintable is not None else np.arange(0)
    return _one_by_one(printer, raw, unprintable, pool, (starts, lengths)) if len(unprintable) else (starts, lengths)


def _one_by_one(
    printer: Printer, raw: RawColumn, unprintable: Ints, pool: Pool, texts: tuple[Ints, Ints]
) -> tuple[Ints, Ints]:
    """Converts the values whose numbers are in `unprintable`, and returns the starts and lengths of all texts."""
    starts, lengths = (part.copy() for part in texts)
    begins, ends = raw.starts[unprintable], raw.starts[unprintable] + raw.lengths[unprintable]
    data = raw.octets.data
    printed = [printer(data[begin:end]) for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]
    sizes = np.array([len(text) for text in printed], np.int64)
    starts[unprintable], lengths[unprintable] = pool.add(b"".join(printed)) + np.cumsum(sizes) - sizes, sizes
    return starts, lengths
