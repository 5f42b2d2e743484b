"""Serves a web application at an address, until the process is told to stop."""

import asyncio
import contextlib
import secrets
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from changelog.connectors.config import WebConfig
from changelog.connectors.web.access import Access
from changelog.connectors.web.guard import Surface
from changelog.envelope.errors import ChangelogError, Kind

HEAD_BYTES_MAX = 32 * 1024
"""How many bytes the first line and the headers of a request may have together."""

_TOO_LONG = "The head of the request is too long."

HEAD_S = 10.0
"""How long a client may take to send the first line and the headers of a request, in seconds."""

READ_S = 60.0
"""How long the network's buffers may stay full because a client does not read its answer, in seconds."""

REQUESTS_AHEAD_MAX = 256
"""How many requests a client may send on a connection while an earlier one is being answered."""

CONNECTIONS_MAX = 128
KEEP_ALIVE_S = 15
CLOSE_S = 1
"""How long answers may take to end after the server was told to stop, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """A server that listens at `address`, such as `http://127.0.0.1:9465/`, and answers once `run` is called."""

    address: str
    server: uvicorn.Server
    socket: socket.socket

    def run(self) -> None:
        """Answers requests until the process gets SIGINT or SIGTERM; after SIGINT, raises KeyboardInterrupt."""
        self.server.run(sockets=[self.socket])


MakeApp = Callable[[Access, Callable[[], bool]], ASGIApp]
"""Makes an application. Its arguments are the `Access` that checks tokens, and a function that returns True once the
server has been told to stop.
"""


@contextlib.contextmanager
def served(settings: WebConfig, surface: Surface, make_app: MakeApp) -> Iterator[Serving]:
    """Yields a server of the application that `make_app` returns. `surface.name` is what error texts call it.

    Raises ChangelogError: USAGE if other machines could reach the application without giving a token or a client
    certificate, or if the files for TLS cannot be used; PRECONDITION if the server cannot listen at the address; and
    the errors of `make_app`.
    """
    refuse_exposure(settings, surface)
    with contextlib.closing(_bound(settings, surface)) as listener:
        port = listener.getsockname()[1]
        server: uvicorn.Server | None = None
        cookie = f"changelog_session_{port}"
        access = Access(settings.token, secret=secrets.token_bytes(32), clock=time.time, cookie=cookie)
        app = make_app(access, lambda: server is not None and server.should_exit)
        server = uvicorn.Server(_server_settings(settings, surface, app))
        scheme = "http" if settings.tls_certificate is None else "https"
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        yield Serving(address=f"{scheme}://{host}:{port}/", server=server, socket=listener)


def refuse_exposure(settings: WebConfig, surface: Surface) -> None:
    """Raises ChangelogError (USAGE) if other machines could reach the application without giving a token or a client
    certificate.
    """
    if not settings.is_loopback and settings.token is None and settings.tls_client_ca is None:
        raise ChangelogError(
            Kind.USAGE,
            f"other machines can reach {settings.host}, and {surface.name} would show them every row",
            hint=f"give --token-file, or [{surface.section}] token or tls_client_ca; or listen at 127.0.0.1",
        )


def _bound(settings: WebConfig, surface: Surface) -> socket.socket:
    """Returns a socket that listens at the configured address."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # asyncio sends small answers at once (TCP_NODELAY) only if the socket names its protocol. Otherwise, they may wait
    # 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
        listener.listen()  # the address is printed before the server runs; the system queues connections until it runs
    except OSError as error:
        listener.close()
        raise ChangelogError(
            Kind.PRECONDITION,
            f"{surface.name} cannot listen at {settings.host}, port {settings.port} ({error.strerror})",
            hint=f"choose another port: --port, or [{surface.section}] port; with port 0, the system chooses one",
        ) from error
    return listener


