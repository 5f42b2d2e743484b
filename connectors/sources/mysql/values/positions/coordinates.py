"""Converts places in the binary log to single integers, which sort in the order of the log.

The log is a series of files, whose names end with a number, such as `binlog.000012`. A coordinate is the number of the
file, times 2**36, plus an offset in the file in bytes. In the position of a change (`envelope.position`), the field
`commit` is a coordinate.
"""

import re
from typing import Final

from changelog.envelope.errors import ChangelogError, Kind

OFFSET_BITS: Final = 36
COORDINATE_BITS: Final = 63

_NAME: Final = re.compile(r"(.+)\.([0-9]+)", re.DOTALL)
_OFFSET_MASK: Final = (1 << OFFSET_BITS) - 1


def coordinate(number: int, offset: int) -> int:
    """Returns the coordinate of an offset in the log's file with this number.

    Raises ChangelogError (LIMIT) if the file is larger than 64 GiB, or if the number is above 134,217,727.
    """
    if not 0 <= offset <= _OFFSET_MASK:
        raise ChangelogError(
            Kind.LIMIT,
            f"offset {offset} in binary log file {number} has more than {OFFSET_BITS} bits",
            hint="divide the transaction that made this file so large",
        )
    if not 0 <= number < 1 << COORDINATE_BITS - OFFSET_BITS:
        raise ChangelogError(
            Kind.LIMIT, f"binary log file {number} has a number with more than {COORDINATE_BITS - OFFSET_BITS} bits"
        )
    return number << OFFSET_BITS | offset


def file_number(coordinate: int) -> int:
    """Returns the number of the file that a coordinate is in."""
    return coordinate >> OFFSET_BITS


def file_offset(coordinate: int) -> int:
    """Returns the offset of a coordinate in its file, in bytes."""
    return coordinate & _OFFSET_MASK


def bytes_read(before: int, after: int) -> int:
    """Returns how many bytes of the log lie between two coordinates.

    If the coordinates are in two files, counts only the bytes in the second file, because the sizes of the other files
    are not known here.
    """
    same_file = file_number(before) == file_number(after)
    return max(after - before, 0) if same_file else file_offset(after)


def parse_file_name(name: str) -> tuple[str, int]:
    """Returns the base name and the number of a file of the log: `binlog` and 12 for `binlog.000012`.

    Raises ChangelogError (MALFORMED) if the name has no number.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise ChangelogError(Kind.MALFORMED, f"{name!r} is not the name of a binary log file, such as binlog.000012")
    return match[1], int(match[2])


def coordinate_text(coordinate: int) -> str:
    """Formats a coordinate for people, for example as `000012:345`: the number of the file, and the offset."""
    return f"{file_number(coordinate):06}:{file_offset(coordinate)}"
