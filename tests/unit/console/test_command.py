"""Tests `changelog console`: its options, what it refuses, TLS, and how it ends."""

import http.client
import json
import os
import pty
import re
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from changelog.connectors import cli
from changelog.connectors.commands import console as command
from changelog.connectors.commands.demo import show_console
from changelog.connectors.commands.listening import with_listening_options
from changelog.connectors.config import ConsoleConfig
from changelog.connectors.console import serving as console_serving
from changelog.connectors.console.pages import login
from changelog.connectors.extras import installation
from changelog.connectors.servers.certificates import CA, CERTIFICATE, KEY, write_certificates
from changelog.connectors.web import serving
from changelog.envelope.errors import ChangelogError, Kind
from tests.patience import PATIENCE_S, PROGRAM_S, until
from tests.unit.console.running import running
from tests.unit.console.story import settings

TOKEN = "a token of a person"


@pytest.fixture
def config_file(folder: Path) -> Path:
    settings(folder)
    return folder / "changelog.toml"


def run(capsys: pytest.CaptureFixture[str], config_file: Path, *words: str) -> tuple[int, str]:
    """Runs `changelog console` with arguments or settings that it refuses. Returns its exit code and its error text."""
    code = cli.main(["console", "--config", str(config_file), *words])
    return code, capsys.readouterr().err


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::", "changelog.example.org"])
def test_a_console_that_other_machines_can_reach_needs_a_token(
    config_file: Path, capsys: pytest.CaptureFixture[str], host: str
) -> None:
    code, error = run(capsys, config_file, "--host", host)
    assert code == 2
    assert error.startswith(f"changelog: other machines can reach {host}, ")
    assert "--token-file" in error


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (None, "cannot be read (No such file or directory)"),
        (b"short", "has fewer than 16 characters; make one: `openssl rand -hex 24 > "),
        (b"\xff" * 20, "is not UTF-8"),
    ],
)
def test_a_file_without_a_token_is_refused(
    config_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, error: str
) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    code, text = run(capsys, config_file, "--token-file", str(file))
    assert code == 2
    assert error in text
    assert len(text.splitlines()) == 1


