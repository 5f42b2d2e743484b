"""The first 19 bytes of each event."""

import struct
from dataclasses import dataclass

from changelog.connectors.sources.mysql.decode.events.cursor import Cursor

HEADER_BYTES = 19
CHECKSUM_BYTES = 4

EVENT_BYTES_MAX = 1 << 30
"""The size of the largest event: no server sends or accepts a larger packet (`max_allowed_packet`)."""

IN_USE_FLAG = 0x01
"""The server sets this flag in the first event of a file while it writes the file, without a new checksum."""

ARTIFICIAL_FLAG = 0x20
IGNORABLE_FLAG = 0x80


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What all events have.

    - `timestamp_s`: when the statement began, in seconds since 1970 UTC; 0 in events that are made for the reader.
    - `type`: the number of the event's type (`event_types.EventType`). `server_id`: the server that first wrote it.
    - `size`: its bytes, with the header and the checksum.
    - `end_log_pos`: the offset of the next event in the file, modulo 4 GiB. It is 0 in MariaDB's transactions, except
      at their beginning and end. All events in a compressed transaction of MySQL (`TRANSACTION_PAYLOAD`) have the
      `end_log_pos` of the whole.
    - `flags`: see the properties, and the constants above.
    """

    timestamp_s: int
    type: int
    server_id: int
    size: int
    end_log_pos: int
    flags: int

    @property
    def artificial(self) -> bool:
        """Whether the server made the event for this reader. Such an event is not in the file."""
        return bool(self.flags & ARTIFICIAL_FLAG)

    @property
    def ignorable(self) -> bool:
        """Whether a reader that does not know the event's type may ignore it."""
        return bool(self.flags & IGNORABLE_FLAG)


def read_header(cursor: Cursor) -> Header:
    """Reads the header at the beginning of an event.

    Raises ChangelogError (MALFORMED) if bytes are missing, or if the event has another size than the header says.
    """
    begin = cursor.skip(HEADER_BYTES)
    timestamp_s, kind, server_id, size, end_log_pos, flags = _FIELDS.unpack_from(cursor.data, begin)
    if size != cursor.end - begin:
        raise cursor.malformed(f"an event of {cursor.end - begin} bytes whose header says {size}", begin + 9)
    return Header(
        timestamp_s=timestamp_s, type=kind, server_id=server_id, size=size, end_log_pos=end_log_pos, flags=flags
    )


_FIELDS = struct.Struct("<IBIIIH")
