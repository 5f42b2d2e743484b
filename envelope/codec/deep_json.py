"""Splits JSON objects of any depth, without recursion: PostgreSQL allows deeper nesting than msgspec's decoder does."""

import re

import msgspec

_TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[\]{},:]|[^\s"\[\]{},:]+', re.DOTALL)
_DEEPER, _HIGHER = (b"{", b"["), (b"}", b"]")


def members(text: bytes) -> dict[str, bytes]:
    """Returns the members of a JSON object, each as a slice of `text`.

    Raises ValueError if the members cannot be separated. Does not check that the values are JSON.
    """
    values: dict[str, bytes] = {}
    name: bytes | None = None
    depth = start = 0
    for token in _TOKENS.finditer(text):
        content = token[0]
        if depth == 1 and name is None and content.startswith(b'"'):
            name = content
        elif depth == 1 and content == b":":
            start = token.end()
        elif depth == 1 and name is not None and content in (b",", b"}"):
            values[msgspec.json.decode(name, type=str)] = text[start : token.start()].strip()
            name = None
        depth += (content in _DEEPER) - (content in _HIGHER)
    if depth or not text.lstrip().startswith(b"{"):
        raise ValueError("a text is not a JSON object")
    return values
