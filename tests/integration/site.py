"""Runs a service and commands as an operator does: with a database, and a configuration in a folder."""

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
from functools import cached_property
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
from tests.patience import PATIENCE_S, rest
from tests.servers import SERVICE_THREAD

_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))

FileVersions = dict[Path, tuple[int, int, int, int]]
"""Maps each file to its inode, its size in bytes, and two times in nanoseconds: the last change of its content, and the
last change of its attributes.
"""

HEAD = """
name = {name}
source = {{ kind = "postgres", dsn = {dsn} }}
sink = {{ path = {path}, commit_seconds = 0.05 }}
service = {{ listen = "127.0.0.1:0" }}
"""


class Site:
    """A database at `dsn`, and in `folder` the configuration of one service and the files of its changelog.

    The service, and so its replication slot, has the name of the database, because the name of a slot must be unique on
    the whole server.
    """

    def __init__(self, dsn: str, folder: Path) -> None:
        self.dsn = dsn
        self.name = str(psycopg.conninfo.conninfo_to_dict(dsn)["dbname"])
        self.folder = folder
        self.config = folder / "changelog.toml"
        self.log = folder / "log"

    def configure(self, rest: str, *, dsn: str | None = None, path: str = "log") -> None:
        """Writes the configuration. `rest` is the text after the lines of `HEAD`."""
        values = {"name": self.name, "dsn": dsn or self.dsn, "path": path}
        head = HEAD.format(**{key: json.dumps(value) for key, value in values.items()})
        self.config.write_text(head + rest, "utf-8")

    def sql(self, *statements: str) -> list[tuple[Any, ...]]:
        """Runs each statement in a transaction of its own. Returns the rows of the last statement."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for statement in statements:
                cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def call(self, *words: str) -> tuple[int, list[str]]:
        """Runs `changelog WORDS` in this process.

        Returns the exit code and the lines on stderr. If the service failed, the error is one of these lines. All other
        lines of the service's log are left out.
        """
        stderr = io.StringIO()
        with contextlib.redirect_stderr(stderr), _deadline():
            try:
                code = cli.main([words[0], "--config", str(self.config), *words[1:]])
            except SystemExit as error:  # raised by the parser of the command line
                code = int(error.code or 0)
        return code, [text for line in stderr.getvalue().splitlines() for text in _shown(line)]

    def refused(self, *words: str, code: int = 3) -> str:
        """Returns the only line that `changelog WORDS` prints when it fails. Without words, the command is `run`."""
        exit_code, lines = self.call(*(words or ("run",)))
        assert exit_code == code, lines
        assert len(lines) == 1, lines
        assert lines[0].startswith("changelog: ")
        return lines[0].removeprefix("changelog: ")

    @contextlib.contextmanager
    def running(self, *, accept: bool = False, accept_cluster: bool = False) -> Iterator["Running"]:
        """Runs the service in a thread while the body runs, and then stops it.

        At the end, raises the service's error, unless `Running.ended` has returned it before.
        """
        settings = config.load(self.config, os.environ)
        service = Running(Service(settings, accept_settings=accept, accept_cluster=accept_cluster))
        try:
            yield service
        finally:
            service.stop()
        service.check()

    def messages(self, entity: str | None = None) -> list[dict[str, Any]]:
        """Returns the published messages, as `changelog tail --json` prints them."""
        if not (self.log / "log").is_dir():
            return []
        return [msgspec.json.decode(line) for line in self._lines(entity)]

    @cached_property
    def _last_lines(self) -> dict[str | None, tuple[FileVersions, list[str]]]:
        """For each entity, the lines that `_lines` returned last, and the versions of the files that it had read."""
        return {}

    def _lines(self, entity: str | None) -> list[str]:
        """Returns the messages as lines of JSON. A test that waits for a message calls this method many times, so it
        reads the changelog again only if one of the changelog's files has changed.
        """
        versions = _file_versions(self.log)
        last_versions, lines = self._last_lines.get(entity, (None, []))
        if versions is None or versions != last_versions:
            batches = read_log(self.log, entity=entity)
            lines = [message_line(record) for rows in batches for record in batch.records(rows)]
        if versions is not None:
            self._last_lines[entity] = (versions, lines)
        return lines

    def state(self, entity: str) -> dict[str, Any]:
        """Returns the rows, by key, that result from the entity's messages."""
        rows: dict[str, Any] = {}
        for message in self.messages(entity):
            rows.pop(message["key"], None)
            if message["value"]["current"] is not None:
                rows[message["key"]] = message["value"]["current"]
        return rows

    def ops(self, entity: str) -> list[tuple[str, str]]:
        """Returns the operation and the key of each change, in order."""
        return [(message["value"]["provenance"]["source"]["op"], message["key"]) for message in self.messages(entity)]

    @property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint that is stored with the changelog."""
        checkpoint = read_checkpoint(self.log)
        assert checkpoint is not None
        return checkpoint

    def is_read(self) -> bool:
        """Returns whether all tables are completely read."""
        return is_read(read_checkpoint(self.log))


def _file_versions(folder: Path) -> FileVersions | None:
    """Returns the version of each file below `folder`. The result changes if a file is added, replaced, written or
    removed. Returns None if a file disappears meanwhile.
    """
    try:
        files = {path: path.stat() for path in folder.rglob("*")}
    except FileNotFoundError:
        return None
    return {
        path: (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns) for path, status in files.items()
    }


def _shown(line: str) -> list[str]:
    """Returns the part of a line that `Site.call` returns. This is the whole line if it is plain text, the error if the
    line is the event `service failed`, and nothing if the line is another event of the service's log.
    """
    if not line.startswith("{"):
        return [line]
    event = json.loads(line)
    return f"changelog: {event['error']}".splitlines() if event["event"] == "service failed" else []


class Running:
    """A service that runs in a thread."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._error: ChangelogError | None = None
        self._output = io.StringIO()
        logs.configure(self._output, verbose=False)
        self._thread = threading.Thread(target=self._run, name=SERVICE_THREAD)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._service.run()
        except ChangelogError as error:
            self._error = error

    def until(self, condition: Callable[[], bool]) -> None:
        """Waits until `condition` returns true. Fails the test if the service ends first."""
        deadline = time.monotonic() + PATIENCE_S
        began = time.thread_time()
        while not condition():
            self.check()
            assert self._thread.is_alive() or condition(), "the service has ended"
            assert time.monotonic() < deadline, f"the condition was not met in time; the service logged {self.events()}"
            began = rest(began, 0.02)

    def ended(self) -> ChangelogError:
        """Waits until the service ends by itself. Returns its error."""
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        error, self._error = self._error, None
        assert error is not None, "the service ended without an error"
        assert "\n" not in str(error)
        return error

    def stop(self) -> None:
        """Stops the service. Before it ends, it stores what it has read."""
        self._service.stop()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the service does not stop"

    def check(self) -> None:
        """Raises the error with which the service failed, if it did."""
        if self._error is not None:
            raise self._error

    def events(self) -> list[dict[str, Any]]:
        """Returns the events that the service logged."""
        return [json.loads(line) for line in self._output.getvalue().splitlines()]

    @property
    def phase(self) -> str:
        """The phase that `/ready` reports, or `not ready`."""
        try:
            return str(json.loads(self.get("ready"))["phase"])
        except urllib.error.HTTPError as error:
            error.close()
            return "not ready"

    def get(self, page: str) -> str:
        """Returns a page that the service serves."""
        [listen] = [event["listen"] for event in self.events() if event["event"] == "service started"]
        with _DIRECT.open(f"http://{listen}/{page}", timeout=PATIENCE_S) as answer:
            return str(answer.read().decode())

    def said(self, event: str) -> bool:
        """Returns whether the service logged an event of this name."""
        return any(entry["event"] == event for entry in self.events())


@contextlib.contextmanager
def _deadline() -> Iterator[None]:
    """Interrupts a command that does not end, such as a service that should have refused to run.

    Sends SIGINT, because SIGTERM would also kill the process that runs the tests.
    """
    timer = threading.Timer(PATIENCE_S, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
