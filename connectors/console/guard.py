"""Checks each request before a page: refuses requests that must not reach a page, and adds headers to the answers.

A request passes these checks, in this order: the host is ours, no other site's script sent it, the method only reads,
the address is short, the client sends few requests, few requests are being answered, and the client may see the pages.
"""

import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from http import HTTPStatus

import structlog
from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from changelog.connectors.console.access import Access, has_token
from changelog.connectors.console.hosts import Hosts
from changelog.connectors.console.limits import Rate, Room

TARGET_BYTES_MAX = 16 * 1024
"""The most bytes of the path and the query of a request."""

LOGIN = "/login"
STATIC = "/static/"
LIVE = "/tail/events"

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
"""The headers of every answer. The first one allows no script and no style inside a page, only our own files."""

Refuse = Callable[[HTTPConnection, HTTPStatus, str], Response]
"""Makes the answer to a request that is refused, from the request, the status and a sentence for a person."""

_Refusal = tuple[HTTPStatus, str, dict[str, str]]
"""Why a request is refused: the status, a sentence for a person, and headers for the answer."""

_TOO_MANY: _Refusal = (
    HTTPStatus.TOO_MANY_REQUESTS,
    "Too many requests; wait a minute, and try again.",
    {"retry-after": "60"},
)

_log = structlog.get_logger("console")


class Guard:
    """Wraps the application `app`.

    `refuse` makes the pages of refusals. `requests` limits how often a client may send requests, and `logins` how often
    it may try a token. `room` limits how many requests are answered at the same time. `live_room` does this for live
    views, whose answers do not end.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        access: Access,
        hosts: Hosts,
        refuse: Refuse,
        requests: Rate,
        logins: Rate,
        room: Room,
        live_room: Room,
        logs_requests: bool,
    ) -> None:
        self._app, self._access, self._hosts, self._refuse = app, access, hosts, refuse
        self._requests, self._logins, self._room, self._live_room = requests, logins, room, live_room
        self._logs_requests = logs_requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began_s, answer = time.monotonic(), _Answer(send)
        try:
            await self._answer(HTTPConnection(scope), receive, answer)
        except Exception as error:  # noqa: BLE001, a bug of ours; its message and traceback may hold row values
            _log.error("internal error", error=type(error).__name__, page=_page(scope))
            if not answer.status:
                await self._refuse(HTTPConnection(scope), *bug(error))(scope, receive, answer)
        finally:
            millis = round((time.monotonic() - began_s) * 1000)
            if self._logs_requests:
                _log.info("request", method=scope["method"], page=_page(scope), status=int(answer.status), ms=millis)

    async def _answer(self, request: HTTPConnection, receive: Receive, send: Send) -> None:
        with ExitStack() as places:
            refusal = self._refusal(request, places)
            if refusal is None:
                await self._app(request.scope, receive, send)
                return
            status, sentence, headers = refusal
            response = self._refuse(request, status, sentence)
            response.headers.update(headers)
            await response(request.scope, receive, send)

    def _refusal(self, request: HTTPConnection, places: ExitStack) -> _Refusal | None:
        """Returns why the request is refused, with headers for the answer; None if it may pass.

        A request that passes takes a place, which it leaves when `places` is closed.
        """
        scope, headers = request.scope, request.headers
        local = scope.get("server")
        if not self._hosts.knows(headers.get("host", ""), local[0] if local else None):
            return HTTPStatus.MISDIRECTED_REQUEST, f"This address is not a name of the console. {_NAMES}", {}
        if headers.get("sec-fetch-site") == "cross-site" and headers.get("sec-fetch-mode") != "navigate":
            return HTTPStatus.FORBIDDEN, "Scripts of other sites may not read the console.", {}
        path, method = scope["path"], scope["method"]
        methods = ("GET", "HEAD", "POST") if path == LOGIN else ("GET", "HEAD")
        if method not in methods:
            return HTTPStatus.METHOD_NOT_ALLOWED, "The console only reads.", {"allow": ", ".join(methods)}
        if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > TARGET_BYTES_MAX:
            return HTTPStatus.REQUEST_URI_TOO_LONG, "The address is too long.", {}
        client = request.client.host if request.client else ""
        if not self._requests.allows(client) or (method == "POST" and not self._logins.allows(client)):
            return _TOO_MANY
        room = self._live_room if path == LIVE else self._room
        if not places.enter_context(room.place()):
            sentence = "Too many requests are being answered now; try again in a moment."
            return HTTPStatus.SERVICE_UNAVAILABLE, sentence, {"retry-after": "2"}
        if path == LOGIN or path.startswith(STATIC):
            return None
        return self._unknown(request, client)

    def _unknown(self, request: HTTPConnection, client: str) -> _Refusal | None:
        """Returns why the client may not see the pages, None if it may. A wrong token counts as a login attempt."""
        authorization = request.headers.get("authorization", "")
        tries_token = self._access.needs_token and has_token(authorization)
        if tries_token and not self._logins.would_allow(client):
            return _TOO_MANY
        cookie = request.cookies.get(self._access.cookie, "")
        if self._access.admits(authorization=authorization, cookie=cookie):
            return None
        if tries_token:
            self._logins.allows(client)
        return HTTPStatus.UNAUTHORIZED, "The console needs a token.", {"www-authenticate": "Bearer"}


_NAMES = "Use the address that the console printed, or add the name to [console] names."


def bug(error: Exception) -> tuple[HTTPStatus, str]:
    """Returns the status and the sentence of the page after a bug of ours. The error's own text may hold row values."""
    sentence = f"The console has a bug ({type(error).__name__}). Its log has the time and the page."
    return HTTPStatus.INTERNAL_SERVER_ERROR, sentence


class _Answer:
    """Sends an answer with our headers, and remembers its status."""

    def __init__(self, send: Callable[[Message], Awaitable[None]]) -> None:
        self._send = send
        self.status = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
            headers.setdefault("cache-control", "no-store")
        await self._send(message)


def _page(scope: Scope) -> str:
    """Returns the name of the page that answered, without the keys that its address may have."""
    endpoint = scope.get("endpoint")
    return getattr(endpoint, "__name__", "none")