def _server_settings(settings: WebConfig, surface: Surface, app: ASGIApp) -> uvicorn.Config:
    server_settings = uvicorn.Config(
        app,
        lifespan="off",
        ws="none",
        http=_Connection,
        loop="asyncio",
        interface="asgi3",
        log_config=None,
        log_level="critical",
        # uvicorn's access log would contain URLs, and so the keys of rows; the guard logs requests without them
        access_log=False,
        server_header=False,
        date_header=True,
        proxy_headers=False,
        limit_concurrency=CONNECTIONS_MAX,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=CLOSE_S,
        ssl_certfile=settings.tls_certificate,
        ssl_keyfile=settings.tls_key,
        ssl_ca_certs=None if settings.tls_client_ca is None else str(settings.tls_client_ca),
        ssl_cert_reqs=ssl.CERT_NONE if settings.tls_client_ca is None else ssl.CERT_REQUIRED,
    )
    try:
        server_settings.load()
    except OSError as error:
        raise bad_tls_files(error, surface.section) from error
    return server_settings


def bad_tls_files(error: OSError, section: str) -> ChangelogError:
    """Returns the error (USAGE) that is shown if the files for TLS in a section of the configuration cannot be read."""
    return ChangelogError(
        Kind.USAGE,
        f"the files for TLS cannot be used ({error.strerror or type(error).__name__})",
        hint=f"see tls_certificate, tls_key and tls_client_ca in [{section}]",
    )


class _Connection(HttpToolsProtocol):
    """A connection that is closed if the client sends the head of a request too slowly, or stops reading the answer.

    Otherwise, a few slow clients could occupy all connections, or all places for requests, for ever. What is kept in
    memory is limited, too: the head of a request, and the requests that wait for earlier answers.
    """

    _head_timer: asyncio.TimerHandle | None = None
    _read_timer: asyncio.TimerHandle | None = None
    _unfinished_bytes = 0  # received since the parser last completed a head, or passed on a part of a body
    _head_bytes = 0
    _refusal: str | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        self._unfinished_bytes += len(data)
        super().data_received(data)
        if self._unfinished_bytes > HEAD_BYTES_MAX and not self.transport.is_closing():
            self.send_400_response(_TOO_LONG)
        self._await_head()

    def send_400_response(self, msg: str) -> None:
        """Refuses a request, and closes the connection. If an earlier request is still being answered, the connection
        is only closed, because the refusal would be in the middle of the earlier answer.
        """
        if self.pipeline or (self.cycle is not None and not self.cycle.response_complete):  # type: ignore[redundant-expr]
            self.transport.close()
        else:
            super().send_400_response(self._refusal or msg)

    def on_message_begin(self) -> None:
        self._head_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + len(b": \r\n"))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= REQUESTS_AHEAD_MAX:
            self._refuse("Too many requests wait.")
        self._unfinished_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unfinished_bytes = 0
        super().on_body(body)

    def on_response_complete(self) -> None:
        """Starts the next request that waits. While others wait, nothing more is read from the connection."""
        super().on_response_complete()
        if self.pipeline:
            self.flow.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        _cancel(self._head_timer)
        _cancel(self._read_timer)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._read_timer = self.loop.call_later(READ_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        _cancel(self._read_timer)

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > HEAD_BYTES_MAX:
            self._refuse(_TOO_LONG)

    def _refuse(self, refusal: str) -> None:
        """Stops the parser. `data_received` then calls `send_400_response`."""
        self._refusal = refusal
        raise ValueError(refusal)

    def _await_head(self) -> None:
        """Starts the timer for the head of the next request, unless it runs already. While a request is being answered,
        no head is expected, so the timer is stopped.
        """
        if self.cycle is not None and not self.cycle.response_complete:  # type: ignore[redundant-expr]  # None at first
            _cancel(self._head_timer)
        elif self._head_timer is None or self._head_timer.cancelled():
            self._head_timer = self.loop.call_later(HEAD_S, self.transport.abort)


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
