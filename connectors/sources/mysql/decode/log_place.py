"""Tracks where the stream is in the binary log.

An event contains the offset in the file at which it ends, but only the lower 32 bits of this offset. Inside a
transaction, MariaDB's events do not contain it at all. A *coordinate* is a place in the log as one number
(`values.positions.coordinates`).
"""

from changelog.connectors.sources.mysql.decode.events.header import ARTIFICIAL_FLAG, Header
from changelog.connectors.sources.mysql.values.positions.coordinates import OFFSET_BITS, coordinate, parse_file_name
from changelog.envelope.errors import ChangelogError, Kind

_FOUR_GIB = 1 << 32


class LogPlace:
    """The place after the last event.

    Before the stream has named a file, no place is known: `begin_of` and `end` raise ChangelogError (MALFORMED).
    """

    def __init__(self) -> None:
        self._file: int | None = None
        self._offset = 0

    def enter(self, file: str, offset: int) -> None:
        """Records that the next event is in `file`, at `offset`."""
        _, self._file = parse_file_name(file)
        self._offset = offset

    def pass_event(self, header: Header) -> None:
        """Records that an event was read."""
        end = header.end_log_pos
        if not end or header.flags & ARTIFICIAL_FLAG:
            return
        offset = self._offset - self._offset % _FOUR_GIB + end
        self._offset = offset if offset >= self._offset else offset + _FOUR_GIB

    def base(self, first: int, last: int) -> int | None:
        """For several events that come next, returns the number to add to the `end_log_pos` of each: the sum is the
        coordinate at which the event ends.

        `first` is the `end_log_pos` of the first of these events, and `last` that of the last one. Returns None if no
        single number fits all of them: if they are not in order in one file, or if the offset in the file passes a
        multiple of 4 GiB among them.
        """
        low = self._offset % _FOUR_GIB
        base = self._offset - low
        if self._file is None or not low <= first <= last or base + last >= 1 << OFFSET_BITS:
            return None
        return coordinate(self._file, base)

    def pass_to(self, end_log_pos: int) -> None:
        """Records that the events for which `base` was called were read. The last of them ends at `end_log_pos`."""
        self._offset += end_log_pos - self._offset % _FOUR_GIB

    def begin_of(self, header: Header) -> int:
        """Returns the coordinate at which the last event begins. `header` is its header, with an `end_log_pos`."""
        return self._coordinate(self._offset - header.size)

    @property
    def end(self) -> int:
        """The coordinate after the last event whose offset is known."""
        return self._coordinate(self._offset)

    @property
    def known(self) -> bool:
        """Whether the stream has named a file."""
        return self._file is not None

    def _coordinate(self, offset: int) -> int:
        if self._file is None:
            raise ChangelogError(Kind.MALFORMED, "the stream sent an event before the name of its file")
        return coordinate(self._file, offset)
