"""Protects an application: refuses requests that must not reach it, and adds protective headers to every answer.

A request must pass these checks, in this order:

1. It names one of our hosts.
2. It was not sent by a script of another site.
3. Its method only reads, or it is the POST of the login form.
4. Its address is not too long.
5. Its client has not sent too many requests.
6. Not too many other requests are being answered now.
7. Its client has the token or a session, unless the address is open to all.
"""

import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from http import HTTPStatus

import anyio
import structlog
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from changelog.connectors.web.access import Access, has_token
from changelog.connectors.web.hosts import Hosts
from changelog.connectors.web.limits import Rate, Room

TARGET_BYTES_MAX = 16 * 1024
"""How many bytes the path and the query of a request may have together."""

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
"""The headers of every answer. Because of the first one, browsers use only scripts and styles that are files of our
own, none inside a page.
"""


_OWN_HEADERS = tuple((name.encode(), value.encode()) for name, value in HEADERS.items())
_OWN_NAMES = frozenset(name for name, _ in _OWN_HEADERS)
_CACHE_CONTROL = b"cache-control"


@dataclass(frozen=True, slots=True, kw_only=True)
class Surface:
    """What a guard needs to know about the application that it protects.

    `name` is how sentences name the application, such as `the console`, and `section` is its section of the
    configuration. `login` is the address of the form in which a person enters the token, if there is one. Addresses
    that begin with one of `open_to_all` need no token. `is_long` says whether answering a request may take long, for
    example because the answer has to wait for new data. The number of such requests at the same time has a limit of its
    own.
    """

    name: str
    section: str
    login: str | None = None
    open_to_all: tuple[str, ...] = ()
    is_long: Callable[[HTTPConnection], bool] = lambda _: False

    @property
    def subject(self) -> str:
        """The name of the application at the beginning of a sentence."""
        return self.name[0].upper() + self.name[1:]


Refuse = Callable[[HTTPConnection, HTTPStatus, str], Response]
"""Makes the answer to a request that is refused, from the request, the status and a sentence for a person."""

_Refusal = tuple[HTTPStatus, str, dict[str, str]]
"""Why a request is refused: the status, a sentence for a person, and headers for the answer."""

_TOO_MANY: _Refusal = (
    HTTPStatus.TOO_MANY_REQUESTS,
    "Too many requests; wait a minute, and try again.",
    {"retry-after": "60"},
)

_STOPPING: _Refusal = (
    HTTPStatus.SERVICE_UNAVAILABLE,
    "The server is stopping; try again in a moment.",
    {"retry-after": "2"},
)
"""The answer to a request that the server has cancelled, because it was not answered in time while the server stopped.
"""

_log = structlog.get_logger("web")


