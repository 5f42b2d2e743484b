"""Tests the middleware that gives each request of a WSGI or ASGI application a stamp. The tests need no database."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from wsgiref.util import FileWrapper, setup_testing_defaults
from wsgiref.validate import validator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog_stamps import Stamp, current
from changelog_stamps.web import AsgiStamps, WsgiStamps, request_identifier

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    ("request_id", "traceparent", "identifier"),
    [
        (" r-1 ", PARENT, "r-1"),
        ("order 7", None, "order 7"),
        (None, PARENT, TRACE),
        (None, f"cc-{TRACE}-b7ad6b7169203331-01-later", TRACE),
        (None, f"ff-{TRACE}-b7ad6b7169203331-01", None),
        (None, f"00-{'0' * 32}-b7ad6b7169203331-01", None),
        (None, f"00-{TRACE}-{'0' * 16}-01", None),
        (None, PARENT.upper(), None),
        ("", PARENT, TRACE),
        ("x" * 201, PARENT, TRACE),
        ("é", PARENT, TRACE),
        ("a\nb", None, None),
        (None, None, None),
    ],
)
def test_the_identifier_is_the_request_id_or_else_the_trace(
    request_id: str | None, traceparent: str | None, identifier: str | None
) -> None:
    assert request_identifier(request_id, traceparent) == identifier


@given(st.none() | st.text(), st.none() | st.text())
def test_no_header_raises_an_error(request_id: str | None, traceparent: str | None) -> None:
    request_identifier(request_id, traceparent)


def environ(**variables: Any) -> dict[str, Any]:
    values: dict[str, Any] = {"HTTP_X_REQUEST_ID": "r-1", "QUERY_STRING": "", **variables}
    setup_testing_defaults(values)
    return values


def call(site: Any, values: dict[str, Any]) -> list[bytes]:
    body = site(values, lambda *_: lambda _: None)
    try:
        return list(body)
    finally:
        if hasattr(body, "close"):
            body.close()


def test_the_parts_of_a_body_are_made_with_the_stamp_of_their_request() -> None:
    stamps: list[Stamp] = []

    def application(_: dict[str, Any], start_response: Callable[..., Any]) -> Iterator[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain")])
        stamps.append(current())
        try:
            yield b"a"
            stamps.append(current())
            yield b"b"
        finally:
            stamps.append(current())

    site = WsgiStamps(validator(application), service="shop", version="v2")
    checked = validator(site)
    assert call(checked, environ()) == [b"a", b"b"]
    assert stamps == [Stamp(service="shop", version="v2", identifier="r-1")] * 3
    assert current() == Stamp()


def test_a_body_that_is_ready_stays_as_it_is() -> None:
    file = FileWrapper(__import__("io").BytesIO(b"file"))
    bodies: list[Iterable[bytes]] = [[b"x"], (b"x",), file]
    for body in bodies:
        site = WsgiStamps(lambda *_, body=body: body, identifier_header="X-Job")
        assert site(environ(**{"wsgi.file_wrapper": FileWrapper}), lambda *_: None) is body


def test_another_header_can_have_the_identifier() -> None:
    identifiers: list[str] = []

    def application(*_: Any) -> list[bytes]:
        identifiers.append(current().identifier)
        return []

    call(WsgiStamps(application, identifier_header="X-Job"), environ(HTTP_X_JOB="nightly"))
    call(WsgiStamps(application, identifier_header="X-Job"), environ())
    assert identifiers == ["nightly", ""]


@pytest.mark.parametrize(("kind", "stamped"), [("http", True), ("websocket", True), ("lifespan", False)])
def test_asgi_requests_are_stamped(kind: str, stamped: bool) -> None:
    stamps: list[Stamp] = []

    async def application(*_: Any) -> None:
        await asyncio.sleep(0)
        stamps.append(current())

    async def unused(*_: Any) -> Any:
        raise AssertionError

    site = AsgiStamps(application, service="shop")
    scope = {"type": kind, "headers": [(b"traceparent", PARENT.encode()), (b"x-other", b"\xff")]}
    asyncio.run(site(scope, unused, unused))
    assert stamps == [Stamp(service="shop", identifier=TRACE) if stamped else Stamp()]
