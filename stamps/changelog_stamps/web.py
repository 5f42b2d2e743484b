"""Defines middleware for WSGI and ASGI. It stamps the changes of a request with the service, its version, and the
identifier of the request.

This identifier is the value of the header that `identifier_header` names, by default `X-Request-ID`. If a request has
no such header, the identifier is the trace id in its header `traceparent` (https://www.w3.org/TR/trace-context/).
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Iterable, Iterator, MutableMapping
from contextvars import copy_context
from typing import Any, Callable

from changelog_stamps.current import begin, stamp

REQUEST_ID = "x-request-id"

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?")
_PRINTABLE = re.compile(r"[!-~](?:[ -~]{0,198}[!-~])?")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
AsgiApplication = Callable[[Scope, Receive, Send], Awaitable[None]]
WsgiApplication = Callable[..., Iterable[bytes]]


def request_identifier(request_id: str | None, traceparent: str | None) -> str | None:
    """Returns the identifier of a request. The arguments are the values of two headers; the result is None if neither
    can be used.

    Anybody can send such headers, so a request id is used only if it has at most 200 characters, all printable ASCII.
    """
    if request_id is not None and _PRINTABLE.fullmatch(request_id.strip()):
        return request_id.strip()
    trace = None if traceparent is None else _TRACEPARENT.fullmatch(traceparent.strip())
    return None if trace is None else trace[1]


class AsgiStamps:
    """ASGI middleware around `app`. `identifier_header` names the header with the identifier of a request."""

    def __init__(
        self,
        app: AsgiApplication,
        *,
        service: str | None = None,
        version: str | None = None,
        identifier_header: str = REQUEST_ID,
    ) -> None:
        self._app, self._service, self._version = app, service, version
        self._header = identifier_header.lower().encode("latin-1")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Runs the application for a request or a WebSocket connection. All its changes are stamped."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = {name.lower(): value.decode("latin-1") for name, value in scope.get("headers", ())}
        identifier = request_identifier(headers.get(self._header), headers.get(b"traceparent"))
        with stamp(service=self._service, version=self._version, identifier=identifier or ""):
            await self._app(scope, receive, send)


class WsgiStamps:
    """WSGI middleware around `app`. `identifier_header` names the header with the identifier of a request."""

    def __init__(
        self,
        app: WsgiApplication,
        *,
        service: str | None = None,
        version: str | None = None,
        identifier_header: str = REQUEST_ID,
    ) -> None:
        self._app, self._service, self._version = app, service, version
        self._variable = f"HTTP_{identifier_header.upper().replace('-', '_')}"

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Runs the application for a request, with a stamp. The stamp still applies when the server later asks for the
        parts of the body.
        """
        identifier = request_identifier(environ.get(self._variable), environ.get("HTTP_TRACEPARENT"))
        context = copy_context()  # later, the parts of the body are made in this context
        context.run(begin, service=self._service, version=self._version, identifier=identifier or "")
        body = context.run(self._app, environ, start_response)
        file_wrapper = environ.get("wsgi.file_wrapper")
        if isinstance(body, (list, tuple)) or (isinstance(file_wrapper, type) and isinstance(body, file_wrapper)):
            return body
        return _Body(body, context.run)


class _Body:
    """A response body whose parts are made in the context of its request."""

    def __init__(self, body: Iterable[bytes], run: Callable[..., Any]) -> None:
        self._body, self._run = body, run
        self._parts: Iterator[bytes] = run(iter, body)

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        part: bytes = self._run(next, self._parts)
        return part

    def close(self) -> None:
        """Closes the application's body, if that has a method `close`. WSGI servers close a body after they have sent
        it.
        """
        close = getattr(self._body, "close", None)
        if close is not None:
            self._run(close)
