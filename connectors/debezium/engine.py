"""Runs a connector of Debezium for a Python program, and passes the connector's events to a function, in batches."""

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from changelog.connectors.debezium import jars as sets
from changelog.connectors.debezium.events import ChangeEvent, events
from changelog.connectors.debezium.frames import End, HistoryRecord, LogLine
from changelog.connectors.debezium.launch import Launch
from changelog.connectors.debezium.process import EngineProcess
from changelog.connectors.debezium.store import Store
from changelog.envelope.errors import ChangelogError, Kind

LOGGER = logging.getLogger("changelog.debezium")

READ_S = 60.0
"""One wait for events lasts at most this many seconds. No result depends on this number."""

Handler = Callable[[Sequence[ChangeEvent]], object]
Value = str | int | float | bool


class DebeziumEngine:
    """Runs a connector of Debezium in a process of its own, and passes the connector's events to a handler.

    `config` has the connector's properties, as Debezium documents them. `store` keeps the position at which the
    connector continues. `jars` is a folder with Debezium's jars; the default is the folder that `changelog debezium
    install` fills. `heap_mib` is the size of Java's heap. While the handler works, Debezium sends at most
    `in_flight_bytes` of further events. Debezium's log goes to the logger `changelog.debezium`. The constructor raises
    ChangelogError (USAGE) if the value of a property is not a str, a number or a bool.
    """

    def __init__(
        self,
        config: Mapping[str, Value],
        *,
        store: Store,
        jars: str | os.PathLike[str] | None = None,
        heap_mib: int = 512,
        in_flight_bytes: int = 16 << 20,
    ) -> None:
        self._properties = {name: _property(name, value) for name, value in config.items()}
        self._store = store
        self._jars = None if jars is None else Path(jars)
        self._heap_mib = heap_mib
        self._in_flight_bytes = in_flight_bytes
        self._lock = threading.RLock()  # a signal handler may call `close` while this thread holds it
        self._runner: int | None = None
        self._process: EngineProcess | None = None
        self._closing = False
        self._idle = threading.Event()
        self._idle.set()

    def run(self, handler: Handler) -> None:
        """Passes events to `handler` until `close` is called.

        Each call receives the next events, in Debezium's order. When the call returns, its events count as processed:
        their offset is stored, and no later run passes them again. When the call raises, the error ends the run, and
        the next run passes the same events again. If this process is killed during a call, only the events of that call
        come again. During a snapshot, more events come again, because Debezium begins the snapshot again.

        Raises ChangelogError if this engine already runs, if Java or a jar is missing, if the configuration is wrong,
        or if the store or the connector fails. The error's kind is CONNECTION if the database cannot be reached. To
        connect again, call `run` again.
        """
        with self._lock:
            if self._runner is not None:
                raise ChangelogError(Kind.IN_USE, "this engine is already running")
            self._runner = threading.get_ident()
            self._closing = False
            self._idle.clear()
        try:
            self._run(handler)
        finally:
            with self._lock:
                self._runner = None
            self._idle.set()

    def close(self) -> None:
        """Ends the run after the present call of the handler, and waits for that end. Any thread may call this.

        A call in the thread that executes `run` (from the handler or a signal handler) does not wait.
        """
        with self._lock:
            self._closing = True
            if self._process is not None:
                self._process.wake()
            runner = self._runner
        if runner != threading.get_ident():
            self._idle.wait()

    def _run(self, handler: Handler) -> None:
        launch = self._launch()
        progress = self._store.open()
        try:
            process = EngineProcess(launch, progress.offsets, progress.history, _log)
            try:
                with self._lock:
                    self._process = process
                self._pass_on(process, handler)
            finally:
                with self._lock:
                    self._process = None
                process.close()
        finally:
            self._store.close()

    def _pass_on(self, process: EngineProcess, handler: Handler) -> None:
        history: list[bytes] = []
        while not self._closing:
            received = process.read(READ_S)
            match received:
                case None:
                    continue
                case End():
                    return
                case HistoryRecord():
                    history.append(received.content)
                case _:
                    handler(events(received))
                    self._store.commit(received.last_offsets(), history)
                    history = []
                    process.acknowledge(received.last)

    def _launch(self) -> Launch:
        level = LOGGER.getEffectiveLevel()
        launch = Launch(
            properties=self._properties,
            jars=self._jars or Path(),
            heap_mib=self._heap_mib,
            in_flight_bytes=self._in_flight_bytes,
            log_level=next((name for name in ("DEBUG", "INFO", "WARNING") if level <= getattr(logging, name)), "ERROR"),
        )
        launch.configuration()  # reports a mistake in the properties before missing jars
        return replace(launch, jars=sets.find(self._properties["connector.class"], self._jars, os.environ))


def _property(name: str, value: Value) -> str:
    if not isinstance(value, str | int | float):
        raise ChangelogError(Kind.USAGE, f"the property {name} must be a string, a number, true or false")
    return str(value).lower() if isinstance(value, bool) else str(value)


def _log(line: LogLine) -> None:
    cause = f" ({line.cause})" if line.cause else ""
    LOGGER.log(getattr(logging, line.level, logging.INFO), "%s: %s%s", line.logger, line.message, cause)
