"""`python -m changelog.spark_jobs.demo`: runs `changelog demo`, then shows what the Spark jobs make of its changelog.

All chapters share one session. Each runs a job as a command line does, checks the result against the changelog read in
plain Python, and shows it. Without Java or Spark the demo ends as `changelog demo` does, with a line that says how to
see the rest.
"""

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from changelog.connectors import cli, show
from changelog.connectors.commands import add_common_arguments
from changelog.connectors.commands import demo as command
from changelog.connectors.demo import Ending
from changelog.connectors.servers.kafka import find_java
from changelog.envelope.errors import ChangelogError
from changelog.spark_jobs.demo.chapters import CHAPTERS
from changelog.spark_jobs.demo.scene import SAID, Scene
from changelog.spark_jobs.runner.job import begin

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_QUIET = {
    "spark.master": "local[2]",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
}


# The chapters


# What the chapters read and show


# The session


def sequel(story: Ending) -> Mapping[str, str]:
    """All chapters, in one session."""
    left = {SAID: "what Spark said"}
    with _session(story.folder / SAID) as spark:
        story.console.print()
        story.watch.lap("Spark is up, on this machine, and reads the same files")
        for chapter in CHAPTERS:
            story.console.print()
            left |= chapter(Scene(story=story, spark=spark))
    return left


@contextmanager
def _session(log_file: Path) -> Iterator["SparkSession"]:
    """A session with two threads. Java's messages go into a file; Spark's temporary files are deleted at the end."""
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    interrupt = signal.getsignal(signal.SIGINT)
    with tempfile.TemporaryDirectory() as scratch:
        with chdir(scratch), _errors_to(log_file):
            spark = begin("changelog demo", _QUIET)
        signal.signal(signal.SIGINT, interrupt)  # pyspark replaces the handler
        try:
            yield spark
        finally:
            spark.stop()


@contextmanager
def _errors_to(file: Path) -> Iterator[None]:
    """Processes that start in this context write their stderr into a file."""
    sys.stderr.flush()
    stderr_copy = os.dup(2)
    try:
        with file.open("ab") as log:
            os.dup2(log.fileno(), 2)
        yield
    finally:
        os.dup2(stderr_copy, 2)
        os.close(stderr_copy)


def lacking() -> str | None:
    """Why the chapters on Spark cannot run here, and what to do; None if they can."""
    wanting = [name for name in ("pyspark", "pandas") if find_spec(name) is None]
    try:
        find_java()
    except ChangelogError as error:
        return f"{error}; then `make demo SPARK=1`" if wanting else str(error)
    return f"{wanting[0]} is not installed; `make demo SPARK=1` sets it up" if wanting else None


class _Demo:
    """The command."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        command.add_arguments(parser)
        parser.add_argument("--no-spark", action="store_true", help="leave out what Spark makes of it")

    def execute(self, arguments: argparse.Namespace) -> int:
        if arguments.no_spark:
            return command.execute(arguments)
        why = "they read files, and this changelog is in topics; leave out --kafka" if arguments.kafka else lacking()
        command.tell(arguments, None if why else sequel)
        if why:
            show.console().print(f"\nThe story goes on with Spark (archive, deltas, views, drift), but not here: {why}")
        return 0


def run(argv: Sequence[str] | None = None) -> int:
    """Runs the demo with these arguments, by default this process's; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m changelog.spark_jobs.demo", description=__doc__)
    add_common_arguments(parser)
    parser.set_defaults(command="demo", verbose=False)
    demo = _Demo()
    demo.add_arguments(parser)
    return cli.execute(demo, parser.parse_args(argv))
