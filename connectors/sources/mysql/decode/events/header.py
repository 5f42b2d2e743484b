"""Decodes the header of an event: its first 19 bytes, which have the same form in all events."""

import struct
from typing import NamedTuple

from changelog.connectors.sources.mysql.decode.events.cursor import Cursor

HEADER_BYTES = 19
CHECKSUM_BYTES = 4

WHOLE_CHECKSUM = 0x2144DF1C
"""If an event's checksum is correct, the CRC32 of the whole event, including the checksum, is always this number."""

EVENT_BYTES_MAX = 1 << 30
"""The size of the largest event: no server sends or accepts a larger packet (`max_allowed_packet`)."""

IN_USE_FLAG = 0x01
"""The server sets this flag in the first event of a file while it writes the file; the checksum is computed without the
flag.
"""

ARTIFICIAL_FLAG = 0x20
IGNORABLE_FLAG = 0x80


class Header(NamedTuple):
    """The fields that all events have, in the order in which they are stored.

    - `timestamp_s`: when the statement began, in seconds since 1970 UTC; 0 in events that the server made for this
      reader alone.
    - `type`: the number of the event's type (`event_types.EventType`).
    - `server_id`: the id of the server that first wrote the event.
    - `size`: the size of the event in bytes, including the header and the checksum.
    - `end_log_pos`: the offset of the next event in the file, modulo 4 GiB. In a transaction of MariaDB, it is 0 in all
      events but the first and the last. MySQL packs a compressed transaction into one `TRANSACTION_PAYLOAD` event; the
      events inside have the `end_log_pos` of that event.
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
        """Whether the server made the event for this reader alone. Such an event is not in the file."""
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
    header = Header._make(unpack_header(cursor.data, begin))
    if header.size != cursor.end - begin:
        raise cursor.malformed(f"an event of {cursor.end - begin} bytes whose header says {header.size}", begin + 9)
    return header


unpack_header = struct.Struct("<IBIIIH").unpack_from
"""Takes a buffer, and the offset in it at which a header begins. Returns the fields of this header."""
