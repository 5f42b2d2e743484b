"""Converts sets of MySQL's GTIDs to and from the bytes that the command COM_BINLOG_DUMP_GTID and the event
PREVIOUS_GTIDS contain.

All numbers are little-endian. The set starts with the number of its sources (see `gtid_set`), in 8 bytes. Then comes,
for each source, its UUID (16 bytes), the number of its intervals (8 bytes), and its intervals. An interval is two
numbers of 8 bytes: the first number in the interval, and the first number after the interval.

MySQL 8.3 and later use a second format if a source has a tag. This format also starts with 8 bytes: a byte 1, the
number of sources in 6 bytes, and another byte 1. Each UUID is followed by a byte with twice the length of the tag, and
by the tag. See `Gtid_set::encode` in `sql/rpl_gtid.h` of MySQL.
"""

import struct
from typing import Final
from uuid import UUID

from changelog.connectors.sources.mysql.values.positions.gtid_set import NUMBER_END, Bounds, GtidSet
from changelog.envelope.errors import ChangelogError, Kind

TAG_LENGTH_MAX: Final = 32

_NUMBER: Final = struct.Struct("<Q")
_INTERVAL: Final = struct.Struct("<QQ")
_UUID_SIZE: Final = 16
_UNTAGGED: Final = 0
_TAGGED: Final = 1


def encode_gtids(gtids: GtidSet) -> bytes:
    """Returns the bytes of a set. The format with tags is used only for a set with tags, so that MySQL 8.0 can read all
    other sets.
    """
    tagged = any(":" in source for source in gtids.intervals)
    count = len(gtids.intervals)
    parts = [_NUMBER.pack(_TAGGED << 56 | count << 8 | _TAGGED if tagged else count)]
    for source in sorted(gtids.intervals):
        uuid, _, tag = source.partition(":")
        bounds = gtids.intervals[source]
        parts.append(UUID(uuid).bytes)
        if tagged:
            parts += (bytes([len(tag) << 1]), tag.encode())
        parts.append(struct.pack(f"<{len(bounds) + 1}Q", len(bounds) // 2, *bounds))
    return b"".join(parts)


def decode_gtids(data: bytes | memoryview) -> GtidSet:
    """Returns the set that `data` holds, in either format.

    Raises ChangelogError (MALFORMED) with the offset of the byte that does not fit, or of the first byte that is left
    over.
    """
    data = bytes(data)
    (header,) = _unpack(_NUMBER, data, 0)
    form = header >> 56
    if form not in (_UNTAGGED, _TAGGED) or (form == _TAGGED and header & 0xFF != _TAGGED):
        raise _malformed(0)
    count = header >> 8 & (1 << 48) - 1 if form == _TAGGED else header
    at = _NUMBER.size
    intervals: dict[str, Bounds] = {}
    for _ in range(count):
        source, bounds_at = _decode_source(data, at, tagged=form == _TAGGED)
        bounds, end = _decode_bounds(data, bounds_at)
        if source in intervals:
            raise _malformed(at)
        intervals[source] = bounds
        at = end
    if at != len(data):
        raise _malformed(at)
    return GtidSet(intervals={source: bounds for source, bounds in intervals.items() if bounds})


def _decode_source(data: bytes, at: int, *, tagged: bool) -> tuple[str, int]:
    """Returns the source that is encoded at `at`, and where its intervals start."""
    end = at + _UUID_SIZE
    if end + tagged > len(data):
        raise _malformed(at)
    uuid = str(UUID(bytes=data[at:end]))
    if not tagged or data[end] == 0:
        return uuid, end + tagged
    length, odd = divmod(data[end], 2)
    tag = data[end + 1 : end + 1 + length]
    if odd or len(tag) != length or not length <= TAG_LENGTH_MAX or not _is_tag(tag):
        raise _malformed(end)
    return f"{uuid}:{tag.decode()}", end + 1 + length


def _is_tag(tag: bytes) -> bool:
    text = tag.decode("ascii", "replace")
    return tag.isascii() and text.isidentifier() and text == text.lower()


def _decode_bounds(data: bytes, at: int) -> tuple[Bounds, int]:
    """Returns the intervals that are encoded at `at`, and where their bytes end."""
    (count,) = _unpack(_NUMBER, data, at)
    at += _NUMBER.size
    if count > (len(data) - at) // _INTERVAL.size:
        raise _malformed(at)
    bounds = struct.unpack_from(f"<{2 * count}Q", data, at)
    previous = 0
    for index, bound in enumerate(bounds):
        if not previous < bound <= NUMBER_END:
            raise _malformed(at + index * _NUMBER.size)
        previous = bound
    return bounds, at + count * _INTERVAL.size


def _unpack(form: struct.Struct, data: bytes, at: int) -> tuple[int, ...]:
    if at + form.size > len(data):
        raise _malformed(at)
    return form.unpack_from(data, at)


def _malformed(offset: int) -> ChangelogError:
    return ChangelogError(Kind.MALFORMED, f"bytes are not a set of MySQL GTIDs: unexpected value at byte {offset}")
