"""Defines a middleware for Django that stamps the changes of a request with the request's identifier."""

from __future__ import annotations

import inspect
from typing import Any, Callable

from django.utils.decorators import sync_and_async_middleware

from changelog_stamps.current import stamp
from changelog_stamps.django.options import options
from changelog_stamps.web import REQUEST_ID, request_identifier


@sync_and_async_middleware  # type: ignore[untyped-decorator] # Django ships no types
def stamp_requests(get_response: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns a handler of requests that calls `get_response` with a stamp. It is async if `get_response` is async."""
    if inspect.iscoroutinefunction(get_response):

        async def handle_async(request: Any) -> Any:
            with stamp(**_members(request)):
                return await get_response(request)

        return handle_async

    def handle(request: Any) -> Any:
        with stamp(**_members(request)):
            return get_response(request)

    return handle


def _members(request: Any) -> dict[str, Any]:
    setting = options()
    header = request.headers.get(setting.get("identifier_header", REQUEST_ID))
    identifier = request_identifier(header, request.headers.get("traceparent"))
    return {"service": setting.get("service"), "version": setting.get("version"), "identifier": identifier or ""}
