"""Builds the addresses of pages, and reads keys from them.

The address of a row is `/e/ENTITY/VALUE/…`, with one part for each column of the key. In a part, letters, digits, `_`,
`-` and inner dots stand for themselves. Every other byte of the UTF-8 text is written as `~` and two hexadecimal
digits, and a single `~` is the empty text. So a part never holds a slash, a percent sign or a `..`: browsers and
proxies would change these.
"""

import re
from urllib.parse import urlencode

import msgspec

from changelog.envelope.key import key_text

_PART = re.compile(r"~|(?:[A-Za-z0-9_.-]|~[0-9A-F]{2})+")
_ESCAPED = re.compile(rb"~([0-9A-F]{2})")
_NOT_PLAIN = re.compile(rb"[^A-Za-z0-9_.-]|^\.|\.$")

_texts = msgspec.json.Decoder(list[str])


def row_address(entity: str, key: str) -> str:
    """Returns the address of a row's page. `key` is the canonical text of the row's key."""
    return "/".join(["/e", entity, *map(_part, _columns(key))])


def key_of(path: str) -> str | None:
    """Returns the canonical text of the key in `path`, which is the part of a row's address after the entity.

    Returns None if `path` is not a key.
    """
    try:
        return key_text([_text(part) for part in path.split("/")])
    except ValueError:
        return None


def with_query(address: str, **values: str | int | None) -> str:
    """Returns an address with these values in its query. Values that are None or empty are left out."""
    query = urlencode({name: value for name, value in values.items() if value not in (None, "")})
    return f"{address}?{query}" if query else address


def _columns(key: str) -> list[str]:
    """Returns the texts of a key's columns.

    The text of a key with one column may look like the text of a key with several columns. Both have the same address,
    and `key_of` returns the same text for both.
    """
    try:
        texts = _texts.decode(key)
    except msgspec.MsgspecError:
        return [key]
    return texts if len(texts) > 1 and key_text(texts) == key else [key]


def _part(text: str) -> str:
    escaped = _NOT_PLAIN.sub(lambda match: b"~%02X" % match[0][0], text.encode())
    return escaped.decode() or "~"


def _text(part: str) -> str:
    if _PART.fullmatch(part) is None:
        raise ValueError("not a part of a key's address")
    if part == "~":
        return ""
    return _ESCAPED.sub(lambda match: bytes([int(match[1], 16)]), part.encode()).decode()
