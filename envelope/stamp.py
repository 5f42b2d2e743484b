"""Provenance stamps: what an application says about its own transaction."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

import msgspec
from msgspec import Raw

from envelope import canonical
from envelope.codec.json_codec import members
from envelope.errors import ChangelogError
from envelope.model import Stamp

PREFIX = "provenance"
"""The prefix of the logical messages that carry stamps."""

NBYTES_MAX = 4096
"""Of a stamp without its context."""

CONTEXT_NBYTES_MAX = 4096
"""Of a context, in UTF-8: every message of its transaction carries it."""

CONTEXT_LEVELS_MAX = 32
"""How deep a context may nest: many readers of JSON take 64 levels of a whole message."""

MESSAGE_NBYTES_MAX = 1 << 20
"""A longer message is no stamp, and is not looked at."""

NAME_CHARS_MAX = 40
"""What is told of the name of a member that is not known: anybody may have written it."""

_TEXTS = {"serviceName": "service_name", "apiVersion": "api_version", "identifier": "identifier"}
_CONTEXT = "context"
_NOT_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*+"|[^\[\]{}"]+')

_strings = msgspec.json.Decoder(str)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The stamp that a message's valid members make, None where they name no service; and what is wrong with others.

    `problem` is one line, None where nothing is.
    """

    stamp: Stamp | None
    problem: str | None = None


def parse(payload: bytes) -> Reading:
    """Reads a logical message's content.

    A stamp is a JSON object whose members are texts, `serviceName`, not empty, and perhaps `apiVersion` and
    `identifier`; and perhaps an object, `context`. It has at most `NBYTES_MAX` bytes, those of its context not counted.
    What an application leaves out, or says otherwise, stays empty: the default is for changes that nobody stamped, and
    must not complete a stamp.
    """
    if len(payload) > MESSAGE_NBYTES_MAX:
        return Reading(stamp=None, problem=f"it has more than {MESSAGE_NBYTES_MAX} bytes")
    try:
        payload.decode()
        said = members(payload)
    except (ValueError, RecursionError):
        return Reading(stamp=None, problem="it is no JSON object")
    if len(payload) - len(said.get(_CONTEXT, b"")) > NBYTES_MAX:
        return Reading(stamp=None, problem=f"it has more than {NBYTES_MAX} bytes")
    texts = {name: text for name in _TEXTS if (text := _text(said.get(name))) is not None}
    context = said[_CONTEXT].decode() if _CONTEXT in said else None
    wrong = None if context is None else context_problem(context)
    problem = "; ".join(_problems(said, texts, wrong)) or None
    if not texts.get("serviceName"):
        return Reading(stamp=None, problem=problem)
    fields = {field: texts.get(name, "") for name, field in _TEXTS.items()}
    return Reading(stamp=Stamp(**fields, context=None if wrong else context), problem=problem)


def content(stamp: Stamp) -> bytes:
    """A logical message's content that `parse` reads as this stamp. Raises ValueError, saying why, where none does."""
    said = {name: getattr(stamp, field) for name, field in _TEXTS.items()}
    if stamp.context is not None:
        said[_CONTEXT] = Raw(stamp.context)
    payload = msgspec.json.encode(said)
    reading = parse(payload)
    if reading.stamp != stamp:
        raise ValueError(reading.problem or "the context is not one JSON object alone")
    return payload


def context_problem(text: str) -> str | None:
    """Why `text` cannot be a stamp's context; None where it can."""
    if not text.startswith("{"):
        return "is no object"
    if len(text.encode(errors="surrogatepass")) > CONTEXT_NBYTES_MAX:
        return f"has more than {CONTEXT_NBYTES_MAX} bytes"
    brackets = _NOT_BRACKETS.sub("", text)
    if max(accumulate(1 if bracket in "[{" else -1 for bracket in brackets), default=0) > CONTEXT_LEVELS_MAX:
        return f"nests deeper than {CONTEXT_LEVELS_MAX} levels"
    try:
        canonical.parse(text)
    except ChangelogError:
        return "is no JSON"
    return None


def _text(token: bytes | None) -> str | None:
    try:
        return None if token is None else _strings.decode(token)
    except msgspec.DecodeError:
        return None


def _problems(said: Mapping[str, bytes], texts: Mapping[str, str], context: str | None) -> list[str]:
    problems = [f"{name} is no text" for name in _TEXTS if name in said and name not in texts]
    if not texts.get("serviceName") and "serviceName is no text" not in problems:
        problems.insert(0, "serviceName is missing or empty")
    if context is not None:
        problems.append(f"{_CONTEXT} {context}")
    return problems + [f"{name[:NAME_CHARS_MAX]} is not known" for name in said if name not in {*_TEXTS, _CONTEXT}]
