"""`python -m changelog.spark_jobs.demo`: runs `changelog demo`, then runs the Spark jobs on its changelog.

There is a chapter for each job. It runs the job with the options that a user would give, checks the result against the
changelog, and shows it. All chapters share one session. If Java or Spark is missing, the demo ends after `changelog
demo`, with a line that says how to see the chapters on Spark.
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
from changelog.connectors.java.program import find_java
from changelog.envelope.errors import ChangelogError
from changelog.spark_jobs.demo.chapters import CHAPTERS
from changelog.spark_jobs.demo.scene import SPARK_LOG, Scene
from changelog.spark_jobs.runner.job import begin

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_QUIET = {
    "spark.master": "local[2]",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
}


def sequel(story: Ending) -> Mapping[str, str]:
    """Runs all chapters in one session. Returns descriptions of the files that they wrote, by their paths."""
    files = {SPARK_LOG: "the messages of Spark"}
    with _session(story.folder / SPARK_LOG) as spark:
        story.console.print()
        story.watch.lap("Spark is up, on this machine, and reads the same files")
        for chapter in CHAPTERS:
            story.console.print()
            files |= chapter(Scene(story=story, spark=spark))
    return files


@contextmanager
def _session(log_file: Path) -> Iterator["SparkSession"]:
    """Opens a session with two threads. Java's messages go to `log_file`. At the end, Spark's own files are deleted."""
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    interrupt = signal.getsignal(signal.SIGINT)
    with tempfile.TemporaryDirectory() as scratch:
        with chdir(scratch), _errors_to(log_file):
            spark = begin("changelog demo", _QUIET)
        signal.signal(signal.SIGINT, interrupt)  # pyspark has replaced the handler
        try:
            yield spark
        finally:
            spark.stop()


@contextmanager
def _errors_to(file: Path) -> Iterator[None]:
    """Processes that start in this context write their stderr to a file."""
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
    """Returns why the chapters on Spark cannot run here, and what to do about it; None if they can run."""
    missing = [name for name in ("pyspark", "pandas") if find_spec(name) is None]
    try:
        find_java()
    except ChangelogError as error:
        return f"{error}; then `make demo SPARK=1`" if missing else str(error)
    return f"{missing[0]} is not installed; `make demo SPARK=1` installs it" if missing else None


class _Demo:
    """The demo as a command that `cli.execute` can run."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        command.add_arguments(parser)
        parser.add_argument("--no-spark", action="store_true", help="leave out the chapters on Spark")

    def execute(self, arguments: argparse.Namespace) -> int:
        if arguments.no_spark:
            return command.execute(arguments)
        why = (
            "the jobs read files, but this changelog is in topics; leave out --kafka" if arguments.kafka else lacking()
        )
        file = command.run_demo(arguments, None if why else sequel)
        if why:
            show.console().print(f"\nThe story goes on with Spark (archive, deltas, views, drift), but not here: {why}")
        if file is not None:
            command.show_console(file)
        return 0


def run(argv: Sequence[str] | None = None) -> int:
    """Runs the demo with `argv`, by default this process's arguments, and returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m changelog.spark_jobs.demo", description=__doc__)
    add_common_arguments(parser)
    parser.set_defaults(command="demo", verbose=False)
    demo = _Demo()
    demo.add_arguments(parser)
    return cli.execute(demo, parser.parse_args(argv))
