"""Makes the ASGI application of the HTTP API: its addresses, the guard that protects them, and answers to errors."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus

import structlog
from anyio.to_thread import run_sync
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from changelog.connectors.views.catalogue import Catalogue
from changelog.connectors.views.http.answers import RefusalError, error_answer, headers_of, page_answer, row_answer
from changelog.connectors.views.http.metrics import ViewMetrics
from changelog.connectors.views.http.openapi import openapi
from changelog.connectors.views.http.page import STYLE, page
from changelog.connectors.views.http.paging import page_of
from changelog.connectors.views.http.questions import (
    FRESHNESS,
    RANGE,
    Parameters,
    freshness,
    key_of,
    key_range,
    refuse_unknown,
)
from changelog.connectors.views.http.waiting import WAIT_S, Answer, Question, ReadingPace, Waiting, age_s
from changelog.connectors.views.served import ForgottenError, NoRangesError, SharedEngine
from changelog.connectors.views.shown import ShownMoment, ShownView
from changelog.connectors.web.access import Access
from changelog.connectors.web.guard import Guard, Surface, bug
from changelog.connectors.web.hosts import Hosts
from changelog.connectors.web.limits import Rate, Room
from changelog.connectors.web.serving import CONNECTIONS_MAX
from changelog.envelope.errors import ChangelogError, Kind

HEALTH, READY = "/health", "/ready"

REQUESTS_PER_S, REQUESTS_BURST = 2000.0, 4000
TOKENS_PER_S, TOKENS_BURST = 1 / 12, 5
ANSWERED_AT_ONCE = 64
WAITING_AT_ONCE = CONNECTIONS_MAX - ANSWERED_AT_ONCE
"""How many requests may wait for newer rows. This leaves connections for requests that need not wait."""

READERS = 4
"""How many threads read files. While all are busy, further requests wait."""

STREAMS_READERS = 32
"""How many threads read rows that are not at hand (`ServedView.at_hand`), if the changelog is on Kafka. There are more
than `READERS`, because a thread may have to wait for another instance. Meanwhile, the others answer.
"""

SURFACE = Surface(
    name="the API of views",
    section="serve",
    open_to_all=(HEALTH, READY),
    is_long=lambda request: any(name in _parameters(request) for name in FRESHNESS),
)

STATUSES = {
    Kind.ACCESS: HTTPStatus.SERVICE_UNAVAILABLE,
    Kind.PRECONDITION: HTTPStatus.SERVICE_UNAVAILABLE,
    Kind.CONNECTION: HTTPStatus.SERVICE_UNAVAILABLE,
}
"""The status of the answer to each kind of error. Any other kind, such as a damaged file, is an error of the server."""

Prepared = tuple[str | None, Answer]
"""The key, if the request asks for one row, and the function that makes the answer."""

_log = structlog.get_logger("views")


class NoViewError(Exception):
    """Raised if the address of a request names no known view. `answer` is the answer to this request."""

    def __init__(self, answer: Response) -> None:
        super().__init__()
        self.answer = answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """The endpoints, with what they need. `name` is the name of the service."""

    name: str
    catalogue: Catalogue
    waiting: Waiting
    metrics: ViewMetrics
    needs_token: bool

    async def row(self, request: Request) -> Response:
        """Answers `GET /VIEW/KEY`."""
        path = request.scope["raw_path"].partition(b"?")[0].split(b"/", 2)[2]
        known_tag = request.headers.get("if-none-match", "")

        def prepare(view: ShownView, _: Parameters) -> Prepared:
            key = key_of(path, view.key)

            def answer(moment: ShownMoment) -> Response:
                row, now_s = moment.get(key), time.time()
                if row is not None:
                    return row_answer(row, moment.reached, now_s=now_s, definition=view.definition, known_tag=known_tag)
                message = f"{view.name} has no row with this key now"
                return error_answer(HTTPStatus.NOT_FOUND, message, None, headers_of(moment.reached, now_s))

            return key, answer

        return await self._answered(request, FRESHNESS, prepare)

    async def rows(self, request: Request) -> Response:
        """Answers `GET /VIEW`."""

        def prepare(view: ShownView, parameters: Parameters) -> Prepared:
            keys = key_range(parameters, view.key)

            def answer(moment: ShownMoment) -> Response:
                rows = page_of(moment, keys, f"/{view.name}", parameters)
                return page_answer(rows, moment.reached, now_s=time.time())

            return None, answer

        return await self._answered(request, (*RANGE, *FRESHNESS), prepare)

    async def _answered(
        self, request: Request, known_names: tuple[str, ...], prepare: Callable[[ShownView, Parameters], Prepared]
    ) -> Response:
        """Returns the answer to a request for rows of a view.

        `prepare` reads the parameters of the request, and raises RefusalError if they are bad. It returns a key, or
        None, and the function that makes the answer. Both functions are called in a thread if they may read files.
        """
        name, parameters, began_s = request.path_params["view"], _parameters(request), time.monotonic()

        def question() -> Question:
            view = self._view(name)
            refuse_unknown(parameters, known_names)
            key, answer = prepare(view, parameters)
            return Question(view, key, freshness(parameters, max_lag_s=view.max_lag_s), answer)

        try:
            response, reached = await self.waiting.answer(question)
            self.metrics.staleness.set(age_s(reached, time.time()) or 0.0)
        except NoViewError as error:
            return error.answer  # not counted in the metrics: clients could make up any number of names
        except RefusalError as refusal:
            if refusal.status is HTTPStatus.SERVICE_UNAVAILABLE:
                self.metrics.expired.labels(name).inc()
            response = error_answer(refusal.status, refusal.message, refusal.hint, refusal.headers)
        except ChangelogError as error:
            response = _failed(error)
        self.metrics.requests.labels(name, response.status_code).inc()
        self.metrics.seconds.labels(name).observe(time.monotonic() - began_s)
        return response

    def _view(self, name: str) -> ShownView:
        """Returns the view with a name. Raises NoViewError."""
        try:
            view = self.catalogue.view(name)
        except ChangelogError as error:
            raise NoViewError(_failed(error)) from error
        if view is not None:
            return view
        names = ", ".join(self.catalogue.views()) or "none yet"
        raise NoViewError(error_answer(HTTPStatus.NOT_FOUND, "there is no such view", f"there are: {names}"))

    async def health(self, _: Request) -> Response:
        """Answers `/health`. Any answer says that this process runs."""
        return JSONResponse({"ok": True})

    async def ready(self, _: Request) -> Response:
        """Answers `/ready`: whether there is a view, and whether every view can be read."""
        try:
            views = await run_sync(self.catalogue.views)
            for view in views.values():
                await asyncio.get_running_loop().run_in_executor(self.waiting.readers, view.now)
        except ChangelogError as error:
            content = {"ok": False, "error": error.message, **await self._offsets_left()}
            return JSONResponse(content, HTTPStatus.SERVICE_UNAVAILABLE)
        is_ready = bool(views)
        return JSONResponse({"ok": is_ready}, HTTPStatus.OK if is_ready else HTTPStatus.SERVICE_UNAVAILABLE)

    async def _offsets_left(self) -> Mapping[str, int]:
        engine = self.catalogue.engine
        return {"offsetsLeft": (await run_sync(engine.figures)).left} if isinstance(engine, SharedEngine) else {}

    async def measured(self, _: Request) -> Response:
        """Answers `/metrics`."""
        engine = self.catalogue.engine
        if isinstance(engine, SharedEngine):
            self.metrics.take(await run_sync(engine.figures))
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4")

    async def described(self, _: Request) -> Response:
        """Answers `/openapi.json`."""
        views = await run_sync(self.catalogue.views)
        return JSONResponse(openapi(views.values(), needs_token=self.needs_token))

    async def overview(self, _: Request) -> Response:
        """Answers `/`."""
        views = await run_sync(self.catalogue.views)
        return Response(page(self.name, views.values()), media_type="text/html")

    async def style(self, _: Request) -> Response:
        """Answers `/api.css`."""
        return Response(STYLE, media_type="text/css")


def views_app(
    name: str,
    catalogue: Catalogue,
    access: Access,
    *,
    names: tuple[str, ...],
    is_loopback: bool,
    stopping: Callable[[], bool],
    logs_requests: bool = False,
    wait_s: float = WAIT_S,
) -> ASGIApp:
    """Returns the API as an ASGI application. `name` is the name of the service, and `names` are the host names by
    which clients may call it. Once `stopping` returns True, no request waits any longer.
    """
    is_shared = isinstance(catalogue.engine, SharedEngine)
    waiting = Waiting(
        readers=ThreadPoolExecutor(STREAMS_READERS if is_shared else READERS, "views-reader"),
        stopping=stopping,
        pace=ReadingPace(time.monotonic) if is_shared else None,
        wait_s=wait_s,
    )
    api = Api(name=name, catalogue=catalogue, waiting=waiting, metrics=ViewMetrics(), needs_token=access.needs_token)
    addresses: Mapping[str, Callable[[Request], Awaitable[Response]]] = {
        "/{view}/{key:path}": api.row,  # most requests are for rows, and the first address that matches counts
        "/": api.overview,
        "/api.css": api.style,
        "/openapi.json": api.described,
        HEALTH: api.health,
        READY: api.ready,
        "/metrics": api.measured,
        "/{view}": api.rows,
    }
    routes = [Route(address, endpoint, methods=["GET"]) for address, endpoint in addresses.items()]
    handlers = {HTTPException: _not_there, ChangelogError: _changelog_error, Exception: _bug}
    return Guard(
        Starlette(routes=routes, exception_handlers=handlers),
        surface=SURFACE,
        access=access,
        hosts=Hosts(names, is_loopback=is_loopback),
        refuse=_refuse,
        requests=Rate(per_s=REQUESTS_PER_S, burst=REQUESTS_BURST, clock=time.monotonic),
        logins=Rate(per_s=TOKENS_PER_S, burst=TOKENS_BURST, clock=time.monotonic),
        room=Room(ANSWERED_AT_ONCE),
        long_room=Room(WAITING_AT_ONCE),
        logs_requests=logs_requests,
    )


def _parameters(request: HTTPConnection) -> Parameters:
    if not request.scope["query_string"]:  # as in most requests: parsing it would take longer
        return {}
    return {name: request.query_params.getlist(name) for name in request.query_params}


def _failed(error: ChangelogError) -> Response:
    """Returns the answer for a ChangelogError. Logs the error if it counts as an error of the server (see STATUSES)."""
    status = STATUSES.get(error.kind, HTTPStatus.INTERNAL_SERVER_ERROR)
    if isinstance(error, NoRangesError):
        status = HTTPStatus.BAD_REQUEST
    elif isinstance(error, ForgottenError):  # what RFC 9111, 5.2.1.7, demands of a cache that has no answer
        status = HTTPStatus.GATEWAY_TIMEOUT
    if status is HTTPStatus.INTERNAL_SERVER_ERROR:
        _log.error("rows cannot be read", error=str(error))
    return error_answer(status, error.message, error.hint)


async def _changelog_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ChangelogError)
    return _failed(error)


async def _not_there(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return error_answer(HTTPStatus(error.status_code), "there is no such address", "open / to see the addresses")


async def _bug(_: Request, error: Exception) -> Response:
    return error_answer(*bug(SURFACE, error), None)


def _refuse(_: HTTPConnection, status: HTTPStatus, sentence: str) -> Response:
    hint = "send it in the header: Authorization: Bearer TOKEN" if status is HTTPStatus.UNAUTHORIZED else None
    return error_answer(status, sentence, hint)
