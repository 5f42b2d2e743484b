"""Sends requests to the console inside this process, without a network."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message

from changelog.connectors.config import Config
from changelog.connectors.console.app import console
from changelog.connectors.console.site import open_site
from changelog.connectors.web.access import Access

SECRET = b"secret of one process"
COOKIE = "changelog_session"


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """The answer to a request."""

    status: int
    headers: Headers
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """Sends requests as a browser on this machine does.

    `access` checks tokens. By default, requests need the token in the settings, if the settings have one.
    """

    def __init__(self, settings: Config, access: Access | None = None, *, now_s: float = 0.0) -> None:
        self.access = access or Access(settings.console.token, secret=SECRET, clock=lambda: now_s, cookie=COOKIE)
        site = open_site(settings, stopping=lambda: False)
        names = (settings.console.host, *settings.console.names)
        self.app: ASGIApp = console(site, self.access, names=names, is_loopback=settings.console.is_loopback)

    def get(self, target: str, **headers: str) -> Received:
        return self.send("GET", target, headers)

    def json(self, target: str) -> Any:
        """Requests a page as JSON, and returns its data. Follows redirections."""
        answer = self.get(target, accept="application/json")
        while answer.status == 303:
            answer = self.get(answer.headers["location"], accept="application/json")
        return answer.json

    def send(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str] | None = None,
        *,
        body: bytes = b"",
        client: str = "127.0.0.1",
    ) -> Received:
        """Sends a request. The names in `headers` have underscores in place of hyphens."""
        parts = urlsplit(target)
        headers = {"host": "127.0.0.1:9465", **(headers or {})}
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": parts.path,
            "raw_path": parts.path.encode(),
            "query_string": parts.query.encode(),
            "root_path": "",
            "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
            "client": (client, 50000),
            "server": ("127.0.0.1", 9465),
        }
        return asyncio.run(self._send(scope, body))

    async def _send(self, scope: dict[str, Any], body: bytes) -> Received:
        messages: list[Message] = []
        requests = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Message:
            if requests:
                return requests.pop()
            await asyncio.sleep(3600)
            raise AssertionError

        async def send(message: Message) -> None:
            messages.append(message)

        await self.app(scope, receive, send)
        start, *rest = messages
        headers = Headers(raw=start["headers"])
        return Received(status=start["status"], headers=headers, body=b"".join(part.get("body", b"") for part in rest))
