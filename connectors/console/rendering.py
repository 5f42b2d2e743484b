"""Turns pages into answers: HTML from the templates, or the same data as JSON."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import HTTPConnection
from starlette.responses import Response

from changelog.connectors import show
from changelog.connectors.console import addresses, changes, values
from changelog.connectors.terminal import safe

TEMPLATES = Path(__file__).parent / "templates"

NAME_CHARS = 120
"""A page shows at most this many characters of a key, a service or an identifier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page: its `template`, its `title`, and its `data`. The template shows `data` as HTML; a request for JSON gets
    `data` itself.
    """

    template: str
    title: str
    data: Mapping[str, Any] = field(default_factory=dict)
    status: HTTPStatus = HTTPStatus.OK


@dataclass(frozen=True, slots=True, kw_only=True)
class Redirect:
    """An answer that sends the browser to another address of the console."""

    address: str


def problem(status: HTTPStatus, sentence: str, hint: str | None = None) -> Page:
    """Returns the page of an error: what is wrong, and what to do."""
    data = {"status": int(status), "error": sentence, "hint": hint}
    return Page(template="problem.html", title=status.phrase, data=data, status=status)


def respond(request: HTTPConnection, page: Page, site: str) -> Response:
    """Returns the answer with this page, in the form that the request accepts. `site` is the name of the service."""
    headers = {"vary": "accept"}
    if wants_json(request):
        content = msgspec.json.encode(page.data)
        return Response(content, page.status, headers, media_type="application/json")
    template = _environment().get_template(page.template)
    html = template.render(page.data, title=page.title, site=site, path=request.scope["path"])
    return Response(html, page.status, headers, media_type="text/html")


def fragment(template: str, data: Mapping[str, Any]) -> str:
    """Returns a part of a page as HTML."""
    return _environment().get_template(template).render(data)


def wants_json(request: HTTPConnection) -> bool:
    """Returns whether the request asks for JSON rather than for a page."""
    accept = request.headers.get("accept", "")
    return "application/json" in accept and "text/html" not in accept


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        finalize=_harmless,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.globals.update(
        {
            "anchor": changes.anchor,
            "parts": values.parts,
            "row_address": addresses.row_address,
            "with_query": addresses.with_query,
        }
    )
    environment.filters.update(
        {"moment": show.moment, "size": show.size, "span": _span, "count": _count, "short": _short}
    )
    return environment


def _harmless(content: Any) -> Any:
    """Escapes invisible characters, and those that change the reading direction, in what a template inserts."""
    return safe(content) if isinstance(content, str) and not isinstance(content, Markup) else content


def _span(seconds: float) -> str:
    return show.duration(timedelta(seconds=seconds))


def _short(text: str) -> str:
    """Returns a text that is not too long for a heading or a line of a list."""
    return text if len(text) <= NAME_CHARS else f"{text[:NAME_CHARS]}…"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
