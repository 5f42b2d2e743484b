"""JSON objects of any depth, taken apart without recursion: PostgreSQL nests json deeper than our decoder follows."""

import re

import msgspec

_TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[\]{},:]|[^\s"\[\]{},:]+', re.DOTALL)
_DEEPER, _HIGHER = (b"{", b"["), (b"}", b"]")


def members(text: bytes) -> dict[str, bytes]:
    """The members of a JSON object, each the text that it is.

    Raises ValueError where they cannot be told apart; what is inside of them is not looked at.
    """
    found: dict[str, bytes] = {}
    name: bytes | None = None
    depth = start = 0
    for token in _TOKENS.finditer(text):
        what = token[0]
        if depth == 1 and name is None and what.startswith(b'"'):
            name = what
        elif depth == 1 and what == b":":
            start = token.end()
        elif depth == 1 and name is not None and what in (b",", b"}"):
            found[msgspec.json.decode(name, type=str)] = text[start : token.start()].strip()
            name = None
        depth += (what in _DEEPER) - (what in _HIGHER)
    if depth or not text.lstrip().startswith(b"{"):
        raise ValueError("a text is no JSON object")
    return found
