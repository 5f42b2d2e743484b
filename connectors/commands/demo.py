"""`changelog demo`: runs the demonstration on this machine, from an empty database to the history of one order."""

import argparse
import os
import sys
from contextlib import suppress
from pathlib import Path

from changelog.connectors import config, demo, show
from changelog.connectors.commands import console
from changelog.connectors.config import FilesConfig
from changelog.connectors.demo import postgres
from changelog.connectors.demo.database import OpenDatabase
from changelog.connectors.demo.stage import DemoStage, FileStage
from changelog.connectors.terminal import say
from changelog.connectors.wiring import sinks, sources
from changelog.envelope.errors import ChangelogError, Kind

SECONDS = 6.0
SEED = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `changelog demo`."""
    parser.add_argument(
        "--path",
        type=Path,
        metavar="FOLDER",
        help="a new folder for the files of the demo; default: a temporary folder",
    )
    parser.add_argument(
        "--seconds",
        type=_seconds,
        default=SECONDS,
        metavar="N",
        help=f"for how many seconds the sample applications write after the tables were read; default: {SECONDS:.0f}",
    )
    parser.add_argument("--mysql", action="store_true", help="use a MariaDB instead of a PostgreSQL (extra `mysql`)")
    parser.add_argument(
        "--kafka", action="store_true", help="publish to Kafka; starts a broker unless --bootstrap-servers names one"
    )
    parser.add_argument(
        "--bootstrap-servers", metavar="HOST:PORT,…", help="with --kafka, the brokers to use instead of starting one"
    )


def execute(arguments: argparse.Namespace) -> int:
    """Runs the demo. Nothing that it started is still running afterwards."""
    file = run_demo(arguments)
    if file is not None:
        show_console(file)
    return 0


def show_console(file: Path) -> None:
    """Opens the console of the demo, whose configuration is `file`, on a free port, and prints its address.

    If the changelog is in files, first prints how to serve the state of each row over HTTP. On a terminal, the console
    runs until Ctrl-C. Elsewhere, nobody could end the console, so it is closed at once.
    """
    settings = config.load(file, os.environ)
    free_port = settings.console.model_copy(update={"port": 0})
    try:
        with console.opened(settings.model_copy(update={"console": free_port}), logs_requests=False) as serving:
            if isinstance(settings.sink, FilesConfig):
                say(f"\nThis command serves each row over HTTP, as in http://127.0.0.1:{settings.serve.port}/order/1:")
                say(f"   {demo.own_command()} views serve --config {file}")
            say(f"\nThe console shows what happened to a row, and who did it: {serving.address}")
            if sys.stdout.isatty():
                say("Ctrl-C ends it.")
                with suppress(KeyboardInterrupt):
                    serving.run()
            else:
                say("The console is closed again: this is not a terminal, so Ctrl-C could not end the console.")
    except ChangelogError as error:
        if error.kind is not Kind.USAGE:
            raise
        say(f"\nThe console is not shown: {error}")


def run_demo(arguments: argparse.Namespace, sequel: demo.Sequel | None = None) -> Path | None:
    """Runs the demo with these arguments. Calls `sequel`, if given, at the end, while the demo's database still runs.

    Returns the demo's configuration file; None if the changelog can no longer be read, because its store is stopped.
    """
    return demo.run(
        show.console(),
        open_database=_opened(arguments),
        stage=_stage(arguments),
        open_log=lambda file: sinks.open_log(config.load(file, os.environ)),
        path=arguments.path,
        seconds=arguments.seconds,
        seed=SEED,
        sequel=sequel,
    )


def _opened(arguments: argparse.Namespace) -> OpenDatabase:
    """Returns the function that starts the database of the demo."""
    if not arguments.mysql:
        return postgres.opened
    with sources.client_needed():
        from changelog.connectors.demo import mysql  # noqa: PLC0415

        return mysql.opened


def _stage(arguments: argparse.Namespace) -> DemoStage:
    if not arguments.kafka:
        if arguments.bootstrap_servers is not None:
            raise ChangelogError(Kind.USAGE, "--bootstrap-servers needs --kafka", hint="give both")
        return FileStage()
    with sinks.kafka_needed():
        from changelog.connectors.demo.kafka import KafkaStage  # noqa: PLC0415

        return KafkaStage(arguments.bootstrap_servers)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text}: must be a number of seconds, more than 0 and at most 3600")
    return seconds
