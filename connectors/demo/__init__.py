"""Runs `changelog demo`, a demonstration on this machine, with its own PostgreSQL or MariaDB.

The database holds a hotel's bookings, and several sample applications write to it. The real service, `changelog run`,
reads the tables while the applications write to them, and then streams the changes into files or to Kafka. At the end
the demo compares the changelog with the tables, and shows the history of one order, and its *blame*: who set each of
its attributes.

The *story* is a fixed sequence of changes to that order; each change is a *chapter*. The *stage* is what differs
between a demo with files and a demo with Kafka, and `demo.database` has what differs between the databases. A *sequel*
is what `changelog.spark_jobs.demo` adds at the end.
"""

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from changelog.connectors import show
from changelog.connectors.demo import booking
from changelog.connectors.demo.database import DemoDatabase, OpenDatabase
from changelog.connectors.demo.interrupts import Interrupts
from changelog.connectors.demo.reader import Reader, checkpoint_of
from changelog.connectors.demo.screen import REFRESHES_PER_S, Screen
from changelog.connectors.demo.service import ServiceProcess, serving
from changelog.connectors.demo.stage import DemoStage
from changelog.connectors.demo.stopwatch import Stopwatch
from changelog.connectors.history.key_blame import key_state
from changelog.connectors.history.key_history import key_history
from changelog.connectors.rendering.show_blame import blame
from changelog.connectors.sinks import Log
from changelog.envelope.errors import ChangelogError, Kind

SNAPSHOT_TIMEOUT_S = 120.0
CATCH_UP_TIMEOUT_S = 60.0
CONFIG_NAME = "changelog.toml"
GUEST = 42
"""The id of the guest whose order the story is about."""

_LOOK_AROUND = (
    "history order {order}",
    "blame order {order}",
    "who --identifier pay-5510",
    "tail --no-follow",
    "console",
)


OpenLog = Callable[[Path], Log]
"""Opens the changelog that a configuration file names, for reading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The state at the end of the story: the database still runs, but the service has stopped.

    `folder` has the demo's files; `config` is the service's configuration file there. `log` reads the changelog, and
    `watch` prints steps with their numbers. `states` has, for each entity, the newest state of each row in the
    changelog: JSON text, by key. `order` is the key of the order that the story is about.
    """

    console: Console
    watch: Stopwatch
    folder: Path
    config: Path
    log: Log
    states: Mapping[str, Mapping[str, str]]
    order: int


Sequel = Callable[[Ending], Mapping[str, str]]
"""Adds a part at the end of the demo. Returns a description of each file that this part left in the folder, by the
file's path."""


def run(
    console: Console,
    *,
    open_database: OpenDatabase,
    stage: DemoStage,
    open_log: OpenLog,
    path: Path | None,
    seconds: float,
    seed: int,
    sequel: Sequel | None = None,
) -> Path | None:
    """Runs the demo on `console`, and leaves its files in `path`, by default a new temporary folder.

    Returns the configuration file there; None if the changelog can no longer be read, because the demo has stopped the
    broker that stored it.

    After all tables were read, the sample applications write for about `seconds` more. However the demo ends, nothing
    that it started is left running. Raises ChangelogError if something fails. At SIGINT, SIGTERM and SIGHUP, deletes
    the folder and raises KeyboardInterrupt.
    """
    folder = _new_folder(path)
    try:
        with Interrupts() as interrupts, ExitStack() as started:
            try:
                ending = _perform(console, open_database, stage, open_log, folder, seconds, seed, interrupts, started)
                files = sequel(ending) if sequel is not None else {}
            finally:
                with interrupts.delayed():
                    started.close()
            return ending.config if _end(stage, ending, files) else None
    except KeyboardInterrupt:
        shutil.rmtree(folder)
        console.print("\nstopped: no process and no file is left")
        raise


def _perform(
    console: Console,
    open_database: OpenDatabase,
    stage: DemoStage,
    open_log: OpenLog,
    folder: Path,
    seconds: float,
    seed: int,
    interrupts: Interrupts,
    started: ExitStack,
) -> Ending:
    """Starts the servers and the service, performs the story, and shows its results. Returns the state at the end."""
    console.print(Text("changelog demo", style="bold"), "- a hotel's booking database, and who changed what in it\n")
    watch = Stopwatch(console)
    with interrupts.delayed():
        sink = started.enter_context(stage.opened(watch.lap))
    with interrupts.delayed():
        database = started.enter_context(open_database())
    database.build()
    watch.lap(f"{database.label} is up on port {database.port}, with {booking.ROWS:,} rows in four tables")

    config = folder / CONFIG_NAME
    text = booking.CONFIG.format(source=database.source, sink=sink, schema=database.schema)
    config.write_text(text, "utf-8")
    log = open_log(config)
    with interrupts.delayed():
        service = started.enter_context(serving(config))
    reader = Reader(log)
    watch.say(
        "`changelog run` reads the tables while six sample applications write, and then streams; a reader counts the "
        "changes:\n"
    )
    with Screen(console, reader) as screen:
        order = _live(database, service, log, reader, screen, seconds, seed)
    service.stop()
    reader.close()
    console.print()
    _compare(watch, database, reader)
    stage.view(console, watch.say, reader.states)
    _history(console, watch, log, order)
    return Ending(
        console=console,
        watch=watch,
        folder=folder,
        config=config,
        log=log,
        states=reader.states,
        order=order,
    )


