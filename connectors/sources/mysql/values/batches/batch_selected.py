"""Converts what a query returns for a column, many values at once.

The results must be the same as those of `values.selected`, which converts values one by one.

Some values stay *unconverted* here. They are converted one by one later (see `PrintedColumn`).
"""

import numpy as np
import pyarrow as pa

from changelog.connectors.sources.mysql.values.batches import batch_numbers, batch_strings
from changelog.connectors.sources.mysql.values.batches.raw_columns import (
    PADDING_BYTES,
    PrintColumn,
    PrintedColumn,
    RawColumn,
)
from changelog.connectors.sources.mysql.values.numbers import bits as bits_printer
from changelog.connectors.sources.mysql.values.text.charsets import clean
from changelog.envelope.columnar.splice import gather

_ZONE = b"+00"
_ZERO_YEAR = int.from_bytes(b"0000", "little")
_ZERO = ord("0")

texts = batch_strings.text(clean, fixed=False)
"""Converts text. If one value is not valid UTF-8, all values that are not ASCII stay unconverted."""


def in_utc(raw: RawColumn) -> PrintedColumn:
    """Adds the zone `+00` to the texts of TIMESTAMP values. The zero date stays unconverted."""
    zone = len(raw.octets)
    octets = np.concatenate([raw.octets, np.frombuffer(_ZONE.ljust(PADDING_BYTES, b"\0"), np.uint8)])
    starts, lengths = raw.starts.astype(np.int32), raw.lengths.astype(np.int32)
    offsets, data = gather(octets, raw.count, [(starts, lengths), (zone, len(_ZONE))])
    bounds = offsets[::2].astype(np.int64)
    unprintable = raw.unsigned(4) == _ZERO_YEAR
    return PrintedColumn(data=data.to_pybytes(), starts=bounds[:-1], lengths=np.diff(bounds), unprintable=unprintable)


def without_zeros(raw: RawColumn) -> PrintedColumn:
    """Converts numbers that the server may pad with zeros. Those that begin with a zero stay unconverted, except for
    the single digit 0.
    """
    unprintable = (raw.octets[raw.starts] == _ZERO) & (raw.lengths > 1)
    return PrintedColumn(data=None, starts=raw.starts, lengths=raw.lengths, unprintable=unprintable)


def floating(size: int) -> PrintColumn:
    """Converts FLOAT (4 bytes) or DOUBLE (8 bytes). The server sends both as the text of a DOUBLE.

    If one text is not a number, all values stay unconverted. Otherwise, only those that `batch_numbers.print_floats`
    leaves unprinted stay unconverted.
    """

    def printed(raw: RawColumn) -> PrintedColumn:
        starts, lengths = raw.starts.astype(np.int32), raw.lengths.astype(np.int32)
        offsets, data = gather(raw.octets, raw.count, [(starts, lengths)])
        texts = pa.Array.from_buffers(pa.utf8(), raw.count, [None, pa.py_buffer(offsets), data])
        try:
            values = texts.cast(pa.float64()).to_numpy()
        except pa.ArrowInvalid:
            return PrintedColumn(
                data=None, starts=raw.starts, lengths=raw.lengths, unprintable=np.ones(raw.count, bool)
            )
        with np.errstate(over="ignore"):
            return batch_numbers.print_floats(values.astype(f"<f{size}"))

    return printed


def bits(count: int) -> PrintColumn:
    """Converts BIT of `count` bits. If one value has the wrong size, all values stay unconverted."""
    size = (count + 7) // 8
    print_column = batch_numbers.distinct(size, bits_printer(count))

    def printed(raw: RawColumn) -> PrintedColumn:
        if (raw.lengths == size).all():
            return print_column(raw)
        return PrintedColumn(data=None, starts=raw.starts, lengths=raw.lengths, unprintable=np.ones(raw.count, bool))

    return printed
