"""`changelog demo`: the whole story on this machine, over a PostgreSQL of its own.

A PostgreSQL of its own with a hotel's bookings, services that write to it, and the real `changelog run`, which reads
the tables while they are written to and then streams, into files or to Kafka. It ends with one order's history.
"""

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psycopg
from rich.console import Console
from rich.text import Text

from connectors import show
from connectors.demo import booking
from connectors.demo.interrupts import Interrupts
from connectors.demo.reader import Reader, checkpoint_of
from connectors.demo.screen import REFRESHES_PER_S, Screen
from connectors.demo.service import Service, serving
from connectors.demo.stage import Stage
from connectors.demo.stopwatch import Stopwatch
from connectors.servers.postgres import Server, temporary_server
from connectors.sinks import Log
from envelope.columnar import batch
from envelope.errors import ChangelogError, Kind

SNAPSHOT_TIMEOUT_S = 120.0
CATCH_UP_TIMEOUT_S = 60.0
CONFIG_NAME = "changelog.toml"
GUEST = 42
"""Whose order the story is about."""


OpenLog = Callable[[Path], Log]
"""Gives the changelog that a configuration file names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What there is when the story is told: the database still runs, at `dsn`, and the service is stopped.

    `config` is its configuration, in `folder`, and `log` its changelog. `states` are the rows of each entity's table as
    JSON text by key, `order` is the key of the order that the story was about.
    """

    console: Console
    watch: Stopwatch
    folder: Path
    config: Path
    dsn: str
    log: Log
    states: Mapping[str, Mapping[str, str]]
    order: int


Sequel = Callable[[Told], Mapping[str, str]]
"""Goes on with the story; gives what it left in the folder, by path what it is."""


def run(
    console: Console,
    *,
    stage: Stage,
    open_log: OpenLog,
    path: Path | None,
    seconds: float,
    seed: int,
    sequel: Sequel | None = None,
) -> None:
    """Tells the story on `console`; leaves its files in `path`, a new temporary folder by default.

    The services write for about `seconds` after the snapshot. Whatever ends it, nothing is left running. Raises
    ChangelogError, and KeyboardInterrupt for each signal that ends programs.
    """
    folder = _new_folder(path)
    try:
        with Interrupts() as interrupts, ExitStack() as started:
            try:
                told = _tell(console, stage, open_log, folder, seconds, seed, interrupts, started)
                left = sequel(told) if sequel is not None else {}
            finally:
                with interrupts.held():
                    started.close()
            _end(stage, told, left)
    except KeyboardInterrupt:
        shutil.rmtree(folder)
        console.print("\nstopped: nothing is left running, and no file is left")
        raise


def _tell(
    console: Console,
    stage: Stage,
    open_log: OpenLog,
    folder: Path,
    seconds: float,
    seed: int,
    interrupts: Interrupts,
    started: ExitStack,
) -> Told:
    """The story up to its end."""
    console.print(Text("changelog demo", style="bold"), "- a hotel's booking database, and who changed what in it\n")
    watch = Stopwatch(console)
    with interrupts.held():
        sink = started.enter_context(stage.opened(watch.lap))
    with interrupts.held():
        server = started.enter_context(temporary_server(settings={"fsync": "off", "max_wal_size": "2GB"}))
    booking.build(server.dsn())
    watch.lap(f"PostgreSQL {_version(server)} is up on port {server.port}, with {booking.ROWS:,} rows in four tables")

    config = folder / CONFIG_NAME
    config.write_text(booking.CONFIG.format(dsn=server.dsn(), sink=sink), "utf-8")
    log = open_log(config)
    with interrupts.held():
        service = started.enter_context(serving(config))
    reader = Reader(log)
    watch.say("`changelog run` reads the tables while six services write, then streams; this reads along:\n")
    with Screen(console, reader) as screen:
        order = _live(server, service, log, reader, screen, seconds, seed)
    service.stop()
    reader.close()
    console.print()
    _compare(watch, server, reader)
    stage.view(console, watch.say, reader.states)
    _history(console, watch, log, order)
    return Told(
        console=console,
        watch=watch,
        folder=folder,
        config=config,
        dsn=server.dsn(),
        log=log,
        states=reader.states,
        order=order,
    )