def _live(
    database: DemoDatabase,
    service: ServiceProcess,
    log: Log,
    reader: Reader,
    screen: Screen,
    seconds: float,
    seed: int,
) -> int:
    """Lets the sample applications write until all tables are read, and during the story, except for its last chapter.

    After the reader has read the last change of the story, returns the id of the story's order.
    """

    def wait(until: Callable[[], bool], timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while not (is_done := until()) and time.monotonic() < deadline:
            service.check()
            reader.check()
            screen.tick()
            time.sleep(1 / REFRESHES_PER_S)
        return is_done

    chapters = booking.story(GUEST)
    order: int | None = None
    with database.session() as session:
        with booking.Traffic(database, seed):
            if not wait(lambda: _snapshot_is_complete(log), SNAPSHOT_TIMEOUT_S):
                raise ChangelogError(Kind.LIMIT, f"the tables were not read within {SNAPSHOT_TIMEOUT_S:.0f} s")
            screen.happened("all tables are read; only changes follow")
            for chapter in chapters[:-1]:
                order = booking.perform(session, chapter, order) or order
                screen.happened(_summary(chapter, order))
                wait(lambda: False, seconds / len(chapters))
        booking.perform(session, chapters[-1], order)
        screen.happened(_summary(chapters[-1], order))
    if not wait(lambda: reader.newest_identifier == booking.LAST, CATCH_UP_TIMEOUT_S):
        raise ChangelogError(Kind.LIMIT, f"the changelog did not catch up within {CATCH_UP_TIMEOUT_S:.0f} s")
    assert order is not None
    return order


def _summary(chapter: booking.Chapter, order: int | None) -> str:
    writer = "somebody at an SQL prompt, without a stamp," if chapter.stamp is None else chapter.stamp.service_name
    return f"{writer} writes to order {order}"


def _snapshot_is_complete(log: Log) -> bool:
    checkpoint = checkpoint_of(log)
    return checkpoint is not None and all(progress["complete"] for progress in checkpoint.windows.values())


def _compare(watch: Stopwatch, database: DemoDatabase, reader: Reader) -> None:
    """Compares the reader's states with the rows of the tables. Raises ChangelogError (DIVERGED) if any row differs."""
    total = 0
    with database.session() as session:
        for entity, (_, columns) in booking.COMPARED.items():
            table, folded = booking.rows_of(session, entity), reader.state(entity, columns)
            differing = sum(table.get(key) != folded.get(key) for key in table.keys() | folded.keys())
            if differing:
                raise ChangelogError(Kind.DIVERGED, f"{differing} rows of {entity} differ between changelog and table")
            total += len(table)
    watch.lap(f"the service is stopped; the state in the changelog equals the tables: {total:,} rows compared")


def _history(console: Console, watch: Stopwatch, log: Log, order: int) -> None:
    watch.say(f"The life of one order, as `changelog history order {order}` shows it:\n")
    for line in show.history(key_history(log, "order", str(order)), key=str(order)):
        console.print(line)
    watch.say(f"Who set each of its attributes, as `changelog blame order {order}` shows it:\n")
    for part in blame("order", str(order), key_state(log, "order", str(order)), width=console.width):
        console.print(part)


def _end(stage: DemoStage, ending: Ending, files: Mapping[str, str]) -> bool:
    """Prints what the demo leaves. Returns whether its changelog can still be read."""
    console, folder = ending.console, ending.folder
    console.print(f"\nEverything is stopped. The files are in {folder}:")
    console.print("   changelog.toml          the configuration")
    console.print("   service.log             what the service logged")
    readable = stage.ending(console, folder)
    for path, description in files.items():
        console.print(f"   {path:<23} {description}", soft_wrap=True)
    if not readable:
        return False
    console.print("\nLook around:")
    for words in _LOOK_AROUND:
        command = words.format(order=ending.order)
        console.print(f"   {own_command()} {command} --config {folder / CONFIG_NAME}", soft_wrap=True)
    return True


def own_command() -> str:
    """Returns the command with which a user can run `changelog` in the same way as this process was started."""
    program = Path(sys.argv[0])
    if program.name == "changelog":
        return program.name
    python = Path(sys.executable)
    return f"{python.relative_to(Path.cwd()) if python.is_relative_to(Path.cwd()) else python} -m changelog"


def _new_folder(path: Path | None) -> Path:
    if path is None:
        return Path(tempfile.mkdtemp(prefix="changelog-demo-"))
    try:
        path.mkdir(parents=True)
    except FileExistsError as error:
        raise ChangelogError(Kind.USAGE, f"{path} already exists", hint="name a new folder") from error
    except OSError as error:
        raise ChangelogError(Kind.STORAGE, f"{path} cannot be made ({error.strerror})") from error
    return path.absolute()
