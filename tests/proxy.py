"""A TCP proxy that a test can make fail as networks do: it refuses, resets or hangs."""

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self

from changelog.connectors.servers.unprivileged import free_port

CHUNK = 65_536
ACCEPT_ITERATIONS = 5
"""How many iterations of the event loop `stop` waits before it closes the listener. By then, every accepted connection
is registered in `_links`. Three iterations would be enough for that.
"""

ABORT = struct.pack("ii", 1, 0)
"""SO_LINGER with 0 seconds, so that `close` sends RST."""


class Proxy:
    """Listens at `address` and forwards every connection to `host`:`port`.

    A *link* is the connection of one client, together with the connection to the server that the proxy opens for it.

    Use the proxy as a context manager. Its address never changes. Each method returns when its effect is complete.
    """

    def __init__(self, host: str, port: int) -> None:
        self.port = free_port()
        self._target = (host, port)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._server: asyncio.Server | None = None
        self._serving, self._answering = asyncio.Event(), asyncio.Event()
        self._links: dict[asyncio.Task[None], list[asyncio.StreamWriter]] = {}
        self._serving.set()
        self._answering.set()
        self._thread.start()
        self._call(self._listen())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def address(self) -> str:
        """The proxy's address, as HOST:PORT."""
        return f"127.0.0.1:{self.port}"

    def stop(self) -> None:
        """Closes all links and refuses new ones, like a host whose service is down."""
        self._call(self._stop())

    def hang(self) -> None:
        """Accepts connections and keeps them open, but forwards nothing, like a network that loses every packet."""
        self._call(self._hang())

    def mute(self) -> None:
        """Forwards requests, but holds the answers back. The server executes a request, but the client does not learn
        whether it did.
        """
        self._call(self._mute())

    def reset(self) -> None:
        """Breaks all links with RST. New links are served as before."""
        self._call(self._drop(abort=True))

    def resume(self) -> None:
        """Forwards again, on links that hang and on new ones. Listens again after `stop`."""
        self._call(self._resume())

    def forward_to(self, host: str, port: int) -> None:
        """Breaks all links, and forwards new ones to another server."""
        self._target = (host, port)
        self.reset()

    def close(self) -> None:
        """Ends the proxy and all its links."""
        self._call(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    async def _stop(self) -> None:
        if self._server is not None:
            await self._accept_no_more(self._server)
            self._server = None
        await self._drop()

    async def _accept_no_more(self, server: asyncio.Server) -> None:
        """Stops accepting, waits until every connection that was already accepted is registered as a link, and then
        closes the server.

        When the server closes, asyncio loses a connection that was accepted but is not registered as a link yet. The
        socket of that connection stays open until a garbage collection, which warns about it, perhaps during another
        test.
        """
        for listener in server.sockets:
            self._loop.remove_reader(listener.fileno())
        for _ in range(ACCEPT_ITERATIONS):
            await asyncio.sleep(0)
        server.close()

    async def _hang(self) -> None:
        self._serving.clear()
        self._answering.clear()

    async def _mute(self) -> None:
        self._answering.clear()

    async def _resume(self) -> None:
        self._serving.set()
        self._answering.set()
        if self._server is None:
            await self._listen()

    async def _drop(self, *, abort: bool = False) -> None:
        links = dict(self._links)
        for task, writers in links.items():
            for writer in writers:
                if abort:
                    with contextlib.suppress(OSError):  # the link has just ended by itself
                        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORT)
                writer.transport.abort()
            task.cancel()
        await asyncio.gather(*links, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers = [writer]
        task = self._loop.create_task(self._forward(reader, writers))
        self._links[task] = writers
        task.add_done_callback(self._links.pop)

    async def _forward(self, reader: asyncio.StreamReader, writers: list[asyncio.StreamWriter]) -> None:
        """Forwards one link until either end closes it. `writers` holds the client's writer and, once connected, the
        server's.
        """
        with contextlib.suppress(OSError):
            try:
                await self._serving.wait()
                server_reader, server_writer = await asyncio.open_connection(*self._target)
                writers.append(server_writer)
                requests, answers = (reader, server_writer, self._serving), (server_reader, writers[0], self._answering)
                pumps = [asyncio.ensure_future(self._pump(*way)) for way in (requests, answers)]
                try:
                    await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for pump in pumps:
                        pump.cancel()
                    await asyncio.gather(*pumps, return_exceptions=True)
            finally:
                for writer in writers:
                    writer.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event) -> None:
        while data := await reader.read(CHUNK):
            await gate.wait()
            writer.write(data)
            await writer.drain()
