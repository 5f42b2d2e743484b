"""Tests how packets of MySQL's protocol are read.

They must be read completely, in whatever pieces their bytes arrive. If the server is silent, the reader must give up.
"""

import socket
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog.connectors.sources.mysql.session.packets import POLL_S, PacketPatience, PacketReader, Packets

LONGEST = 0xFFFFFF


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two connected sockets: first that of the server, then ours."""
    server, own = socket.socketpair()
    own.settimeout(POLL_S)
    with server, own:
        yield server, own


def framed(payload: bytes) -> bytes:
    """Returns the packets that contain a payload."""
    parts = [payload[at : at + LONGEST] for at in range(0, len(payload) + 1, LONGEST)]
    return b"".join(
        struct.pack("<I", len(part))[:3] + bytes([number & 0xFF]) + part for number, part in enumerate(parts)
    )


@given(payloads=st.lists(st.binary(max_size=40), min_size=1, max_size=10), size=st.integers(1, 60))
def test_packets_are_the_same_however_their_bytes_arrive(payloads: list[bytes], size: int) -> None:
    server, own = socket.socketpair()
    own.settimeout(POLL_S)
    with server, own:
        reader = PacketReader(own, PacketPatience())
        received: list[bytes] = []
        data = b"".join(map(framed, payloads))
        for at in range(0, len(data), size):
            server.sendall(data[at : at + size])
            while b"".join(map(framed, received)) != data[: at + size] and framed_end(payloads, at + size) > len(
                received
            ):
                received += payloads_of(reader.packets(100))
        assert received == payloads


@given(payloads=st.lists(st.binary(max_size=40), min_size=1, max_size=10), size=st.integers(1, 60))
def test_packets_are_the_same_if_several_of_them_are_read_at_once(payloads: list[bytes], size: int) -> None:
    data = b"".join(map(framed, payloads))
    reader = PacketReader(_Source(data, size), PacketPatience())  # type: ignore[arg-type]
    received: list[bytes] = []
    while len(received) < len(payloads):
        packets = reader.packets(4)
        assert len(packets.ends) <= 4
        received += payloads_of(packets)
    assert received == payloads


def payloads_of(packets: Packets) -> list[bytes]:
    """Takes the payloads from `packets`, the last one first. Returns them in the order in which they were sent."""
    payloads = []
    while packets.ends:
        payloads.append(bytes(packets.last()))
        packets = packets.before_last()
    return payloads[::-1]


def framed_end(payloads: list[bytes], size: int) -> int:
    """How many payloads are complete in the first `size` bytes."""
    count = end = 0
    for payload in payloads:
        end += len(framed(payload))
        count += end <= size
    return count


@pytest.mark.parametrize("size", [LONGEST - 1, LONGEST, LONGEST + 1])
def test_a_payload_of_several_packets_is_joined(size: int) -> None:
    payload = bytes(range(256)) * (size // 256 + 1)
    payload = payload[:size]
    reader = PacketReader(_Source(framed(payload) + framed(b"next")), PacketPatience())  # type: ignore[arg-type]
    received: list[bytes] = []
    while len(received) < 2:
        received += payloads_of(reader.packets(100))
    assert received == [payload, b"next"]


@pytest.mark.parametrize("size", [LONGEST - 1, LONGEST, LONGEST + 1])
def test_a_payload_of_several_packets_is_joined_if_other_packets_are_read_with_it(size: int) -> None:
    payload = (bytes(range(256)) * (size // 256 + 1))[:size]
    data = framed(b"before") + framed(payload) + framed(b"next")
    reader = PacketReader(_Source(data), PacketPatience())  # type: ignore[arg-type]
    received: list[bytes] = []
    while len(received) < 3:
        received += payloads_of(reader.packets(100))
    assert received == [b"before", payload, b"next"]


class _Source:
    """A socket that receives the bytes `data`, at most `size` at a time."""

    def __init__(self, data: bytes, size: int = 1 << 30) -> None:
        self._data, self._at, self._size = data, 0, size

    def recv(self, most: int) -> bytes:
        count = min(most, self._size)
        self._at += count
        return self._data[self._at - count : self._at]


def test_a_number_of_bytes_can_be_read(pair: tuple[socket.socket, socket.socket]) -> None:
    server, own = pair
    reader = PacketReader(own, PacketPatience())
    server.sendall(b"abcdef")
    assert (reader.read(2), reader.read(3)) == (b"ab", b"cde")
    server.close()
    assert reader.read(5) == b"f"


def test_a_closed_connection_is_an_error(pair: tuple[socket.socket, socket.socket]) -> None:
    server, own = pair
    server.close()
    with pytest.raises(ConnectionResetError, match="closed"):
        PacketReader(own, PacketPatience()).packets(1)


def test_the_reader_gives_up_if_the_server_is_silent(pair: tuple[socket.socket, socket.socket]) -> None:
    with pytest.raises(TimeoutError, match=r"no answer for 0.2 s"):
        PacketReader(pair[1], PacketPatience(silence_s=0.2)).packets(1)


def test_a_service_that_is_stopping_does_not_wait(pair: tuple[socket.socket, socket.socket]) -> None:
    with pytest.raises(TimeoutError, match="stopping"):
        PacketReader(pair[1], PacketPatience(silence_s=None, stopping=lambda: True, stopping_s=0.0)).packets(1)
