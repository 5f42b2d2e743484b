"""Defines a stamp, and the limits of its members.

A stamp within these limits is also within the limits of the service that reads it. Each member has a limit of its own.
So a long identifier is left out alone; the service would refuse the whole stamp.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from changelog_stamps.warned import warn

MEMBER_NBYTES_MAX = 1024
"""The most bytes that a service, a version or an identifier may have as JSON in ASCII."""

CONTEXT_NBYTES_MAX = 4096
"""The most bytes that a context may have as JSON in ASCII."""

CONTEXT_LEVELS_MAX = 32

_STRINGS = re.compile(r'"(?:[^"\\]|\\.)*"')


@dataclass(frozen=True)
class Stamp:
    """Says who makes changes. If `service` is empty, changes are not stamped. `context` is a JSON object as text, or
    None.
    """

    service: str = ""
    version: str = ""
    identifier: str = ""
    context: str | None = None

    @cached_property
    def text(self) -> str | None:
        """The stamp as JSON in ASCII, which is written into the database's log; None if the stamp names no service."""
        if not self.service:
            return None
        names = {"serviceName": self.service, "apiVersion": self.version, "identifier": self.identifier}
        members = [f'"{name}": {json.dumps(value)}' for name, value in names.items() if value]
        if self.context is not None:
            members.append(f'"context": {self.context}')
        return f"{{{', '.join(members)}}}"


def altered(
    stamp: Stamp,
    *,
    service: str | None = None,
    version: str | None = None,
    identifier: str | None = None,
    context: Mapping[str, Any] | None = None,
) -> Stamp:
    """Returns a copy of `stamp`. Those of the other arguments that are not None replace its members.

    If a value cannot be part of a stamp, its member is empty in the result. Each kind of problem is logged once in a
    process.
    """
    return Stamp(
        service=stamp.service if service is None else _member("service", service),
        version=stamp.version if version is None else _member("version", version),
        identifier=stamp.identifier if identifier is None else _member("identifier", identifier),
        context=stamp.context if context is None else _context(context),
    )


def _member(name: str, value: object) -> str:
    problem = None
    if not isinstance(value, str):
        problem = f"is of type {type(value).__name__}, not text"
    elif not _is_unicode(value):
        problem = "has half of a surrogate pair"
    elif len(json.dumps(value)) > MEMBER_NBYTES_MAX:
        problem = f"has more than {MEMBER_NBYTES_MAX} bytes"
    else:
        return str.__str__(value)  # a plain string, also if the value is of a subclass such as an enum
    warn(f"the {name} of a stamp {problem}; it is left out")
    return ""


def _context(value: object) -> str | None:
    text, problem = "", f"is of type {type(value).__name__}, not a mapping"
    if isinstance(value, Mapping):
        try:
            json.dumps(dict(value), ensure_ascii=False).encode()  # fails for half of a surrogate pair
            text = json.dumps(dict(value), allow_nan=False)
            problem = _context_problem(text)
        except Exception as error:  # noqa: BLE001 - an object of the application may raise anything
            problem = f"cannot be JSON ({type(error).__name__})"
    if not problem:
        return text
    warn(f"the context of a stamp {problem}; it is left out")
    return None


def _context_problem(text: str) -> str:
    """Returns why the JSON text of a mapping cannot be a context; an empty string if it can be one."""
    if len(text) > CONTEXT_NBYTES_MAX:
        return f"has more than {CONTEXT_NBYTES_MAX} bytes"
    level = deepest = 0
    for char in _STRINGS.sub("", text):
        level += (char in "[{") - (char in "]}")
        deepest = max(deepest, level)
    return f"nests deeper than {CONTEXT_LEVELS_MAX} levels" if deepest > CONTEXT_LEVELS_MAX else ""


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