def test_the_error_for_a_port_in_use_is_one_line(config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        code, error = run(capsys, config_file, "--port", str(other.getsockname()[1]))
    assert code == 3
    assert "(Address already in use); choose another port" in error


@pytest.mark.parametrize(
    ("console", "problem"),
    [
        ('tls_certificate = "cert.pem"', "console.tls_key: is missing"),
        ('tls_client_ca = "ca.pem"', "console.tls_client_ca: needs TLS"),
        ('token = "short"', "console.token: should have 16 characters or more"),
        ("names = 7", "console.names: "),
    ],
)
def test_a_bad_section_is_refused(tmp_path: Path, console: str, problem: str) -> None:
    with pytest.raises(ChangelogError, match=re.escape(problem)):
        settings(tmp_path, console=console)


def test_the_error_for_missing_files_for_tls_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings(tmp_path, console='tls_certificate = "none.pem", tls_key = "none.pem"')
    code, error = run(capsys, tmp_path / "changelog.toml")
    assert code == 2
    assert "the files for TLS cannot be used (No such file or directory)" in error


def test_without_its_packages_the_command_says_how_to_get_them(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (console_serving, serving):
        monkeypatch.delitem(sys.modules, module.__name__)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(ChangelogError) as caught, command.opened(settings(folder)):
        pass
    assert caught.value.message == "the console needs uvicorn, which is not installed"
    assert (caught.value.kind, caught.value.hint) == (Kind.USAGE, installation("console"))


def get(address: str, context: ssl.SSLContext | None = None, **headers: str) -> http.client.HTTPResponse:
    scheme, _, place = address.partition("://")
    assert (scheme == "https") == (context is not None)
    connection = http.client.HTTPSConnection(place, context=context) if context else http.client.HTTPConnection(place)
    with closing(connection):
        connection.request("POST" if "body" in headers else "GET", "/login", headers.get("body"))
        answer = connection.getresponse()
        answer.read()
        return answer


def test_with_tls_the_cookie_is_secure_and_clients_may_need_a_certificate(folder: Path, tmp_path: Path) -> None:
    write_certificates(tmp_path)
    files = f'tls_certificate = "{tmp_path / CERTIFICATE}", tls_key = "{tmp_path / KEY}"'
    context = ssl.create_default_context(cafile=tmp_path / CA)
    with running(settings(folder, console=f'{files}, token = "{TOKEN}"')) as address:
        cookie = get(address, context, body=f"token={TOKEN.replace(' ', '+')}").headers["set-cookie"]
        assert "Secure" in cookie.split("; ")
    with running(settings(folder, console=f'{files}, tls_client_ca = "{tmp_path / CA}"')) as address:
        with pytest.raises(OSError):  # noqa: PT011 - the server may end the connection in several ways
            get(address, context)
        context.load_cert_chain(tmp_path / CERTIFICATE, tmp_path / KEY)
        assert get(address, context).status == 200


@pytest.mark.parametrize("beginning", [b"", b"GET / HTTP/1.1\r\nHost:", b"POST /login HTTP/1.1\r\n"])
def test_clients_with_incomplete_requests_do_not_keep_others_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch, beginning: bytes
) -> None:
    monkeypatch.setattr(serving, "HEAD_S", 0.2)
    with running(settings(folder)) as address, ExitStack() as open_sockets:
        place = urlsplit(address)
        connections = [
            open_sockets.enter_context(socket.create_connection((place.hostname, place.port), PATIENCE_S))
            for _ in range(serving.CONNECTIONS_MAX)
        ]
        for connection in connections:
            connection.sendall(beginning)
        for connection in connections:
            with suppress(ConnectionResetError):
                assert connection.recv(1) == b""
        assert get(address).status == 200


def test_a_form_that_never_arrives_is_not_awaited_forever(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login, "FORM_S", 0.2)
    with running(settings(folder)) as address:
        place = urlsplit(address)
        with closing(socket.create_connection((place.hostname, place.port), PATIENCE_S)) as connection:
            connection.sendall(b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\ntoken")
            assert connection.recv(1024).startswith(b"HTTP/1.1 408 ")


def test_a_client_that_does_not_read_loses_its_connection(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "READ_S", 0.2)
    with running(settings(folder), send_bytes=4096) as address, closing(socket.socket()) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(PATIENCE_S)
        connection.connect((urlsplit(address).hostname, urlsplit(address).port))
        connection.sendall(b"GET /static/console.css HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100)
        until(lambda: is_lost(connection), "the connection stays open")


def is_lost(connection: socket.socket) -> bool:
    """Returns whether the server has closed a connection. Reads nothing, because the client must not read.

    Sends an empty line instead. A server that is still there ignores an empty line before a request.
    """
    try:
        connection.sendall(b"\r\n")
    except (ConnectionResetError, BrokenPipeError):
        return True
    return False


@contextmanager
def ending(process: subprocess.Popen[Any]) -> Iterator[None]:
    """Ends the process if the test fails."""
    try:
        yield
    except BaseException:
        process.kill()
        raise


def test_the_command_serves_until_it_is_interrupted(config_file: Path) -> None:
    words = [sys.executable, "-W", "error", "-m", "changelog", "console", "--config", str(config_file), "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process, ending(process):
        assert process.stdout is not None
        address = re.search(r"http://127.0.0.1:\d+", process.stdout.readline())
        assert address is not None
        assert get(address[0]).status == 200
        process.send_signal(signal.SIGINT)
        output, log = process.communicate(timeout=PROGRAM_S)
    assert (process.returncode, output) == (0, "")
    (event,) = [json.loads(line) for line in log.splitlines()]
    assert (event["event"], event["page"], event["status"]) == ("request", "login", 200)


SHOWING = """
import sys
from pathlib import Path
from changelog.connectors.commands.demo import show_console
show_console(Path(sys.argv[1]))
"""


def test_on_a_terminal_the_demo_keeps_its_console_open(config_file: Path) -> None:
    ours, its = pty.openpty()
    words = [sys.executable, "-W", "error", "-c", SHOWING, str(config_file)]
    with subprocess.Popen(words, stdin=its, stdout=its, stderr=its, start_new_session=True) as process, ending(process):
        os.close(its)
        output = ""
        while "Ctrl-C ends it." not in output:
            output += os.read(ours, 1024).decode()
        address = re.search(r"who did it: (http://127.0.0.1:\d+)", output)
        assert address is not None
        assert get(address[1]).status == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(PROGRAM_S) == 0
    os.close(ours)


def test_without_a_terminal_the_demo_does_not_wait(config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show_console(config_file)
    output = capsys.readouterr().out
    assert re.search(r"who did it: http://127\.0\.0\.1:\d+/\nThe console is closed again", output)
    assert "http://127.0.0.1:9466/order/1:\n" in output
    assert f" -m changelog views serve --config {config_file}\n" in output


def test_options_override_the_settings_in_the_file(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    parser = cli.parser_of({"console": command})
    words = ["console", "--host", "10.0.0.1", "--port", "80", "--token-file", str(tmp_path / "token")]
    changed: ConsoleConfig = with_listening_options(settings(folder).console, parser.parse_args(words))
    assert (changed.host, changed.port, changed.token) == ("10.0.0.1", 80, TOKEN)
    assert TOKEN not in repr(changed)
