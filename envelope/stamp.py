"""Reads and writes provenance stamps, by which an application says who makes the changes of its transaction."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate

import msgspec
from msgspec import Raw

from changelog.envelope import canonical
from changelog.envelope.codec.json_codec import members
from changelog.envelope.errors import ChangelogError
from changelog.envelope.model import Stamp

PREFIX = "provenance"
"""The prefix of the logical messages that carry stamps."""

SESSION_PREFIX = "provenance-session"
"""The prefix of messages with session stamps. An application passes its stamp to the database's trigger in a setting.
If this setting is empty or too long, the trigger makes a stamp from the session, and writes it with this prefix. (But
if the trigger's last message in the transaction had the application's stamp, the trigger uses `PREFIX`, so that the
session stamp replaces the application's.)

A stamp with this prefix never replaces a stamp with the prefix `PREFIX`. This matters if an application itself writes a
message with the prefix `PREFIX`: the trigger does not see that message, so it may write a session stamp after it.
"""

NBYTES_MAX = 4096
"""The most bytes of a stamp, without its context."""

CONTEXT_NBYTES_MAX = 4096
"""The most UTF-8 bytes of a context. The limit is small because every message of the transaction carries the
context."""

CONTEXT_LEVELS_MAX = 32
"""The most levels to which a context may nest. Many JSON readers accept no more than 64 levels in a whole message."""

MESSAGE_NBYTES_MAX = 1 << 20
"""The most bytes of a message that carries a stamp. A longer message is rejected without being parsed."""

NAME_CHARS_MAX = 40
"""How many characters of an unknown member's name a warning shows. Longer names are cut, because a stamp comes from
outside, and its names can have any length."""

SESSION_CONTEXT = "session"
"""The member of the context that marks a stamp of the database's trigger. The trigger makes a stamp from the session if
the application gave it none, or one that is too long.

The member is an object. Its members are `user`, the role of the database session, and `application`, the application
name of the session.
"""

UNKNOWN_SERVICE = "unknown"
"""The service name in the default stamp, unless the configuration sets another one."""

_TEXTS = {"serviceName": "service_name", "apiVersion": "api_version", "identifier": "identifier"}
_CONTEXT = "context"
_NOT_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*+"|[^\[\]{}"]+')

_strings = msgspec.json.Decoder(str)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedStamp:
    """The result of `parse`.

    `stamp` has the valid members of the message; it is None if the message has no valid `serviceName`. `problem` says
    in one line what is wrong with the message; it is None if nothing is wrong.
    """

    stamp: Stamp | None
    problem: str | None = None


def parse(payload: bytes) -> ParsedStamp:
    """Reads a stamp from a logical message's content.

    A stamp is a JSON object of at most `NBYTES_MAX` bytes, not counting its context. The member `serviceName` is a
    string that is not empty. The members `apiVersion` and `identifier` (strings) and `context` (an object) are
    optional. If one of these is missing or invalid, it is empty in the result: it is not taken from the configured
    default stamp, which is only for changes without a stamp.
    """
    usual = _usual_stamp(payload)
    return parse_any(payload) if usual is None else ParsedStamp(stamp=usual)


def parse_any(payload: bytes) -> ParsedStamp:
    """Does the same as `parse`, but more slowly. `parse` calls it for stamps that `_usual_stamp` cannot read."""
    if len(payload) > MESSAGE_NBYTES_MAX:
        return ParsedStamp(stamp=None, problem=f"it has more than {MESSAGE_NBYTES_MAX} bytes")
    try:
        payload.decode()
        tokens = members(payload)
    except (ValueError, RecursionError):
        return ParsedStamp(stamp=None, problem="it is not a JSON object")
    if len(payload) - len(tokens.get(_CONTEXT, b"")) > NBYTES_MAX:
        return ParsedStamp(stamp=None, problem=f"it has more than {NBYTES_MAX} bytes")
    texts = {name: text for name in _TEXTS if (text := _text(tokens.get(name))) is not None}
    context = tokens[_CONTEXT].decode() if _CONTEXT in tokens else None
    invalid_context = None if context is None else context_problem(context)
    problem = "; ".join(_problems(tokens, texts, invalid_context)) or None
    if not texts.get("serviceName"):
        return ParsedStamp(stamp=None, problem=problem)
    fields = {field: texts.get(name, "") for name, field in _TEXTS.items()}
    return ParsedStamp(stamp=Stamp(**fields, context=None if invalid_context else context), problem=problem)


class _UsualStamp(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """A stamp that has a service and no context, and in which `parse` finds nothing wrong."""

    service_name: str
    api_version: str = ""
    identifier: str = ""


_usual_stamps = msgspec.json.Decoder(_UsualStamp)


def _usual_stamp(payload: bytes) -> Stamp | None:
    """Reads a usual stamp, faster than `parse_any` does. Returns None if the stamp is not a usual one."""
    if len(payload) > NBYTES_MAX:
        return None
    try:
        usual = _usual_stamps.decode(payload)
    except (ValueError, RecursionError):
        return None
    if not usual.service_name:
        return None
    return Stamp(api_version=usual.api_version, service_name=usual.service_name, identifier=usual.identifier)


class StampKind(StrEnum):
    """Who stamped a change: the application, or the database's trigger (from the session), or nobody."""

    APPLICATION = "application"
    SESSION = "session"
    NONE = "none"


def kind_of(stamp: Stamp, default: Stamp | None = None) -> StampKind:
    """Returns who stamped a change that was published with this stamp.

    `default` is the stamp that the configuration gives to changes without a stamp. Such a change is recognised by the
    service name of the default stamp, so no application should use this name. If `default` is None, the name is
    `UNKNOWN_SERVICE`.
    """
    if stamp.context is not None and _of_session(stamp.context):
        return StampKind.SESSION
    default_service = UNKNOWN_SERVICE if default is None else default.service_name
    return StampKind.NONE if stamp.service_name == default_service else StampKind.APPLICATION


def _of_session(context: str) -> bool:
    may_have_it = SESSION_CONTEXT in context or "\\" in context  # most contexts need not be parsed
    if not may_have_it:
        return False
    try:
        return SESSION_CONTEXT in canonical.parse(context)
    except ChangelogError:  # it is not JSON, so the trigger did not write it
        return False


def content(stamp: Stamp) -> bytes:
    """Returns the content of a message from which `parse` reads this stamp.

    If the stamp breaks a rule, `parse` could not read it back. Then this raises ValueError, with the reason.
    """
    fields = {name: getattr(stamp, field) for name, field in _TEXTS.items()}
    if stamp.context is not None:
        fields[_CONTEXT] = Raw(stamp.context)
    payload = msgspec.json.encode(fields)
    result = parse(payload)
    if result.stamp != stamp:
        raise ValueError(result.problem or "the context is not exactly one JSON object")
    return payload


def context_problem(text: str) -> str | None:
    """Returns why `text` cannot be a stamp's context; None if it can. The reason completes a sentence that begins with
    "context".
    """
    if not text.startswith("{"):
        return "is not an object"
    if len(text.encode(errors="surrogatepass")) > CONTEXT_NBYTES_MAX:
        return f"has more than {CONTEXT_NBYTES_MAX} bytes"
    brackets = _NOT_BRACKETS.sub("", text)
    if max(accumulate(1 if bracket in "[{" else -1 for bracket in brackets), default=0) > CONTEXT_LEVELS_MAX:
        return f"nests deeper than {CONTEXT_LEVELS_MAX} levels"
    try:
        canonical.parse(text)
    except ChangelogError:
        return "is not JSON"
    return None


def _text(token: bytes | None) -> str | None:
    try:
        return None if token is None else _strings.decode(token)
    except msgspec.DecodeError:
        return None


def _problems(written: Mapping[str, bytes], texts: Mapping[str, str], context: str | None) -> list[str]:
    problems = [f"{name} is not a string" for name in _TEXTS if name in written and name not in texts]
    if not texts.get("serviceName") and "serviceName is not a string" not in problems:
        problems.insert(0, "serviceName is missing or empty")
    if context is not None:
        problems.append(f"{_CONTEXT} {context}")
    unknown = [name for name in written if name not in {*_TEXTS, _CONTEXT}]
    return problems + [f"{name[:NAME_CHARS_MAX]} is not a known member" for name in unknown]
