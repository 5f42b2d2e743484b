"""Converts strings, enumerations, addresses and compressed values from their bytes in the log to text (*prints* them).

For bytes that are not valid for the type, the printers raise ChangelogError (MALFORMED); they raise no other error.
"""

import zlib
from collections.abc import Callable, Sequence

from changelog.connectors.sources.mysql.values.malformed import check_size, malformed
from changelog.connectors.sources.mysql.values.numbers import Printer

ToUtf8 = Callable[[bytes], bytes]
"""Converts a text from its character set to valid UTF-8, as the server does (`charsets.to_utf8`)."""

_ZLIB = 8  # MariaDB's number for zlib, in the upper half of the first byte
_RAW_DEFLATE = 0x08
_LENGTH_BYTES = 0x07


def text(to_utf8: ToUtf8) -> Printer:
    """Prints a VARCHAR or a TEXT."""
    return lambda raw: to_utf8(bytes(raw))


def char(to_utf8: ToUtf8) -> Printer:
    """Prints a CHAR without the spaces at its end. Queries leave out these spaces, too."""
    return lambda raw: to_utf8(bytes(raw)).rstrip(b" ")


def binary(length: int) -> Printer:
    """Prints the `length` bytes of a BINARY as they are. The zeros at the end, which the log leaves out, are added
    again.
    """

    def printed(raw: bytes | memoryview) -> bytes:
        if len(raw) > length:
            raise malformed("BINARY", f"has {len(raw)} bytes, but its column has {length}")
        return bytes(raw).ljust(length, b"\0")

    return printed


def enum(size: int, labels: Sequence[bytes], to_utf8: ToUtf8) -> Printer:
    """Prints the label of an ENUM. The log has the label's number, in `size` bytes, little-endian.

    The number 0 stands for the empty text.
    """
    texts = [b"", *map(to_utf8, labels)]

    def printed(raw: bytes | memoryview) -> bytes:
        check_size("ENUM", raw, size)
        number = int.from_bytes(raw, "little")
        if number >= len(texts):
            raise malformed("ENUM", f"has the number {number}, but its column has {len(texts) - 1} labels")
        return texts[number]

    return printed


def set_(size: int, labels: Sequence[bytes], to_utf8: ToUtf8) -> Printer:
    """Prints the labels in a SET, separated by commas. The log has one bit for each label of the column.

    The bits are in `size` bytes, little-endian.
    """
    texts = list(map(to_utf8, labels))

    def printed(raw: bytes | memoryview) -> bytes:
        check_size("SET", raw, size)
        number = int.from_bytes(raw, "little")
        if number >> len(texts):
            raise malformed("SET", f"has a bit above the {len(texts)} labels of its column")
        return b",".join(label for bit, label in enumerate(texts) if number >> bit & 1)

    return printed


def compressed(content: Printer) -> Printer:
    """Prints a value of a column that MariaDB compresses. `content` prints the uncompressed bytes.

    If the first byte is 0, the content follows uncompressed. Any other first byte has three parts:
    - The lowest 3 bits say how many bytes the length of the uncompressed content takes.
    - Bit 3 says that zlib's header is left out.
    - The upper 4 bits are the compression method.

    After this byte come the length of the uncompressed content, big-endian, and the compressed content (`compress_zlib`
    in MariaDB's `field_comp.cc`). An empty value has no bytes at all.
    """

    def printed(raw: bytes | memoryview) -> bytes:
        return content(_uncompressed(raw) if raw else b"")

    return printed


def _uncompressed(raw: bytes | memoryview) -> bytes | memoryview:
    if not raw[0]:
        return raw[1:]
    start = 1 + (raw[0] & _LENGTH_BYTES)
    if raw[0] >> 4 != _ZLIB or start > len(raw):
        raise malformed("COMPRESSED", "is compressed by an unknown method")
    length = int.from_bytes(raw[1:start], "big")
    decompressor = zlib.decompressobj(-zlib.MAX_WBITS if raw[0] & _RAW_DEFLATE else zlib.MAX_WBITS)
    try:
        content = decompressor.decompress(raw[start:], length + 1)
    except zlib.error:
        raise malformed("COMPRESSED", "cannot be decompressed") from None
    if len(content) != length or not decompressor.eof or decompressor.unused_data:
        raise malformed("COMPRESSED", f"does not have the {length} bytes that it announces")
    return content


def uuid(raw: bytes | memoryview) -> bytes:
    """Prints a MariaDB UUID. In the log, its bytes have the same order as in its text."""
    digits = _address("UUID", raw, 16).hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])).encode()


def inet4(raw: bytes | memoryview) -> bytes:
    """Prints a MariaDB INET4."""
    return ".".join(map(str, _address("INET4", raw, 4))).encode()


def inet6(raw: bytes | memoryview) -> bytes:
    """Prints a MariaDB INET6.

    The text consists of eight numbers of 16 bits. The longest run of zeros among them is left out, even if it is a
    single zero; if several runs are equally long, it is the first of them. Addresses that stand for an IPv4 address end
    with the text of the IPv4 address.
    """
    octets = _address("INET6", raw, 16)
    words = [int.from_bytes(octets[at : at + 2], "big") for at in range(0, 16, 2)]
    start, length = _longest_zeros(words)
    if not length:
        return ":".join(f"{word:x}" for word in words).encode()
    parts = [f"{word:x}" for word in words]
    if start == 0 and (length == 6 or (length == 5 and words[5] == 0xFFFF)):
        parts[6:] = [".".join(map(str, octets[12:]))]
    return f"{':'.join(parts[:start])}::{':'.join(parts[start + length :])}".encode()


def _longest_zeros(words: Sequence[int]) -> tuple[int, int]:
    """Returns where the first of the longest runs of zeros begins, and how long it is: 0 if there are no zeros."""
    start, longest, run = 0, 0, 0
    for number, word in enumerate(words):
        run = 0 if word else run + 1
        if run > longest:
            start, longest = number + 1 - run, run
    return start, longest


def _address(type_name: str, raw: bytes | memoryview, size: int) -> bytes:
    """Returns all `size` bytes of a value. Adds the zeros at its end, which the log leaves out."""
    if len(raw) > size:
        raise malformed(type_name, f"has {len(raw)} bytes instead of {size}")
    return bytes(raw).ljust(size, b"\0")
