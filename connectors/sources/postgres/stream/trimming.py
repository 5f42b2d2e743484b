"""Trims long logical messages, so that they do not fill our memory.

Any role may write logical messages, with any prefix and up to 1 GB each, and the server sends us all of them. A long
message is shortened before it is copied out of libpq.
"""

from collections.abc import Mapping

from changelog.connectors.sources.postgres.decode.frames import HEADER
from changelog.connectors.sources.postgres.decode.messages import DDL_PREFIX
from changelog.envelope import signal, stamp

_CONTENT_MAX: Mapping[bytes, int] = {
    stamp.PREFIX.encode(): stamp.MESSAGE_NBYTES_MAX,
    stamp.SESSION_PREFIX.encode(): stamp.MESSAGE_NBYTES_MAX,
    signal.PREFIX.encode(): signal.NBYTES_MAX,
    signal.FENCE_PREFIX.encode(): 0,
    DDL_PREFIX.encode(): 1 << 20,
}
"""The longest content that the service reads, by prefix, in bytes."""

_SHORT_BYTES = 4096
_PREFIX_BEGIN = HEADER + 10  # after the kind, the flags and the LSN (protocol page *Message*)
_PREFIX_MAX = max(map(len, _CONTENT_MAX))


def trimmed(frame: memoryview) -> bytes:
    """Returns a copy of a stream frame. If it is a long logical message, leaves out the parts that nobody reads.

    Content that exceeds the maximum for its prefix is cut to one byte more than the maximum, so that the decoder of the
    content still rejects it as too long. A message with a foreign prefix loses its prefix and its content.
    """
    if len(frame) <= _SHORT_BYTES or frame[0] != ord("w") or frame[HEADER] != ord("M"):
        return bytes(frame)
    head = bytes(frame[:_PREFIX_BEGIN])
    prefix, end, _ = bytes(frame[_PREFIX_BEGIN : _PREFIX_BEGIN + _PREFIX_MAX + 1]).partition(b"\0")
    if not end or prefix not in _CONTENT_MAX:
        return head + b"\0" + bytes(4)
    begin = _PREFIX_BEGIN + len(prefix) + 1 + 4
    content = bytes(frame[begin : begin + _CONTENT_MAX[prefix] + 1])
    return b"".join([head, prefix, b"\0", len(content).to_bytes(4, "big"), content])
