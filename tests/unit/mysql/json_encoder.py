"""Encodes JSON in MySQL's binary format, for tests without a server. It follows MySQL's description of this format, and
uses no code of the decoder.
"""

import struct
from collections.abc import Sequence

from changelog.connectors.sources.mysql.values.documents.json_binary import Json

LITERALS = {None: 0, True: 1, False: 2}
INTEGERS = [("h", 5), ("H", 6), ("i", 7), ("I", 8), ("q", 9), ("Q", 10)]


def encode(document: Json, *, large: bool = False) -> bytes:
    """Encodes a document. If `large` is true, uses the layout for large objects and arrays everywhere."""
    kind, value = encode_value(document, large=large)
    return bytes([kind]) + value


def encode_value(value: Json, *, large: bool) -> tuple[int, bytes]:
    """Returns the number of a value's type, and the bytes of the value."""
    if isinstance(value, dict):
        return int(large), container(list(value), list(value.values()), large=large)
    if isinstance(value, list):
        return 2 + large, container([], value, large=large)
    if isinstance(value, str):
        return 12, counted(value.encode())
    if isinstance(value, float):
        return 11, struct.pack("<d", value)
    if value is None or isinstance(value, bool):
        return 4, bytes([LITERALS[value]])
    assert isinstance(value, int)
    return next((kind, struct.pack(f"<{code}", value)) for code, kind in INTEGERS if fits(value, code))


def fits(value: int, code: str) -> bool:
    bits = 8 * struct.calcsize(f"<{code}")
    return 0 <= value < 1 << bits if code.isupper() else -(1 << bits - 1) <= value < 1 << bits - 1


def container(names: Sequence[str], values: Sequence[Json], *, large: bool) -> bytes:
    """Encodes an object with these names and values. If there are no names, encodes an array."""
    width, letter = (4, "I") if large else (2, "H")
    heap_at = 2 * width + len(names) * (width + 2) + len(values) * (width + 1)
    keys, entries, heap = b"", b"", b""
    for name in names:
        keys += struct.pack(f"<{letter}H", heap_at + len(heap), len(name.encode()))
        heap += name.encode()
    for value in values:
        kind, encoded = encode_value(value, large=large)
        if 4 <= kind <= 10 and len(encoded) <= width:
            entries += bytes([kind]) + encoded.ljust(width, b"\0")
        else:
            entries += struct.pack(f"<B{letter}", kind, heap_at + len(heap))
            heap += encoded
    return struct.pack(f"<{letter}{letter}", len(values), heap_at + len(heap)) + keys + entries + heap


def counted(text: bytes) -> bytes:
    """Returns the bytes with their length before them. Each byte of the length holds 7 bits of it."""
    length, head = len(text), b""
    while length >= 128:
        head += bytes([length & 127 | 128])
        length >>= 7
    return head + bytes([length]) + text


def change(operation: int, path: str, value: Json = None) -> bytes:
    """Encodes one change of a partial update. Its path and its value must be shorter than 65,536 bytes."""
    parts = [bytes([operation]), short(path.encode())]
    return b"".join(parts if operation == 2 else [*parts, short(encode(value))])


def short(text: bytes) -> bytes:
    return (bytes([len(text)]) if len(text) < 251 else b"\xfc" + struct.pack("<H", len(text))) + text