class Guard:
    """Wraps the application `app`.

    `refuse` makes the answers of refusals. `requests` limits how often a client may send requests, and `logins` how
    often it may try a token. `room` limits how many requests are answered at the same time. `long_room` does this for
    the requests that `surface.is_long` selects.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        surface: Surface,
        access: Access,
        hosts: Hosts,
        refuse: Refuse,
        requests: Rate,
        logins: Rate,
        room: Room,
        long_room: Room,
        logs_requests: bool,
    ) -> None:
        self._app, self._surface, self._access, self._hosts, self._refuse = app, surface, access, hosts, refuse
        self._requests, self._logins, self._room, self._long_room = requests, logins, room, long_room
        self._logs_requests = logs_requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began_s, answer = time.monotonic(), _Answer(send)
        try:
            await self._answer(HTTPConnection(scope), receive, answer)
        except anyio.get_cancelled_exc_class():
            if answer.status:
                raise
            await self._refused(_STOPPING, HTTPConnection(scope))(scope, receive, answer)
        except Exception as error:  # noqa: BLE001
            # This is a bug of ours. Its message and its traceback may hold row values, so neither is logged.
            _log.error("internal error", error=type(error).__name__, page=_page(scope))
            if not answer.status:
                await self._refuse(HTTPConnection(scope), *bug(self._surface, error))(scope, receive, answer)
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
            await self._refused(refusal, request)(request.scope, receive, send)

    def _refused(self, refusal: _Refusal, request: HTTPConnection) -> Response:
        status, sentence, headers = refusal
        response = self._refuse(request, status, sentence)
        response.headers.update(headers)
        return response

    def _refusal(self, request: HTTPConnection, places: ExitStack) -> _Refusal | None:
        """Returns why the request is refused, with headers for the answer; None if it may pass.

        Before the check of the token, the request takes a place in a `Room`. The place is free again when `places` is
        closed.
        """
        scope, headers, surface = request.scope, request.headers, self._surface
        local = scope.get("server")
        if not self._hosts.knows(headers.get("host", ""), local[0] if local else None):
            return (
                HTTPStatus.MISDIRECTED_REQUEST,
                f"This address is not a name of {surface.name}. {_names(surface)}",
                {},
            )
        if headers.get("sec-fetch-site") == "cross-site" and headers.get("sec-fetch-mode") != "navigate":
            return HTTPStatus.FORBIDDEN, f"Scripts of other sites may not read {surface.name}.", {}
        path, method = scope["path"], scope["method"]
        methods = ("GET", "HEAD", "POST") if path == surface.login else ("GET", "HEAD")
        if method not in methods:
            return HTTPStatus.METHOD_NOT_ALLOWED, f"{surface.subject} only reads.", {"allow": ", ".join(methods)}
        if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > TARGET_BYTES_MAX:
            return HTTPStatus.REQUEST_URI_TOO_LONG, "The address is too long.", {}
        client = request.client.host if request.client else ""
        if not self._requests.allows(client) or (method == "POST" and not self._logins.allows(client)):
            return _TOO_MANY
        room = self._long_room if surface.is_long(request) else self._room
        if not places.enter_context(room.place()):
            sentence = "Too many requests are being answered now; try again in a moment."
            return HTTPStatus.SERVICE_UNAVAILABLE, sentence, {"retry-after": "2"}
        if path.startswith(surface.open_to_all):
            return None
        return self._unknown(request, client)

    def _unknown(self, request: HTTPConnection, client: str) -> _Refusal | None:
        """Returns why the client may not read the answer, None if it may. A wrong token counts as a login attempt."""
        authorization = request.headers.get("authorization", "")
        tries_token = self._access.needs_token and has_token(authorization)
        if tries_token and not self._logins.would_allow(client):
            return _TOO_MANY
        cookie = request.cookies.get(self._access.cookie, "")
        if self._access.admits(authorization=authorization, cookie=cookie):
            return None
        if tries_token:
            self._logins.allows(client)
        return HTTPStatus.UNAUTHORIZED, f"{self._surface.subject} needs a token.", {"www-authenticate": "Bearer"}


def _names(surface: Surface) -> str:
    return f"Use the address that {surface.name} printed, or add the name to [{surface.section}] names."


def bug(surface: Surface, error: Exception) -> tuple[HTTPStatus, str]:
    """Returns the status and the sentence of the answer after a bug of ours. The sentence names only the error's type,
    because the error's text may hold row values.
    """
    sentence = f"{surface.subject} has a bug ({type(error).__name__}). Its log has the time and the page."
    return HTTPStatus.INTERNAL_SERVER_ERROR, sentence


class _Answer:
    """Sends an answer with our headers, and remembers its status."""

    def __init__(self, send: Callable[[Message], Awaitable[None]]) -> None:
        self._send = send
        self.status = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = [header for header in message["headers"] if header[0] not in _OWN_NAMES]
            if all(name != _CACHE_CONTROL for name, _ in headers):
                headers.append((_CACHE_CONTROL, b"no-store"))
            message["headers"] = [*headers, *_OWN_HEADERS]
        await self._send(message)


def _page(scope: Scope) -> str:
    """Returns the name of the function that answered. Unlike the address, this name contains no keys."""
    endpoint = scope.get("endpoint")
    return getattr(endpoint, "__name__", "none")
