"""Keeps the stamp of the running code in a context variable, so that threads and tasks have stamps of their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar, Token
from typing import Any

from changelog_stamps.members import Stamp, altered

_NOBODY = Stamp()
_current: ContextVar[Stamp] = ContextVar("changelog_stamp")


def current() -> Stamp:
    """Returns the stamp of the innermost block `with stamp(…)`. Outside of such blocks, it has no service."""
    return _current.get(_NOBODY)


def begin(
    *,
    service: str | None = None,
    version: str | None = None,
    identifier: str | None = None,
    context: Mapping[str, Any] | None = None,
) -> Token[Stamp]:
    """Makes a stamp, and makes it the current stamp for the rest of the caller's context (`contextvars`)."""
    return _current.set(altered(current(), service=service, version=version, identifier=identifier, context=context))


@contextmanager
def stamp(
    *,
    service: str | None = None,
    version: str | None = None,
    identifier: str | None = None,
    context: Mapping[str, Any] | None = None,
) -> Iterator[Stamp]:
    """Stamps the changes that the block makes through an adapter.

    `service` and `version` are those of the application; `identifier` is the request, job or ticket for which people
    would search. `context` is a mapping with anything else that readers of the changelog should know; it becomes JSON,
    and every reader can see it. If an argument is None, the stamp has the value that it has in the surrounding block.
    """
    token = begin(service=service, version=version, identifier=identifier, context=context)
    try:
        yield current()
    finally:
        with suppress(ValueError):  # a framework may leave the block in another context, where the stamp was not set
            _current.reset(token)
