"""Answers the questions of other *instances*: processes that serve the same views. They must send a token that is only
for instances.

The address is not a part of the API: clients of the API do not have this token, and their limits do not apply here.
"""

import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

import anyio
from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from changelog.connectors.views.http.answers import error_answer
from changelog.connectors.views.served import INSTANCES
from changelog.connectors.web.access import Access, has_token
from changelog.envelope.errors import ChangelogError

READERS: Final = 16
"""How many questions are answered at the same time; the others wait."""

QUESTION_BYTES_MAX: Final = 1 << 20


class InstanceApi:
    """Adds the address `INSTANCES` to the application `app`. Instances must send `token`. `answer` answers their
    questions, and is called in a thread.
    """

    def __init__(self, app: ASGIApp, *, token: str, answer: Callable[[bytes], bytes]) -> None:
        self._app, self._answer = app, answer
        self._access = Access(token, secret=b"", clock=time.time, cookie="")
        self._readers = anyio.CapacityLimiter(READERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != INSTANCES:
            await self._app(scope, receive, send)
            return
        response = await self._answered(Request(scope, receive))
        await response(scope, receive, send)

    async def _answered(self, request: Request) -> Response:
        authorization = request.headers.get("authorization", "")
        if not (has_token(authorization) and self._access.admits(authorization=authorization, cookie="")):
            return error_answer(HTTPStatus.UNAUTHORIZED, "this address is for other instances", None)
        if request.method != "POST":
            return error_answer(HTTPStatus.METHOD_NOT_ALLOWED, "instances ask with POST", None, {"allow": "POST"})
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > QUESTION_BYTES_MAX:
                return error_answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "the question is too long", None)
        try:
            content = await run_sync(self._answer, bytes(body), limiter=self._readers)
        except ChangelogError as error:
            return error_answer(HTTPStatus.SERVICE_UNAVAILABLE, error.message, error.hint)
        return Response(content, media_type="application/vnd.msgpack")
