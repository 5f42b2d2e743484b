"""Serves `GET /live`, `/ready` and `/metrics` over HTTP, for programs that monitor the service."""

import json
import socket
import sys
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

import structlog

from changelog.envelope.errors import ChangelogError, Kind

LIVE_WITHIN_S = 120.0
"""A publish loop counts as stuck if it has completed no turn for so many seconds."""

REQUEST_TIMEOUT_S = 10.0

_log = structlog.get_logger("health")


class HealthState:
    """The state of the publish loop of the changelog `name`. Any thread may use it.

    `phase` is a word or two for a person, such as `snapshot` or `streaming`. `ready` says whether the service publishes
    committed changes. `waits_for` has the ids of the database's transactions that must end before tables can be read.
    `waiting` is the reason why the database server sends nothing; None if it sends, or if the reason is unknown.
    """

    def __init__(self, name: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self._clock = clock
        self._beat_s = clock()
        self.phase = "starting"
        self.ready = False
        self.waits_for: tuple[int, ...] = ()
        self.waiting: str | None = None

    def beat(self) -> None:
        """Records that the loop completed a turn."""
        self._beat_s = self._clock()

    def enter(self, phase: str, *, ready: bool) -> None:
        """Enters another phase. `ready` says whether the service publishes committed changes."""
        self.phase, self.ready = phase, ready
        self.beat()

    @property
    def live(self) -> bool:
        """Whether the loop completed a turn within the last `LIVE_WITHIN_S`."""
        return self._clock() - self._beat_s < LIVE_WITHIN_S


class _Server(ThreadingHTTPServer):
    """Listens on an IPv4 or IPv6 address. It logs failed requests, which the base class would print to stderr."""

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, handler)

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002 - the base class has it
        """See `socketserver.BaseServer`. Probes may break connections at any time; this is not logged as an error."""
        if isinstance(sys.exception(), OSError):
            _log.debug("a probe broke its connection", client=str(client_address), exc_info=True)
        else:
            _log.exception("a probe was not answered", client=str(client_address))


class HealthServer:
    """Serves `state` and the text from `metrics` on `address`, in a thread. It is a context manager.

    Raises ChangelogError (PRECONDITION) if the address is not available. If the given port is 0, the system chooses a
    port, which is then part of the attribute `address`. The attribute `listen` is the same address as text.
    """

    def __init__(self, address: tuple[str, int], state: HealthState, metrics: Callable[[], bytes]) -> None:
        try:
            self._server = _Server(address, _handler(state, metrics))
        except OSError as error:
            raise ChangelogError(
                Kind.PRECONDITION,
                f"cannot listen on {_text(address)} ({error.strerror})",
                hint="set another address in [service] listen",
            ) from error
        self.address: tuple[str, int] = self._server.server_address[0], self._server.server_address[1]  # type: ignore[assignment]
        self.listen = _text(self.address)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="health", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _text(address: tuple[str, int]) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _handler(state: HealthState, metrics: Callable[[], bytes]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = REQUEST_TIMEOUT_S

        def do_GET(self) -> None:
            match self.path.partition("?")[0]:
                case "/live":
                    self._answer_state(state.live)
                case "/ready":
                    self._answer_state(state.live and state.ready and state.waiting is None)
                case "/metrics":
                    self._answer(HTTPStatus.OK, "text/plain; version=0.0.4; charset=utf-8", metrics())
                case _:
                    self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"/live, /ready and /metrics are here\n")

        def _answer_state(self, good: bool) -> None:
            answer: dict[str, Any] = {"ok": good, "name": state.name, "phase": state.phase}
            if state.waits_for:
                answer["waits_for"] = state.waits_for
            if state.waiting is not None:
                answer |= {"phase": "waiting", "waiting": state.waiting}
            body = json.dumps(answer).encode() + b"\n"
            self._answer(HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE, "application/json", body)

        def _answer(self, status: HTTPStatus, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it
            """Logs nothing, because a probe comes every few seconds."""

    return Handler
