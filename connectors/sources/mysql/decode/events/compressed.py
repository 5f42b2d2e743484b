"""Decompresses what MariaDB compresses in an event (`log_bin_compress`).

Source: MariaDB's `log_event.h`, "Compressed Record". Such a record has three parts:
- One byte: bit 7 is set, bits 4 to 6 are the algorithm, and bits 0 to 2 are the size of the next part in bytes.
- The size of the content before compression, as a big-endian number.
- The compressed content, as a zlib stream.
"""

import zlib

from changelog.connectors.sources.mysql.decode.events.cursor import Cursor
from changelog.connectors.sources.mysql.decode.events.header import EVENT_BYTES_MAX

_MARK, _ALGORITHM, _SIZE_BYTES = 0x80, 0x70, 0x07


def inflate(cursor: Cursor) -> bytes:
    """Decompresses all remaining bytes. Raises ChangelogError (MALFORMED) if they are not one complete record.

    This takes only as much memory as the stream really contains, even if the record claims a larger size.
    """
    begin = cursor.at
    first = cursor.number(1)
    width = first & _SIZE_BYTES
    if not first & _MARK or first & _ALGORITHM or not 1 <= width <= 4:
        raise cursor.malformed(f"a compressed record that begins with {first:#x}", begin)
    size = int.from_bytes(cursor.take(width), "big")
    if size > EVENT_BYTES_MAX:
        raise cursor.malformed(f"a compressed record of {size} bytes", begin)
    stream = zlib.decompressobj()
    try:
        content = stream.decompress(cursor.rest(), size + 1)
    except zlib.error:
        raise cursor.malformed("a compressed record that is not a zlib stream", begin) from None
    if len(content) != size or not stream.eof or stream.unused_data:
        raise cursor.malformed(f"a compressed record that does not have {size} bytes", begin)
    return content
