"""Tests `Proxy`, which fault tests put between a client and a server. Here, the server sends back what it receives."""

import contextlib
import gc
import socket
import socketserver
import threading
import warnings
from collections.abc import Iterator

import pytest

from tests.patience import PATIENCE_S
from tests.proxy import Proxy


class _Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        while data := self.request.recv(65_536):
            self.request.sendall(data)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # the test breaks links on purpose


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with _Server(("127.0.0.1", 0), _Echo) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        with Proxy("127.0.0.1", server.server_address[1]) as proxy:
            yield proxy
        server.shutdown()
        thread.join()


def _connect(proxy: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE_S)


def _echoes(link: socket.socket, data: bytes = b"ping") -> bool:
    threading.Thread(target=link.sendall, args=(data,)).start()
    with link.makefile("rb") as answers:
        return answers.read(len(data)) == data


def test_the_proxy_forwards_much_data_both_ways(proxy: Proxy) -> None:
    with _connect(proxy) as link:
        assert _echoes(link, bytes(range(256)) * 20_000)


def test_a_link_that_hangs_stays_open_and_continues(proxy: Proxy) -> None:
    with _connect(proxy) as before:
        assert _echoes(before)
        proxy.hang()
        with _connect(proxy) as after:
            for link in (before, after):
                link.sendall(b"held")
                link.settimeout(0.1)
                with pytest.raises(TimeoutError):
                    link.recv(1)
                link.settimeout(PATIENCE_S)
            proxy.resume()
            for link in (before, after):
                with link.makefile("rb") as answers:
                    assert answers.read(4) == b"held"
                assert _echoes(link)


def test_a_mute_link_forwards_requests_and_withholds_answers() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        Proxy("127.0.0.1", server.getsockname()[1]) as proxy,
        _connect(proxy) as link,
    ):
        proxy.mute()
        link.sendall(b"do")
        answering, _ = server.accept()
        with answering, answering.makefile("rb") as request:
            assert request.read(2) == b"do"
            answering.sendall(b"done")
            link.settimeout(0.1)
            with pytest.raises(TimeoutError):
                link.recv(1)
            link.settimeout(PATIENCE_S)
            proxy.resume()
            with link.makefile("rb") as answers:
                assert answers.read(4) == b"done"


def test_reset_breaks_links_and_serves_new_ones(proxy: Proxy) -> None:
    with _connect(proxy) as link:
        assert _echoes(link)
        proxy.reset()
        with pytest.raises(ConnectionResetError):
            link.recv(1)
    with _connect(proxy) as link:
        assert _echoes(link)


def test_a_stopped_proxy_refuses_links_until_it_resumes(proxy: Proxy) -> None:
    with _connect(proxy) as link:
        assert _echoes(link)
        proxy.stop()
        assert link.recv(1) == b""
    with pytest.raises(ConnectionRefusedError):
        _connect(proxy)
    proxy.resume()
    with _connect(proxy) as link:
        assert _echoes(link)


def test_a_link_ends_when_its_client_leaves(proxy: Proxy) -> None:
    with _connect(proxy) as link:
        assert _echoes(link)
        link.shutdown(socket.SHUT_WR)
        assert link.recv(1) == b""


def test_a_link_that_hangs_can_be_reset(proxy: Proxy) -> None:
    with _connect(proxy) as link:
        assert _echoes(link)
        proxy.hang()
        link.sendall(b"lost")
        proxy.reset()
        with pytest.raises(ConnectionResetError):
            link.recv(1)


def test_links_accepted_just_before_the_proxy_closes_are_closed_too(proxy: Proxy) -> None:
    """A socket that stays open would cause a warning at a later garbage collection. The warning would make another test
    fail.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(20):
            with contextlib.ExitStack() as clients, Proxy("127.0.0.1", proxy.port) as second_proxy:
                for _ in range(5):
                    clients.enter_context(_connect(second_proxy))
        gc.collect()
    assert [str(warning.message) for warning in caught] == []
