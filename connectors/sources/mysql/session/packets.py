"""Reads packets of the client/server protocol from a socket, many at once, and limits how long it waits for them.

A packet is a header of 4 bytes (length, sequence number) and a payload. If the payload has the greatest possible
length, 0xFFFFFF bytes, it continues in the next packet. Source: the page *MySQL Packets* of MySQL's Source Code
Documentation.
"""

import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat
from time import monotonic

ANSWER_S = 30.0
"""The seconds that a short query may take. A longer wait means that the server hangs."""

POLL_S = 0.1
"""A waiting reader checks every `POLL_S` seconds whether it should stop."""

HEADER_BYTES = 4
"""The size of a packet's header."""

_RECEIVE_BYTES = 1 << 18
_LONGEST = 0xFFFFFF

_unpack_length = struct.Struct("<I").unpack_from


@dataclass(frozen=True, slots=True, kw_only=True)
class PacketPatience:
    """How long a reader waits for its server.

    `silence_s` is the longest wait without a byte, in seconds; None means no limit. Once `stopping` returns true, the
    limit is `stopping_s`.
    """

    silence_s: float | None = ANSWER_S
    stopping: Callable[[], bool] = lambda: False
    stopping_s: float = 2.0

    def refusal(self, silent_s: float) -> str | None:
        """Returns why a wait that has lasted `silent_s` seconds ends now; None if it continues."""
        if self.stopping() and silent_s >= self.stopping_s:
            return "the service is stopping and no longer waits for an answer"
        if self.silence_s is not None and silent_s >= self.silence_s:
            return f"no answer for {self.silence_s:g} s"
        return None


@dataclass(frozen=True, slots=True)
class Packets:
    """Packets with their headers, one after another in `data`: packet n ends at `ends[n]`.

    A payload that came in several packets has only one header here, and the bytes of this header mean nothing.
    """

    data: bytes
    ends: list[int]

    def last(self) -> memoryview:
        """Returns the payload of the last packet."""
        begin = self.ends[-2] if len(self.ends) > 1 else 0
        return memoryview(self.data)[begin + HEADER_BYTES :]

    def before_last(self) -> "Packets":
        """Returns all packets but the last one."""
        ends = self.ends[:-1]
        return Packets(self.data[: ends[-1] if ends else 0], ends)


class PacketReader:
    """A buffered reader over a connected socket. The timeout of the socket must be `POLL_S`.

    PyMySQL reads its packets through this object, too, as if it were a file (`read` and `close`). Only one thread may
    read.
    """

    def __init__(self, connection: socket.socket, patience: PacketPatience) -> None:
        self._socket, self._patience = connection, patience
        self._buffer, self._at = bytearray(), 0

    def read(self, count: int) -> bytes:
        """Returns the next `count` bytes; fewer if the server closed the connection. Raises OSError."""
        while len(self._buffer) - self._at < count and self._receive():
            pass
        end = min(self._at + count, len(self._buffer))
        result = bytes(memoryview(self._buffer)[self._at : end])
        self._at = end
        return result

    def packets(self, count_max: int) -> Packets:
        """Waits for a packet, and returns packets that have arrived, at most `count_max`, as one piece of memory.

        Raises OSError, also if the server closed the connection.
        """
        while True:
            packets = self._complete_packets(count_max)
            if packets.ends:
                return packets
            self._receive_more()

    def close(self) -> None:
        """Does nothing: PyMySQL closes the socket itself."""

    def _complete_packets(self, count_max: int) -> Packets:
        """Takes complete packets out of the buffer: several small packets, or one whose payload continues in further
        packets.
        """
        buffer, begin, size = self._buffer, self._at, len(self._buffer)
        ends, at = list[int](), begin
        for _ in repeat(None, count_max):
            if at + HEADER_BYTES > size:
                break
            length = _unpack_length(buffer, at)[0] & _LONGEST
            at += HEADER_BYTES + length
            if at > size or length == _LONGEST:
                break
            ends.append(at)
        with memoryview(buffer) as view:
            if ends:
                self._at = ends[-1]
                return Packets(bytes(view[begin : self._at]), [end - begin for end in ends] if begin else ends)
            end = _end_of(buffer, begin, size)
            if end is None:
                return Packets(b"", [])
            self._at = end
            data = b"".join([bytes(HEADER_BYTES), *_parts(view, begin, end)])
            return Packets(data, [len(data)])

    def _receive_more(self) -> None:
        if not self._receive():
            raise ConnectionResetError("the server closed the connection")

    def _receive(self) -> bool:
        """Adds the next bytes from the server to the buffer; returns False if the server closed the connection."""
        if self._at:
            del self._buffer[: self._at]
            self._at = 0
        began = monotonic()
        while True:
            try:
                received = self._socket.recv(_RECEIVE_BYTES)
            except TimeoutError:
                refusal = self._patience.refusal(monotonic() - began)
                if refusal is not None:
                    raise TimeoutError(refusal) from None
                continue
            self._buffer += received
            return bool(received)


def _end_of(buffer: bytearray, at: int, size: int) -> int | None:
    """Takes the offset of a payload's first header. Returns where the payload ends, perhaps in a later packet; None if
    a part of it has not arrived yet.
    """
    while at + HEADER_BYTES <= size:
        length = buffer[at] | buffer[at + 1] << 8 | buffer[at + 2] << 16
        at += HEADER_BYTES + length
        if at > size:
            return None
        if length < _LONGEST:
            return at
    return None


def _parts(view: memoryview, at: int, end: int) -> list[memoryview]:
    """Returns the parts of the payload between two places of the buffer, without the headers of its packets."""
    parts = []
    while at < end:
        length = view[at] | view[at + 1] << 8 | view[at + 2] << 16
        parts.append(view[at + HEADER_BYTES : at + HEADER_BYTES + length])
        at += HEADER_BYTES + length
    return parts
