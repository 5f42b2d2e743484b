"""Reads the address of a request: which key or range of keys it asks for, and how new the states have to be."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import unquote

import msgspec

from changelog.connectors.views.http.answers import RefusalError
from changelog.connectors.views.served import Completeness
from changelog.envelope.key import key_text
from changelog.envelope.position import Position

LIMIT, LIMIT_MAX = 100, 1000
"""How many rows a page has by default, and at most."""

STALE = "stale"
FRESHNESS = ("min_position", "max_lag", STALE)
RANGE = ("prefix", "from", "to", "after", "limit")
REPEATED = frozenset({"prefix", "from", "to"})
"""The parameters that a request may give several times: once for each column of the key."""

_LSN = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")
_SPAN = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m)?")
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, None: 1.0}

Parameters = Mapping[str, Sequence[str]]
"""The values of each parameter of a request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Freshness:
    """How new states have to be. A field that is None requires nothing.

    `commit` is a place in the database's log, such as an LSN. Unlike a position, such a place does not name an epoch of
    the database. So it is compared with the `commit` of the position reached, whatever the epoch of that position.
    With `allows_stale`, a standby (another instance that keeps a copy of the rows) may answer if the instance that
    serves them does not. The copy can be older, and the other fields apply to it, too.
    """

    position: Position | None = None
    commit: int | None = None
    max_lag_s: float | None = None
    allows_stale: bool = False

    def shortfall(self, reached: Completeness, staleness_s: float | None) -> str | None:
        """Returns why states are not new enough, in words that follow "the changelog"; None if they are new enough."""
        at = reached.position
        end = f"it is complete up to {at or 'an unknown position'}"
        if self.position is not None and (at is None or at < self.position):
            return f"has not reached {self.position}: {end}"
        if self.commit is not None and (at is None or at.commit < self.commit):
            return f"has not reached this place in the database's log: {end}"
        if self.max_lag_s is None:
            return None
        if staleness_s is None:
            return "does not say when it was last written, so max_lag cannot be checked"
        if staleness_s > self.max_lag_s:
            return f"was last written {staleness_s:.1f} s ago, which is more than the max_lag of {self.max_lag_s:g} s"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedKeys:
    """The range of keys that a request asks for. A key is in the range if it is `begin` or later, is before `to`, and
    begins with `prefix`. The key `after` itself is left out. A page has at most `limit` rows.
    """

    begin: str = ""
    prefix: str = ""
    to: str | None = None
    after: str | None = None
    limit: int = LIMIT

    def is_past(self, key: str) -> bool:
        """Returns whether a key is past the range. The key must not be before `begin`."""
        return not key.startswith(self.prefix) or (self.to is not None and key >= self.to)


def refuse_unknown(parameters: Parameters, known_names: Collection[str]) -> None:
    """Raises RefusalError if a parameter is unknown, or is given more often than it may be."""
    for name, values in parameters.items():
        if name not in known_names:
            raise _bad(f"the parameter {name} is not known", f"known here: {', '.join(known_names)}")
        if len(values) > 1 and name not in REPEATED:
            raise _bad(f"the parameter {name} is given {len(values)} times", "give it once")


def freshness(parameters: Parameters, *, max_lag_s: float | None) -> Freshness:
    """Returns how new states have to be. `max_lag_s` applies if there is no parameter `max_lag`. Raises RefusalError if
    a value is bad.
    """
    position, commit = _position(parameters["min_position"][0]) if "min_position" in parameters else (None, None)
    if "max_lag" in parameters:
        max_lag_s = _span(parameters["max_lag"][0])
    if parameters.get(STALE, ["allowed"]) != ["allowed"]:
        raise _bad("the value of stale is not 'allowed'", "write ?stale=allowed, or leave it out")
    return Freshness(position=position, commit=commit, max_lag_s=max_lag_s, allows_stale=STALE in parameters)


def key_of(path: bytes, columns: Sequence[str]) -> str:
    """Returns the canonical text of the key in an address.

    `path` is the part of the address after the view: the key's values, with slashes between them. It is still
    percent-encoded, so a slash inside a value is `%2F`. `columns` are the columns of the key, none if they are unknown.
    Raises RefusalError if the path is not UTF-8, or has more or fewer values than the key.
    """
    try:
        values = [unquote(part, errors="strict") for part in path.decode("ascii").split("/")]
    except UnicodeDecodeError:
        raise _bad("the key is not UTF-8", "write characters that are not ASCII as %XX") from None
    _refuse_count(values, columns, exact=True)
    return key_text(values)


def key_range(parameters: Parameters, columns: Sequence[str]) -> AskedKeys:
    """Returns the range of keys that a request asks for. Raises RefusalError if the value of a parameter is bad."""
    begins = [""]
    prefix, to = "", None
    if "prefix" in parameters:
        prefix = _beginning(parameters["prefix"], columns, is_open=True)
        begins.append(prefix)
    if "from" in parameters:
        begins.append(_beginning(parameters["from"], columns))
    if "to" in parameters:
        to = _beginning(parameters["to"], columns)
    after = parameters["after"][0] if "after" in parameters else None
    limit = _limit(parameters["limit"][0]) if "limit" in parameters else LIMIT
    return AskedKeys(begin=max(*begins, after or ""), prefix=prefix, to=to, after=after, limit=limit)


def _beginning(values: Sequence[str], columns: Sequence[str], *, is_open: bool = False) -> str:
    """Returns the text with which a key begins if its first columns have these values.

    If `is_open`, the last of these columns may also have a longer value that begins with the given one. A key of
    several columns is a JSON array of strings, so the text is the beginning of such an array.
    """
    _refuse_count(values, columns, exact=False)
    if len(values) == 1 and len(columns) < 2:
        return values[0]
    array = msgspec.json.encode(values).decode()
    return array[:-2] if is_open else array[:-1]


def _refuse_count(values: Sequence[str], columns: Sequence[str], *, exact: bool) -> None:
    count = len(columns)
    if columns and (len(values) > count or (exact and len(values) < count)):
        noun = "column" if count == 1 else "columns"
        hint = f"give the {'value' if count == 1 else 'values'} of {', '.join(columns)}"
        raise _bad(f"the key has {count} {noun}, not {len(values)}", f"{hint}{', in this order' if count > 1 else ''}")


def _limit(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 9 and 1 <= int(text) <= LIMIT_MAX):
        raise _bad("limit is not a number of rows", f"give 1 to {LIMIT_MAX}")
    return int(text)


def _position(text: str) -> tuple[Position | None, int | None]:
    """Returns a position and None. If the text is an LSN of PostgreSQL, such as `0/1781838`, returns None and the
    commit.
    """
    if match := _LSN.fullmatch(text):
        return None, int(match[1], 16) << 32 | int(match[2], 16)
    try:
        return Position.parse(text), None
    except ValueError:
        hint = "give the X-Position of an answer, such as 00000001/0000000001781838/00000006, or an LSN of PostgreSQL"
        raise _bad("min_position is not a position", hint) from None


def _span(text: str) -> float:
    match = _SPAN.fullmatch(text)
    if match is None:
        raise _bad("max_lag is not a time span", "give seconds, as in 2s, 500ms or 1m")
    return float(match[1]) * _UNITS_S[match[2]]


def _bad(message: str, hint: str) -> RefusalError:
    return RefusalError(HTTPStatus.BAD_REQUEST, message, hint)
