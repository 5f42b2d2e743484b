"""Checks whether a text can come from a built-in type's output function, under `text_to_json.SETTINGS`.

Types whose JSON value is simply the quoted and escaped text are not listed: any text is valid for them. Types whose
conversion already raises on invalid text (bytea, hstore, arrays, ranges) are not listed either.
"""

import json
import re
from collections.abc import Mapping
from typing import NoReturn


def is_printed(name: str, text: bytes) -> bool:
    """Returns whether the type with this name can print this text."""
    if name in _JSON:
        return _is_json(text)
    pattern = _PRINTED.get(name)
    return pattern is None or pattern.fullmatch(text) is not None


def _is_json(text: bytes) -> bool:
    """Returns whether the text is JSON.

    Uses the standard library, because its parser, like the server, accepts unpaired surrogates and numbers of any size.
    """
    try:
        json.loads(text.decode(), parse_int=str, parse_float=str, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return False
    return True


def _no_number(token: str) -> NoReturn:
    raise ValueError(token)


_JSON = frozenset({"json", "jsonb"})

_INTEGER = rb"-?(?:0|[1-9]\d*)"
_DAY = rb"\d{4,}-\d\d-\d\d"
_CLOCK = rb"\d\d:\d\d:\d\d(?:\.\d+)?"
_ENDLESS = rb"-?infinity"

# Each pattern is followed by the names of the types that print it. A pattern must not match a quote, a backslash or a
# control character, because the text is put between quotes in JSON without escaping.
_PRINTED: Mapping[str, re.Pattern[bytes]] = {
    name: re.compile(pattern)
    for pattern, names in (
        (rb"[tf]", "bool"),
        (_INTEGER, "int2 int4 int8"),
        (rb"\d+", "oid xid xid8 cid"),
        (rb"-?\d+(?:\.\d+)?(?:e[+-]\d+)?|NaN|-?Infinity", "float4 float8"),
        (rb"-?\d+(?:\.\d+)?|NaN|-?Infinity", "numeric"),
        (_DAY + rb"(?: BC)?|" + _ENDLESS, "date"),
        (_CLOCK, "time"),
        (_CLOCK + rb"[+-]\d\d(?::\d\d){0,2}", "timetz"),
        (_DAY + b" " + _CLOCK + rb"(?: BC)?|" + _ENDLESS, "timestamp"),
        (_DAY + b" " + _CLOCK + rb"\+00(?: BC)?|" + _ENDLESS, "timestamptz"),
        (rb"P[-\dYMDTHS.]+|" + _ENDLESS, "interval"),
        (rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", "uuid"),
        (rb"[01]*", "bit varbit"),
        (rb"[0-9a-f.:]+(?:/\d+)?", "inet cidr macaddr macaddr8"),
        (rb"[-+0-9.,()\[\]{}<>eINanfity]+", "point lseg box path polygon circle line"),
        (rb"[0-9A-F]+/[0-9A-F]+", "pg_lsn"),
        (rb"\d+:\d+:[\d,]*", "pg_snapshot txid_snapshot"),
        (rb"\(\d+,\d+\)", "tid"),
        (rb"[-\d ]*", "int2vector oidvector"),
    )
    for name in names.split()
}
