"""One database, one configuration over it and the service between them, as an operator has them."""

import contextlib
import io
import json
import os
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psycopg

from changelog.connectors import cli, config, logs
from changelog.connectors.commands.tail import message_line
from changelog.connectors.service.service import Service
from changelog.connectors.sinks.files.log import read_checkpoint, read_log
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.columnar import batch
from changelog.envelope.errors import ChangelogError
from tests.campaigns._service import is_read
from tests.patience import PATIENCE_S

_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))

HEAD = """
name = {name}
source = {{ kind = "postgres", dsn = {dsn} }}
sink = {{ path = {path}, commit_seconds = 0.05 }}
service = {{ listen = "127.0.0.1:0" }}
"""


class Site:
    """A database at `dsn`, and the configuration and log of one service in `folder`.

    Slots are the whole server's, so the service's name is that of its database.
    """

    def __init__(self, dsn: str, folder: Path) -> None:
        self.dsn = dsn
        self.name = str(psycopg.conninfo.conninfo_to_dict(dsn)["dbname"])
        self.folder = folder
        self.config = folder / "changelog.toml"
        self.log = folder / "log"

    def configure(self, rest: str, *, dsn: str | None = None, path: str = "log") -> None:
        """Writes the configuration; `rest` is what stands below its head."""
        values = {"name": self.name, "dsn": dsn or self.dsn, "path": path}
        head = HEAD.format(**{key: json.dumps(value) for key, value in values.items()})
        self.config.write_text(head + rest, "utf-8")

    def sql(self, *statements: str) -> list[tuple[Any, ...]]:
        """Runs the statements, each a transaction of its own; gives the last one's rows."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for statement in statements:
                cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def call(self, *words: str) -> tuple[int, list[str]]:
        """`changelog WORDS` in this process: the exit code, and what it says beside its log, or fails with in it."""
        stderr = io.StringIO()
        with contextlib.redirect_stderr(stderr), _deadline():
            try:
                code = cli.main([words[0], "--config", str(self.config), *words[1:]])
            except SystemExit as left:  # as the parser of the command line does
                code = int(left.code or 0)
        return code, [text for line in stderr.getvalue().splitlines() for text in _said(line)]

    def refused(self, *words: str, code: int = 3) -> str:
        """The one line with which `changelog WORDS` fails, `run` if none are given."""
        found, lines = self.call(*(words or ("run",)))
        assert found == code, lines
        assert len(lines) == 1, lines
        assert lines[0].startswith("changelog: ")
        return lines[0].removeprefix("changelog: ")

    @contextlib.contextmanager
    def running(self, *, accept: bool = False, accept_cluster: bool = False) -> Iterator["Running"]:
        """The service, in a thread, drained at the end; what it fails with is raised, unless it was looked at."""
        settings = config.load(self.config, os.environ)
        service = Running(Service(settings, accept_settings=accept, accept_cluster=accept_cluster))
        try:
            yield service
        finally:
            service.stop()
        service.check()

    def messages(self, entity: str | None = None) -> list[dict[str, Any]]:
        """What was published, as `changelog tail --json` prints it."""
        if not (self.log / "log").is_dir():
            return []
        return [
            msgspec.json.decode(message_line(record))
            for rows in read_log(self.log, entity=entity)
            for record in batch.records(rows)
        ]

    def state(self, entity: str) -> dict[str, Any]:
        """What the changelog makes of an entity: key to current row."""
        folded: dict[str, Any] = {}
        for message in self.messages(entity):
            folded.pop(message["key"], None)
            if message["value"]["current"] is not None:
                folded[message["key"]] = message["value"]["current"]
        return folded

    def ops(self, entity: str) -> list[tuple[str, str]]:
        """Kind and key of each change, in order."""
        return [(each["value"]["provenance"]["source"]["op"], each["key"]) for each in self.messages(entity)]

    @property
    def checkpoint(self) -> Checkpoint:
        """How far the changelog is."""
        found = read_checkpoint(self.log)
        assert found is not None
        return found

    def is_read(self) -> bool:
        """Whether all tables are read to their ends."""
        return is_read(read_checkpoint(self.log))


def _said(line: str) -> list[str]:
    """A line for people as it is, the log event of a service that fails as such lines; no other event."""
    if not line.startswith("{"):
        return [line]
    event = json.loads(line)
    return f"changelog: {event['error']}".splitlines() if event["event"] == "service failed" else []


class Running:
    """A service that runs in a thread."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._error: ChangelogError | None = None
        self._said = io.StringIO()
        logs.configure(self._said, verbose=False)
        self._thread = threading.Thread(target=self._run, name="service")
        self._thread.start()

    def _run(self) -> None:
        try:
            self._service.run()
        except ChangelogError as error:
            self._error = error

    def until(self, reached: Callable[[], bool]) -> None:
        """Waits; a service that ended meanwhile fails the test."""
        deadline = time.monotonic() + PATIENCE_S
        while not reached():
            self.check()
            assert self._thread.is_alive() or reached(), "the service has ended"
            assert time.monotonic() < deadline, f"nothing comes of it; the service said {self.events()}"
            time.sleep(0.02)

    def ended(self) -> ChangelogError:
        """What the service ends with, by itself."""
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        error, self._error = self._error, None
        assert error is not None, "the service was content"
        assert "\n" not in str(error)
        return error

    def stop(self) -> None:
        """Drains it."""
        self._service.stop()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the service does not stop"

    def check(self) -> None:
        """Raises what it failed with."""
        if self._error is not None:
            raise self._error

    def events(self) -> list[dict[str, Any]]:
        """What it logged."""
        return [json.loads(line) for line in self._said.getvalue().splitlines()]

    @property
    def phase(self) -> str:
        """What `/ready` says, `not ready` if it is not."""
        try:
            return str(json.loads(self.get("ready"))["phase"])
        except urllib.error.HTTPError as error:
            error.close()
            return "not ready"

    def get(self, page: str) -> str:
        """What it serves."""
        [listen] = [each["listen"] for each in self.events() if each["event"] == "service started"]
        with _DIRECT.open(f"http://{listen}/{page}", timeout=PATIENCE_S) as answer:
            return str(answer.read().decode())

    def said(self, event: str) -> bool:
        """Whether it logged this."""
        return any(each["event"] == event for each in self.events())


@contextlib.contextmanager
def _deadline() -> Iterator[None]:
    """Ends a service that goes on where it should have refused, and a command that waits for what does not come.

    Of SIGTERM a command would die, and with it the worker that runs the tests.
    """
    timer = threading.Timer(PATIENCE_S, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
