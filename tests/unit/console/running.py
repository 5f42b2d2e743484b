"""Runs the console as `changelog console` does, in a thread of this process."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from changelog.connectors.config import Config
from changelog.connectors.console.serving import serving
from tests.patience import PATIENCE_S, until


@contextmanager
def running(settings: Config, *, send_bytes: int | None = None) -> Iterator[str]:
    """Yields the address of a console that answers requests. The address has no slash at its end.

    `send_bytes` is about how much of an answer the system buffers while the client does not read it. By default, this
    is some megabytes.
    """
    with serving(settings) as console:
        if send_bytes is not None:
            console.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_bytes)
        thread = threading.Thread(target=console.run)
        thread.start()
        try:
            until(lambda: console.server.started or not thread.is_alive(), "the console does not start")
            yield console.address.removesuffix("/")
        finally:
            console.server.should_exit = True
            thread.join(PATIENCE_S)
