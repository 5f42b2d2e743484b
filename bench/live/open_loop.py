"""Sends HTTP requests at an even pace, whether or not the server keeps up. This is called an open loop.

Each request has a time at which it is due, and its latency counts from this time. So if the server stalls, all requests
that become due meanwhile are late. A client that sends each request only after the answer to the previous one
sends nothing during the stall, so its latencies hide the stall. This error of measurement is known as coordinated
omission.
"""

import selectors
import socket
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_ARRIVE_S_MAX = 30.0
_HEAD_END = b"\r\n\r\n"
_LENGTH = b"content-length:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """The latencies of all requests in seconds, in the order in which the answers arrived; and how often each status
    came.
    """

    latencies_s: npt.NDArray[np.float64]
    statuses: Counter[int]

    def milliseconds(self, percentile: float) -> float:
        """Returns a percentile of the latencies, in milliseconds."""
        return float(np.percentile(self.latencies_s, percentile)) * 1000


class _Connection:
    """A connection that stays open. It has at most one request that is not answered yet."""

    def __init__(self, host: str, port: int) -> None:
        self.socket = socket.create_connection((host, port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.due_s = 0.0
        self._received = b""

    def send(self, request: bytes, due_s: float) -> None:
        self.due_s = due_s
        self.socket.sendall(request)

    def receive(self) -> int | None:
        """Reads what has arrived. Returns the status of the answer if the answer is complete; otherwise None."""
        content = self.socket.recv(1 << 16)
        if not content:
            raise SystemExit("the server closed a connection")
        self._received += content
        head, end, body = self._received.partition(_HEAD_END)
        if not end or len(body) < int(head.lower().partition(_LENGTH)[2].split(b"\r\n", 1)[0]):
            return None
        self._received = b""
        return int(head.split(b" ", 2)[1])


def send(
    host: str, port: int, path: Callable[[int], str], *, per_second: float, seconds: float, connections: int
) -> Answers:
    """Sends `GET` requests for `path(0)`, `path(1)` and so on, and returns when all answers have arrived.

    If a request is due while all connections wait for answers, the request is sent as soon as a connection is free.
    Raises SystemExit if the server closes a connection, or if no answer arrives for `_ARRIVE_S_MAX` seconds.
    """
    count = round(per_second * seconds)
    idle = deque(_Connection(host, port) for _ in range(connections))
    latencies_s: list[float] = []
    statuses, sent_count = Counter[int](), 0
    with selectors.DefaultSelector() as selector:
        for connection in idle:
            selector.register(connection.socket, selectors.EVENT_READ, connection)
        began_s = time.perf_counter()
        while len(latencies_s) < count:
            now_s = time.perf_counter()
            while idle and sent_count < count and (due_s := began_s + sent_count / per_second) <= now_s:
                head = f"GET {path(sent_count)} HTTP/1.1\r\nHost: {host}:{port}\r\nAccept: */*\r\n\r\n"
                idle.popleft().send(head.encode(), due_s)
                sent_count += 1
            wait_s = began_s + sent_count / per_second - now_s if idle and sent_count < count else _ARRIVE_S_MAX
            events = selector.select(max(wait_s, 0.0))
            if not events and wait_s == _ARRIVE_S_MAX:
                raise SystemExit(f"no answer arrived in {_ARRIVE_S_MAX:g} s")
            for key, _ in events:
                status = key.data.receive()
                if status is not None:
                    latencies_s.append(time.perf_counter() - key.data.due_s)
                    statuses[status] += 1
                    idle.append(key.data)
        for connection in idle:
            connection.socket.close()
    return Answers(latencies_s=np.array(latencies_s), statuses=statuses)
