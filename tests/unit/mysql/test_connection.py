"""Tests which error is raised if the server fails while a session is being opened."""

import socket
import struct
import threading

import pytest

from changelog.connectors.sources.mysql.session.address import Address
from changelog.connectors.sources.mysql.session.connection import Connection
from changelog.envelope.errors import ChangelogError, Kind

TLS = 0x0800
PROTOCOL_41 = 0x0200
SECURE_CONNECTION = 0x8000
PLUGIN_AUTH = 0x0008_0000


def greeting() -> bytes:
    """Returns the first packet of a server that offers TLS (see *Protocol::HandshakeV10* in MySQL's documentation)."""
    capabilities = TLS | PROTOCOL_41 | SECURE_CONNECTION | PLUGIN_AUTH
    content = b"\x0a8.0.15\0" + struct.pack("<I", 1) + b"12345678\0" + struct.pack("<H", capabilities & 0xFFFF)
    content += b"\x2d" + struct.pack("<HH", 2, capabilities >> 16) + b"\x15" + bytes(10)
    content += b"123456789012\0mysql_native_password\0"
    return struct.pack("<I", len(content)) + content


def test_the_service_connects_again_if_the_server_goes_away_while_tls_begins() -> None:
    """The error must have the kind CONNECTION, after which the service tries again. If the error said that the server
    refuses TLS, the service would end.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            link, _ = listener.accept()
            with link:
                link.sendall(greeting())
                link.recv(1 << 16)
                link.shutdown(socket.SHUT_WR)
                while link.recv(1 << 16):
                    pass

        server = threading.Thread(target=serve)
        server.start()
        with pytest.raises(ChangelogError) as caught:
            Connection(Address.parse(f"mysql://root@127.0.0.1:{listener.getsockname()[1]}/shop"))
        server.join()
    assert caught.value.kind is Kind.CONNECTION
