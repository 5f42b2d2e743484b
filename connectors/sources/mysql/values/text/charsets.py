"""Converts text from the character set of a column to UTF-8, as the server does for a session that reads UTF-8.

The converters of character sets are pure functions of bytes. They return valid UTF-8, and raise ChangelogError
(MALFORMED) for bytes that no column with the character set can hold. Where a character has no counterpart in Unicode,
they return `?`, like the server.
"""

import codecs
import functools
import re
from collections.abc import Callable, Iterator, Mapping

from changelog.connectors.sources.mysql.values.strings import ToUtf8
from changelog.connectors.sources.mysql.values.text.charset_tables import MULTI_BYTE, SINGLE_BYTE, Differences
from changelog.connectors.sources.mysql.values.text.collations import charset_name
from changelog.envelope.errors import ChangelogError, Kind

_NONE = "?"
_ABOVE_UCS2 = re.compile("[\U00010000-\U0010ffff]")
_FIRST_TRAIL, _LAST_TRAIL = 0xA1, 0xFE  # the limits of a character's last byte, in sets with 94 characters a row
_FIRST_TRAIL_BYTE = bytes([_FIRST_TRAIL])
_HALF_WIDTH, _THIRD_SET = 0x8E, 0x8F


def to_utf8(collation: int | None, charsets: Mapping[int, str]) -> ToUtf8:
    """Returns the converter of texts with this collation.

    `charsets` maps the ids of collations to the names of their character sets, as the server lists them; built-in
    collations may be missing. Raises ChangelogError (PRECONDITION) if the character set is not known.
    """
    name = None if collation is None else charset_name(collation, charsets)
    converter = None if name is None else _converter(name)
    if converter is None:
        raise ChangelogError(
            Kind.PRECONDITION,
            f"the collation {collation} has the character set {name}, which is not supported",
            hint="convert the column to utf8mb4, or leave it out of the entity",
        )
    return converter


def clean(text: bytes) -> bytes:
    """Returns a text in the server's UTF-8 as valid UTF-8, with `?` for each half of a surrogate pair.

    MariaDB accepts such halves in columns with any of its Unicode character sets, and MySQL accepts them in columns
    with ucs2 and utf32. Both servers then print these halves in the results of queries.
    """
    try:
        text.decode()
    except UnicodeDecodeError:
        return _unicode("utf-8")(text)
    return text


@functools.cache
def _converter(name: str) -> ToUtf8 | None:
    if name in SINGLE_BYTE:
        return _single_byte(SINGLE_BYTE[name])
    if name in MULTI_BYTE:
        return _multi_byte(MULTI_BYTE[name], _SIZES[name])
    return _UNICODE.get(name)


def _single_byte(differences: Differences) -> ToUtf8:
    table = [bytes([code]).decode(differences.codec, "replace").replace("\ufffd", _NONE) for code in range(256)]
    for start, run in differences.runs.items():
        table[start[0] : start[0] + len(run)] = run
    mapping = "".join(table)
    return lambda text: codecs.charmap_decode(text, "strict", mapping)[0].encode()


def _multi_byte(differences: Differences, size: Callable[[bytes], int]) -> ToUtf8:
    characters = dict(_expanded(differences.runs))
    misread = [code for code in characters if _decoded(code, differences.codec) is not None]

    def convert(text: bytes) -> bytes:
        if text.isascii():
            return text
        if not any(code in text for code in misread):
            decoded = _decoded(text, differences.codec)
            if decoded is not None:
                return decoded.encode()
        return "".join(
            characters.get(code) or _decoded(code, differences.codec) or _NONE for code in _split(text, size)
        ).encode()

    return convert


def _decoded(text: bytes, codec: str) -> str | None:
    try:
        return text.decode(codec)
    except UnicodeDecodeError:
        return None


def _split(text: bytes, size: Callable[[bytes], int]) -> Iterator[bytes]:
    """Yields the bytes of each character. `size` returns the size of the character that begins with two given bytes."""
    at = 0
    while at < len(text):
        end = at + size(text[at : at + 2])
        yield text[at:end]
        at = end


def _expanded(runs: Mapping[bytes, str]) -> Iterator[tuple[bytes, str]]:
    """Yields the bytes of each character in the runs, and the character to which the servers convert it.

    In sets with 94 characters a row, the last byte of a character goes from A1 to FE.
    """
    for start, run in runs.items():
        code = bytearray(start)
        for character in run:
            yield bytes(code), character
            if code[-1] == _LAST_TRAIL:
                code[-2:] = code[-2] + 1, _FIRST_TRAIL
            else:
                code[-1] += 1


def _two_bytes(code: bytes) -> int:
    return 2 if code[0] > 0x80 else 1


def _shifted(code: bytes) -> int:
    """Returns the size of a character in Shift-JIS, where half-width katakana have one byte."""
    return 1 if code[0] <= 0x80 or 0xA0 <= code[0] < 0xE0 else 2


def _extended(code: bytes) -> int:
    """Returns the size of a character in Japanese EUC: 8E begins a half-width katakana, and 8F a character of three
    bytes.
    """
    if code[0] == _HALF_WIDTH:
        return 2 if code[1:] >= _FIRST_TRAIL_BYTE else 1
    return 3 if code[0] == _THIRD_SET else 2 if code >= _FIRST_TRAIL_BYTE else 1


def _four_bytes(code: bytes) -> int:
    """Returns the size of a character in GB 18030: it is four bytes if the second byte is a digit."""
    return 4 if code[0] > 0x80 and code[1:].isdigit() else _two_bytes(code)


_SIZES: Mapping[str, Callable[[bytes], int]] = {
    "big5": _two_bytes,
    "cp932": _shifted,
    "eucjpms": _extended,
    "euckr": _two_bytes,
    "gb18030": _four_bytes,
    "gb2312": _two_bytes,
    "gbk": _two_bytes,
    "sjis": _shifted,
    "ujis": _extended,
}
"""How many bytes a character has, by its first two bytes."""


def _unicode(codec: str) -> ToUtf8:
    """Returns a converter from an encoding of Unicode. The converter writes `?` for each half of a surrogate pair."""

    def convert(text: bytes) -> bytes:
        return _from_unicode(text, codec).encode("utf-8", "replace")

    return convert


def _ucs2(text: bytes) -> bytes:
    """Converts from UCS-2, which has no surrogate pairs: what would be a pair in UTF-16 is two characters that Unicode
    lacks.
    """
    return _ABOVE_UCS2.sub(_NONE * 2, _from_unicode(text, "utf-16-be")).encode("utf-8", "replace")


def _from_unicode(text: bytes, codec: str) -> str:
    try:
        return text.decode(codec, "surrogatepass")
    except UnicodeDecodeError as error:
        raise ChangelogError(Kind.MALFORMED, f"a text is not valid {codec} at byte {error.start}") from None


_UNICODE: Mapping[str, ToUtf8] = {
    "binary": clean,  # the labels of an enumeration can have this character set
    "ucs2": _ucs2,
    "utf16": _unicode("utf-16-be"),
    "utf16le": _unicode("utf-16-le"),
    "utf32": _unicode("utf-32-be"),
    "utf8": clean,
    "utf8mb3": clean,
    "utf8mb4": clean,
}