def _live(server: Server, service: Service, log: Log, reader: Reader, screen: Screen, seconds: float, seed: int) -> int:
    """Snapshot and stream, under writes; gives the id of the story's order once its last change was read."""

    def wait(until: Callable[[], bool], timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while not (done := until()) and time.monotonic() < deadline:
            service.check()
            reader.check()
            screen.tick()
            time.sleep(1 / REFRESHES_PER_S)
        return done

    chapters = booking.story(GUEST)
    order: int | None = None
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        with booking.Traffic(server.dsn(), seed):
            if not wait(lambda: _snapshot_is_complete(log), SNAPSHOT_TIMEOUT_S):
                raise ChangelogError(Kind.LIMIT, f"the tables were not read within {SNAPSHOT_TIMEOUT_S:.0f} s")
            screen.happened("all tables are read; from here on the changes alone")
            for chapter in chapters[:-1]:
                order = booking.tell(connection, chapter, order) or order
                screen.happened(_whose(chapter, order))
                wait(lambda: False, seconds / len(chapters))
        booking.tell(connection, chapters[-1], order)
        screen.happened(_whose(chapters[-1], order))
    if not wait(lambda: reader.last == booking.LAST, CATCH_UP_TIMEOUT_S):
        raise ChangelogError(Kind.LIMIT, f"the changelog did not catch up within {CATCH_UP_TIMEOUT_S:.0f} s")
    assert order is not None
    return order


def _whose(chapter: booking.Chapter, order: int | None) -> str:
    who = "somebody in psql, without a stamp," if chapter.stamp is None else chapter.stamp.service_name
    return f"{who} writes to order {order}"


def _snapshot_is_complete(log: Log) -> bool:
    checkpoint = checkpoint_of(log)
    return checkpoint is not None and all(stored["complete"] for stored in checkpoint.windows.values())


def _compare(watch: Stopwatch, server: Server, reader: Reader) -> None:
    """The changelog folded against the tables, row by row."""
    total = 0
    for entity, (_, columns) in booking.COMPARED.items():
        table, folded = booking.rows_of(server.dsn(), entity), reader.state(entity, columns)
        wrong = sum(table.get(key) != folded.get(key) for key in table.keys() | folded.keys())
        if wrong:
            raise ChangelogError(Kind.DIVERGED, f"{wrong} rows of {entity} differ between changelog and table")
        total += len(table)
    watch.lap(f"the service is stopped; the changelog, folded, equals the tables: {total:,} rows compared")


def _history(console: Console, watch: Stopwatch, log: Log, order: int) -> None:
    found = [record for rows in log.read(entity="order", key=str(order)) for record in batch.records(rows)]
    watch.say(f"One order's life, as `changelog history order {order}` tells it:\n")
    for line in show.history(found):
        console.print(line)


def _end(stage: Stage, told: Told, left: Mapping[str, str]) -> None:
    console, folder = told.console, told.folder
    console.print(f"\nAll is stopped again. The files are in {folder}:")
    console.print("   changelog.toml          the configuration")
    console.print("   service.log             what the service logged")
    readable = stage.ending(console, folder)
    for path, what in left.items():
        console.print(f"   {path:<23} {what}", soft_wrap=True)
    if not readable:
        return
    console.print("\nLook around:")
    for words in (f"history order {told.order}", f"history guest {GUEST}", "tail --no-follow"):
        console.print(f"   {_command()} {words} --config {folder / CONFIG_NAME}", soft_wrap=True)


def _command() -> str:
    """How this program was called."""
    called = Path(sys.argv[0])
    if called.name == "changelog":
        return called.name
    python = Path(sys.executable)
    return f"{python.relative_to(Path.cwd()) if python.is_relative_to(Path.cwd()) else python} -m connectors"


def _new_folder(path: Path | None) -> Path:
    if path is None:
        return Path(tempfile.mkdtemp(prefix="changelog-demo-"))
    try:
        path.mkdir(parents=True)
    except FileExistsError as error:
        raise ChangelogError(Kind.USAGE, f"{path} exists already", hint="name a new folder") from error
    except OSError as error:
        raise ChangelogError(Kind.STORAGE, f"{path} cannot be made ({error.strerror})") from error
    return path.absolute()


def _version(server: Server) -> str:
    with psycopg.connect(server.dsn()) as connection:
        return ".".join(str(part) for part in divmod(connection.info.server_version, 10_000))
