"""Tests that the server keeps connections open, and that it refuses requests whose heads are malformed or too long."""

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from urllib.parse import urlsplit

import pytest
import uvicorn
from uvicorn.server import ServerState

from changelog.connectors.web.serving import HEAD_BYTES_MAX, REQUESTS_AHEAD_MAX, _Connection
from tests.patience import PATIENCE_S
from tests.unit.views.running import Api

ROW = b"GET /order/42 HTTP/1.1\r\nHost: localhost\r\n"


class Transport(asyncio.Transport):
    """Stands for a connection whose client sends nothing more."""

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        pass


@pytest.fixture
def connection(api: Api) -> Iterator[socket.socket]:
    place = urlsplit(api.address)
    with closing(socket.create_connection((place.hostname, place.port), PATIENCE_S)) as connection:
        yield connection


def answer(connection: socket.socket) -> tuple[int, bytes]:
    """Reads one answer, and returns its status and its content."""
    received = b""
    while b"\r\n\r\n" not in received:
        part = connection.recv(1 << 16)
        assert part, "the server closed the connection"
        received += part
    head, _, body = received.partition(b"\r\n\r\n")
    fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
    while len(body) < int(fields[b"content-length"]):
        part = connection.recv(1 << 16)
        assert part, "the server closed the connection"
        body += part
    return int(head.split(b" ", 2)[1]), body


def is_closed(connection: socket.socket) -> bool:
    """Returns whether the server closes the connection without another answer."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_a_connection_takes_many_requests_in_any_pieces(connection: socket.socket) -> None:
    padded = ROW + b"X-Long: " + b"x" * (HEAD_BYTES_MAX - len(ROW) - 100) + b"\r\n\r\n"
    for pieces in ([padded], [padded[:5], padded[5:-1], padded[-1:]], [ROW, b"\r\n"]):
        for piece in pieces:
            connection.sendall(piece)
        status, body = answer(connection)
        assert (status, b'"key":"42"' in body) == (200, True)


def test_requests_that_arrive_together_are_answered_in_their_order(connection: socket.socket) -> None:
    connection.sendall(ROW.replace(b"42", b"41") + b"\r\n" + ROW + b"Connection: close\r\n\r\n")
    received = b""
    while part := connection.recv(1 << 16):
        received += part
    assert received.index(b'"key":"41"') < received.index(b'"key":"42"')


def test_the_content_of_a_request_may_be_longer_than_the_limit_of_heads(connection: socket.socket) -> None:
    content = b"x" * (2 * HEAD_BYTES_MAX)
    connection.sendall(ROW.replace(b"GET", b"POST") + b"Content-Length: %d\r\n\r\n" % len(content))
    assert answer(connection)[0] == 405
    for begin in range(0, len(content), 1 << 13):
        connection.sendall(content[begin : begin + (1 << 13)])
        time.sleep(0.01)  # so that the server gets the pieces one after the other
    connection.sendall(ROW + b"\r\n")
    assert answer(connection)[0] == 200


def test_a_malformed_request_does_not_spoil_an_earlier_answer(connection: socket.socket) -> None:
    connection.sendall(ROW + b"\r\n" + b"no request\r\n\r\n")
    received = b""
    with suppress(ConnectionResetError):
        while part := connection.recv(1 << 16):
            received += part
    assert received.count(b"HTTP/1.1 ") <= 1


def test_nothing_is_read_while_requests_wait() -> None:
    """One read may return several requests. Each answer starts the next request. When the last request has started, the
    server reads again.
    """

    async def receive_three() -> list[bool]:
        settings = uvicorn.Config(never, http=_Connection, loop="asyncio", lifespan="off", log_config=None)
        settings.load()
        connection = _Connection(settings, ServerState(), {}, asyncio.get_running_loop())
        connection.connection_made(Transport())
        connection.data_received((ROW + b"\r\n") * 3)
        await asyncio.sleep(0)  # so that the tasks begin
        paused = [connection.flow.read_paused]
        for _ in range(2):
            connection.on_response_complete()
            paused.append(connection.flow.read_paused)
        await asyncio.sleep(0)
        for task in connection.tasks:
            task.cancel()
        connection.connection_lost(None)
        return paused

    async def never(_scope: object, _receive: object, _send: object) -> None:
        await asyncio.Event().wait()  # no request is answered

    assert asyncio.run(receive_three()) == [True, True, False]


def test_a_client_that_sends_too_many_requests_at_once_loses_its_connection(connection: socket.socket) -> None:
    connection.sendall((ROW + b"\r\n") * (REQUESTS_AHEAD_MAX + 2))
    received = b""
    with suppress(ConnectionResetError):
        while part := connection.recv(1 << 16):
            received += part
    assert received.count(b"HTTP/1.1 ") < REQUESTS_AHEAD_MAX


@pytest.mark.parametrize("end", [b"", b"\r\n\r\n"])
@pytest.mark.parametrize(
    "line", [b"GET /" + b"a" * HEAD_BYTES_MAX, ROW + b"X-Long: " + b"a" * HEAD_BYTES_MAX, ROW + b"X: a\r\n" * 8_000]
)
def test_a_head_that_is_too_long_is_refused(connection: socket.socket, line: bytes, end: bytes) -> None:
    """The server refuses such a head even if the head's end has not arrived, and also if all of it arrives at once."""
    connection.sendall(line + end)
    status, body = answer(connection)
    assert (status, body) == (400, b"The head of the request is too long.")
    assert is_closed(connection)


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x16\x03\x01\x02\x00",  # the client begins TLS, which this server does not use
        b"GET / HTTP/1.1\r\nHost: localhost\r\nno colon\r\n\r\n",
        b"GET /order/\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
        ROW + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
)
def test_a_malformed_request_is_refused(connection: socket.socket, request_bytes: bytes) -> None:
    connection.sendall(request_bytes)
    status, _ = answer(connection)
    assert status == 400
    assert is_closed(connection)


def test_a_client_that_offers_another_protocol_is_answered_in_this_one(connection: socket.socket) -> None:
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n"
    connection.sendall(ROW + offer)
    assert answer(connection)[0] == 200
    connection.sendall(ROW + b"\r\n")
    assert answer(connection)[0] == 200
