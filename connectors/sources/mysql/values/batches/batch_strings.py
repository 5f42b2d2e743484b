"""Converts columns of strings to text (*prints* them), many values at once.

A value is printed here only if its text has the same bytes as the stored value. All other values stay *unprinted*. They
are printed one by one later (see `PrintedColumn`).
"""

import numpy as np

from changelog.connectors.sources.mysql.values.batches.raw_columns import Mask, PrintColumn, PrintedColumn, RawColumn
from changelog.connectors.sources.mysql.values.strings import ToUtf8
from changelog.connectors.sources.mysql.values.text.charsets import clean
from changelog.envelope.columnar.splice import gather
from changelog.envelope.errors import ChangelogError

_ASCII = bytes(range(128))
_FIRST_AFTER_ASCII = 0x80
_FIRST_LEAD_BYTE = 0xC0


def as_stored(raw: RawColumn) -> PrintedColumn:
    """Prints VARBINARY and BLOB: returns the bytes as they are."""
    return PrintedColumn(data=None, starts=raw.starts, lengths=raw.lengths)


def binary(length: int) -> PrintColumn:
    """Prints BINARY of `length` bytes. Values that are stored without their last zero bytes stay unprinted."""
    return lambda raw: PrintedColumn(
        data=None, starts=raw.starts, lengths=raw.lengths, unprintable=raw.lengths != length
    )


def text(to_utf8: ToUtf8, *, fixed: bool) -> PrintColumn | None:
    """Returns a function that prints text; None if the character set does not contain ASCII.

    If the character set is UTF-8 and all values are valid, the function prints all of them. Otherwise, it prints only
    those that are ASCII. If the column is a CHAR (`fixed`), values with spaces at the end always stay unprinted.
    """
    if not _has_ascii(to_utf8):
        return None

    def printed(raw: RawColumn) -> PrintedColumn:
        unprintable = _not_ascii(raw, is_utf8=to_utf8 is clean)
        if fixed:
            last = raw.octets[raw.starts + np.maximum(raw.lengths, 1) - 1]
            unprintable |= (last == ord(" ")) & (raw.lengths > 0)
        return PrintedColumn(data=None, starts=raw.starts, lengths=raw.lengths, unprintable=unprintable)

    return printed


def _has_ascii(to_utf8: ToUtf8) -> bool:
    try:
        return to_utf8(_ASCII) == _ASCII
    except ChangelogError:  # the character set has 32 bits for each character
        return False


def _not_ascii(raw: RawColumn, *, is_utf8: bool) -> Mask:
    """Returns a mask of the texts to leave unprinted: those that have other characters than ASCII.

    If `is_utf8` is set and all texts are valid UTF-8, the mask marks no text.
    """
    mask = np.zeros(raw.count, bool)
    offsets, data = gather(raw.octets, raw.count, [(raw.starts.astype(np.int32), raw.lengths.astype(np.int32))])
    octets = np.frombuffer(data, np.uint8)
    high = octets >= _FIRST_AFTER_ASCII
    if not high.any() or (is_utf8 and _all_valid(raw, data.to_pybytes())):
        return mask
    mask[np.searchsorted(offsets, np.flatnonzero(high), side="right") - 1] = True
    return mask


def _all_valid(raw: RawColumn, joined: bytes) -> bool:
    """Whether all texts are valid UTF-8. They are if the joined texts are valid, and no text begins inside a
    character.
    """
    first = raw.octets[raw.starts]
    inside = (first >= _FIRST_AFTER_ASCII) & (first < _FIRST_LEAD_BYTE) & (raw.lengths > 0)
    if inside.any():
        return False
    try:
        joined.decode()
    except UnicodeDecodeError:
        return False
    return True
