"""Provenance stamps: what an application says about its own transaction."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from envelope.model import Stamp

PREFIX = "provenance"
"""The prefix of the logical messages that carry stamps."""

NBYTES_MAX = 4096

NAME_CHARS_MAX = 40
"""What is told of the name of a member that is not known: anybody may have written it."""

_MEMBERS = {"serviceName": "service_name", "apiVersion": "api_version", "identifier": "identifier"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The stamp that a message's valid members make, None where they name no service; and what is wrong with others.

    `problem` is one line, None where nothing is.
    """

    stamp: Stamp | None
    problem: str | None = None


def parse(payload: bytes) -> Reading:
    """Reads a logical message's content.

    A stamp is a JSON object of at most `NBYTES_MAX` bytes whose members are texts: `serviceName`, not empty, and
    perhaps `apiVersion` and `identifier`. What an application leaves out, or says otherwise than as a text, stays
    empty: the default is for changes that nobody stamped, and must not complete a stamp.
    """
    if len(payload) > NBYTES_MAX:
        return Reading(stamp=None, problem=f"it has more than {NBYTES_MAX} bytes")
    try:
        said = msgspec.json.decode(payload, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Reading(stamp=None, problem="it is no JSON object")
    texts = {name: said[name] for name in _MEMBERS if isinstance(said.get(name), str)}
    problem = "; ".join(_problems(said, texts)) or None
    if not texts.get("serviceName"):
        return Reading(stamp=None, problem=problem)
    fields = {field: texts.get(name, "") for name, field in _MEMBERS.items()}
    return Reading(stamp=Stamp(**fields), problem=problem)


def _problems(said: Mapping[str, Any], texts: Mapping[str, str]) -> list[str]:
    problems = [f"{name} is no text" for name in _MEMBERS if name in said and name not in texts]
    if not texts.get("serviceName") and "serviceName is no text" not in problems:
        problems.insert(0, "serviceName is missing or empty")
    return problems + [f"{name[:NAME_CHARS_MAX]} is not known" for name in said if name not in _MEMBERS]
