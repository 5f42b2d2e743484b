"""Starts the Java virtual machine in this process, and turns its log lines into ours."""

import gc
import logging
import os
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import jpype
import structlog

from changelog.envelope.errors import ChangelogError, Kind

_ERROR, _WARNING, _INFO = 1000, 900, 800
"""The levels of Java's own log (`java.util.logging.Level`)."""

_log = structlog.get_logger("java")

_references: list[Any] = []
"""Loggers and a handler of Java. They are kept here because Java forgets the level of a logger without references."""

_LIBRARIES = "ROCKSDB_SHAREDLIB_DIR"
"""The environment variable for the folder into which RocksDB copies its library from the jar. By default, this is the
folder for temporary files, and a process that a signal ends leaves its copy there.
"""

_HEAP_AT_START_MIB = 512
"""The size of the heap at the start, unless `heap_mib` is less. In a heap that begins smaller, garbage is collected
several times as often while changes are applied, and rows cannot be read during a collection.
"""

NICENESS: Final = 5
"""The niceness of threads that apply changes: their priority is lower than that of other threads. So requests for rows
do not wait for a core. Beside one other busy thread, a thread that applies changes still gets a quarter of a core.
"""

_PAUSE_MS = 5
"""How long a collection of garbage may take if rows are in Java's heap, in milliseconds: a goal, not a limit."""

_QUIET_LOGGERS = (
    "org.apache.kafka.streams.kstream.internals.KTableSource",
    "org.apache.kafka.streams.processor.internals.RecordQueue",
)
"""The loggers that warn of each message that does not count, or is older than its row. Such messages are usual."""


def start(program: str, jars: Path, *, heap_mib: int, has_rows: bool = False, libraries: Path | None = None) -> None:
    """Starts the virtual machine of `program`, the path of `java`, with the jars of a folder. RocksDB keeps a copy of
    its library in the folder `libraries`. `has_rows` says whether the rows are in Java's heap.

    Does nothing if a virtual machine runs already: a process has only one. Raises ChangelogError (PRECONDITION) if it
    does not start.
    """
    if jpype.isJVMStarted():
        return
    library = _library(program)
    options = [
        f"-Xms{min(_HEAP_AT_START_MIB, heap_mib)}m",
        f"-Xmx{heap_mib}m",
        *_collector(has_rows=has_rows),
        # After a full collection of Python's garbage, JPype asks Java to collect its garbage, too. This would stop all
        # readers of rows for 50 to 200 ms.
        "-XX:+DisableExplicitGC",
        "-XX:+ExitOnOutOfMemoryError",
        "-XX:-UsePerfData",
        "-Xrs",  # SIGTERM and SIGINT stay Python's
        "-Djava.awt.headless=true",
    ]
    if libraries is not None:
        os.environ.setdefault(_LIBRARIES, str(libraries.absolute()))
    try:
        jpype.startJVM(*options, jvmpath=library, classpath=class_path(jars), convertStrings=False, interrupt=True)
    except (OSError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise ChangelogError(Kind.PRECONDITION, f"Java does not start: {reason}", hint="see [serve.streams]") from error
    _take_log()
    # After each collection of Java's garbage, JPype starts a full collection of Python's garbage. That takes some 75 ms
    # of CPU, and stops all threads of Python. It is faster if it leaves out the objects that exist by now; most of them
    # never become garbage.
    gc.freeze()


def start_yielding(start: Callable[[], None]) -> None:
    """Calls `start`. On Linux, the threads that it starts have a lower priority than other threads (`NICENESS`).

    A thread of Linux inherits the priority of the thread that starts it, so `start` is called in a thread of its own.
    """

    def run() -> None:
        threads = Threads()
        threads.enter()
        if sys.platform == "linux":
            with suppress(OSError):  # without the right to do so, only requests for rows take longer
                os.nice(NICENESS)  # of this thread only
        start()

    with ThreadPoolExecutor(1, "views-start") as starter:
        starter.submit(run).result()


class Threads(threading.local):
    """Detaches the threads that called `enter` from Java when they end.

    JPype attaches threads by itself, but does not detach them. Without this class, Java would keep the memory of each
    thread that ended.
    """

    def __init__(self) -> None:
        self._end = _ThreadEnd()

    def enter(self) -> None:
        """Notes that this thread calls Java. The constructor, which runs once in each thread, already does this."""


class _ThreadEnd:
    """Detaches a thread from Java when this object is deleted. The object is in a thread-local variable; a thread
    deletes these variables last.
    """

    def __del__(self) -> None:
        jpype.java.lang.Thread.detach()


def _collector(*, has_rows: bool) -> Sequence[str]:
    """Returns the options for collecting garbage.

    The serial collector needs the least CPU and memory. But no row can be read while it copies rows in the heap. In our
    benchmark, that takes 25 ms for new rows, and now and then 150 ms for all rows.
    """
    return ["-XX:+UseG1GC", f"-XX:MaxGCPauseMillis={_PAUSE_MS}"] if has_rows else ["-XX:+UseSerialGC"]


def class_path(jars: Path) -> Sequence[str]:
    """Returns the paths of all jars of a folder."""
    return [str(jar.absolute()) for jar in sorted(jars.glob("*.jar"))]


def _library(java: str) -> str:
    """Returns the shared library of the virtual machine that the program `java` starts."""
    home = Path(java).resolve().parents[1]
    library = next(iter(sorted(home.glob("lib/server/libjvm.*"))), None)
    if library is None:
        hint = "set JAVA_HOME to the folder of a Java 17 or newer"
        raise ChangelogError(Kind.PRECONDITION, f"the folder {home} has no lib/server/libjvm.so", hint=hint)
    return str(library)


def _take_log() -> None:
    """Sends the lines of Java's log to our log. Java gets a handler that prints nothing. The handler's filter logs each
    line here.
    """
    util_logging = jpype.JPackage("java").util.logging

    @jpype.JImplements(util_logging.Filter)
    class ToOurLog:
        @jpype.JOverride
        def isLoggable(self, record: Any) -> bool:  # noqa: N802 - Java's name
            _log_record(record)
            return False

    util_logging.LogManager.getLogManager().reset()
    handler = util_logging.ConsoleHandler()
    handler.setLevel(util_logging.Level.ALL)
    handler.setFilter(ToOurLog())
    root = util_logging.Logger.getLogger("")
    root.setLevel(util_logging.Level.WARNING)
    root.addHandler(handler)
    for name in _QUIET_LOGGERS:
        logger = util_logging.Logger.getLogger(name)
        logger.setLevel(util_logging.Level.SEVERE)
        _references.append(logger)
    _references.append(handler)


def _log_record(record: Any) -> None:
    value = int(record.getLevel().intValue())
    level = logging.ERROR if value >= _ERROR else logging.WARNING if value >= _WARNING else logging.DEBUG
    thrown = record.getThrown()
    cause = {} if thrown is None else {"cause": str(thrown.toString())}
    _log.log(level, "kafka streams", said=str(record.getMessage()), logger=str(record.getLoggerName()), **cause)
