"""Runs a Redis server that keeps its data only in memory."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

from changelog.connectors.servers.unprivileged import ServerProcess, free_port, launch, reachable, temporary_folder
from tests.servers.answering import await_answer

START_TIMEOUT_S = 60.0
PASSWORD = "s3cret-of-redis"


class RedisServer(ServerProcess):
    """A server whose program and libraries are in `home`. It loses its data when it stops."""

    def __init__(self, home: Path, folder: Path) -> None:
        super().__init__()
        self.port = free_port()
        self.url = f"redis://:{PASSWORD}@127.0.0.1:{self.port}/0"
        self.log = folder / "redis.log"
        libraries = home / "lib"
        self._command = [
            *(str(libraries / "ld-linux-x86-64.so.2"), "--library-path", str(libraries)),
            *(str(home / "bin" / "redis-server"), "--port", str(self.port), "--bind", "127.0.0.1"),
            *("--save", "", "--appendonly", "no", "--requirepass", PASSWORD, "--dir", str(folder)),
        ]

    def start(self) -> None:
        """Starts the process, and returns when the server answers."""
        self._process = launch(self._command, self.log)
        await_answer(self, self._answers, lambda: self.log.read_text()[-500:], START_TIMEOUT_S)

    def _answers(self) -> bool:
        try:
            with redis.Redis.from_url(self.url) as client:
                return bool(client.ping())
        except redis.RedisError:
            return False


@contextmanager
def temporary_redis(home: Path) -> Iterator[RedisServer]:
    """Yields a running server, and stops it afterwards."""
    with temporary_folder("changelog-redis-") as folder, RedisServer(reachable(home, folder), folder) as server:
        yield server
