"""Assembles the console's web application: the addresses of its pages, what protects them, and the pages of errors."""

import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from pathlib import Path

import anyio
from anyio.to_thread import run_sync
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from changelog.connectors.console.pages import drift, home, key, live, search, versions, writers
from changelog.connectors.console.pages.login import Login
from changelog.connectors.console.rendering import Page, Redirect, problem, respond, wants_json
from changelog.connectors.console.site import Site
from changelog.connectors.web.access import Access
from changelog.connectors.web.guard import Guard, Surface, bug
from changelog.connectors.web.hosts import Hosts
from changelog.connectors.web.limits import Rate, Room
from changelog.envelope.errors import ChangelogError, Kind

LOGIN = "/login"
STATIC = "/static/"
LIVE = "/tail/events"

SURFACE = Surface(
    name="the console",
    section="console",
    login=LOGIN,
    open_to_all=(LOGIN, STATIC),
    is_long=lambda request: request.url.path == LIVE,
)

REQUESTS_PER_S, REQUESTS_BURST = 20.0, 60
LOGINS_PER_S, LOGINS_BURST = 1 / 12, 5
ANSWERED_AT_ONCE = 16
LIVE_AT_ONCE = 8

READERS = 4
"""How many requests may read the changelog at the same time; the others wait."""

STATUSES = {
    Kind.USAGE: HTTPStatus.NOT_FOUND,
    Kind.ACCESS: HTTPStatus.SERVICE_UNAVAILABLE,
    Kind.PRECONDITION: HTTPStatus.SERVICE_UNAVAILABLE,
    Kind.CONNECTION: HTTPStatus.SERVICE_UNAVAILABLE,
}
"""The HTTP status for each kind of error. Every other kind, such as a damaged file, is an error of the server (500)."""

PageFunction = Callable[[Site, Request], Page | Redirect | Response]


def console(
    site: Site, access: Access, *, names: tuple[str, ...], is_loopback: bool, logs_requests: bool = True
) -> ASGIApp:
    """Returns the console as an ASGI application. `names` are the host names by which browsers may reach it."""
    readers = anyio.CapacityLimiter(READERS)
    login = Login(access, site.config.name)

    def route(address: str, function: PageFunction) -> Route:
        return Route(address, _endpoint(site, function, readers), methods=["GET"])

    routes = [
        route("/", home.home),
        route("/search", search.search),
        route("/e/{entity}", search.entity),
        route("/e/{entity}/{key:path}", key.key),
        route("/who", writers.who),
        route("/tail", live.tail),
        route(LIVE, live.events),
        route("/schemas/{entity}", versions.versions),
        route("/drift", drift.drift),
        Route(LOGIN, login.login, methods=["GET", "POST"]),
        Mount(STATIC, StaticFiles(directory=Path(__file__).parent / "static"), name="static"),
    ]

    async def not_there(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        page = problem(HTTPStatus(error.status_code), "The console has no such page.")
        return respond(request, page, site.config.name)

    async def failed(request: Request, error: Exception) -> Response:
        return respond(request, problem(*bug(SURFACE, error)), site.config.name)

    def refuse(request: HTTPConnection, status: HTTPStatus, sentence: str) -> Response:
        if status is HTTPStatus.UNAUTHORIZED and not wants_json(request):
            query = request.url.query
            following = request.url.path + (f"?{query}" if query else "")
            return login.form(request, following, status=status)
        return respond(request, problem(status, sentence), site.config.name)

    return Guard(
        Starlette(routes=routes, exception_handlers={HTTPException: not_there, Exception: failed}),
        surface=SURFACE,
        access=access,
        hosts=Hosts(names, is_loopback=is_loopback),
        refuse=refuse,
        requests=Rate(per_s=REQUESTS_PER_S, burst=REQUESTS_BURST, clock=time.monotonic),
        logins=Rate(per_s=LOGINS_PER_S, burst=LOGINS_BURST, clock=time.monotonic),
        room=Room(ANSWERED_AT_ONCE),
        long_room=Room(LIVE_AT_ONCE),
        logs_requests=logs_requests,
    )


def _endpoint(
    site: Site, function: PageFunction, readers: anyio.CapacityLimiter
) -> Callable[[Request], Awaitable[Response]]:
    """Returns an endpoint that makes its page in a thread, because reading the changelog blocks."""

    def answer(request: Request) -> Response:
        try:
            page = function(site, request)
        except ChangelogError as error:
            page = problem(STATUSES.get(error.kind, HTTPStatus.INTERNAL_SERVER_ERROR), error.message, error.hint)
        if isinstance(page, Response):
            return page
        if isinstance(page, Redirect):
            return RedirectResponse(page.address, HTTPStatus.SEE_OTHER)
        return respond(request, page, site.config.name)

    async def endpoint(request: Request) -> Response:
        return await run_sync(answer, request, limiter=readers)

    endpoint.__name__ = function.__name__  # the name of the page in the log
    return endpoint
