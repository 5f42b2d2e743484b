"""Runs a job: parses its arguments, opens the Spark session, prints a summary on stdout, and prints an error as one
line on stderr.

The exit codes 0 to 3 mean the same as those of the `changelog` command: 0 done, 1 found something, 2 bad usage or
configuration, 3 failed. There are two more: 4 severe drift, 5 could not compare. If a cluster hides exit codes, the
summary's `verdict` says the same: `done`, `found`, `planned` (a dry run) or `failed`. For `detect_drift` it is `clean`,
`drift`, `severe`, `not caught up`, `refused`, `planned` or `failed`.
"""

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from changelog.connectors.config import Config, load
from changelog.connectors.extras import installation
from changelog.connectors.wiring.sinks import refuse_other_envelope
from changelog.envelope.errors import EXIT_CODES, ChangelogError, Kind
from changelog.spark_jobs.runner.metrics import write_metrics
from changelog.spark_jobs.runner.spark_errors import explain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DONE, FOUND, PLANNED, FAILED = "done", "found", "planned", "failed"
"""The values of `verdict` in the summary of a job that does not compare."""

CLEAN, DRIFT, SEVERE, NOT_CAUGHT_UP, REFUSED = "clean", "drift", "severe", "not caught up", "refused"
"""Further values of `verdict`, for `detect_drift`. With the last two, the summary also has a `why`."""

_CODES = {DONE: 0, PLANNED: 0, FOUND: 1, CLEAN: 0, DRIFT: 1, SEVERE: 4, NOT_CAUGHT_UP: 5, REFUSED: 5}
_NOT_COMPARED = 5
_FAILED = 3
_INTERRUPTED = 130

SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.python.sql.dataFrameDebugging.enabled": "false",
}
"""Spark settings on which the jobs rely. They override the settings of the cluster.

The last one only saves time: with debugging, pyspark calls Java ten times more for each operation on a column, to note
the line of our code. The one line of an error never shows that note. It would be in the stack trace of `--verbose`.
"""

_LOGGERS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
"""Loggers to which pyspark writes every error, with a stack trace and values of rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job: `spark_jobs/NAME.py`.

    `plan` is for --dry-run: it returns what the job would read and write. `run` does the work, and returns the summary
    with its `verdict`. Both may raise ChangelogError. The keys of both results become members of the summary's JSON,
    unchanged.
    """

    name: str
    description: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    plan: Callable[[argparse.Namespace, Config], Mapping[str, object]]
    run: Callable[["SparkSession", argparse.Namespace, Config], Mapping[str, object]]
    figures: Callable[[Mapping[str, object]], str] | None = None
    """Makes further metrics from a summary, as Prometheus text. --metrics writes them, too."""


def main(job: Job, argv: Sequence[str] | None = None) -> int:
    """Runs the job with `argv`, by default this process's arguments, and returns the exit code."""
    arguments = _parser(job).parse_args(argv)
    began = time.monotonic()
    try:
        summary = dict(_outcome(job, arguments))
        code = _CODES[str(summary["verdict"])]
        if code == _NOT_COMPARED:
            print(f"{job.name}: {summary['verdict']}: {summary['why']}", file=sys.stderr)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except Exception as error:  # noqa: BLE001 - errors of Spark and bugs must become one line, too
        explained = explain(error)
        if arguments.verbose:
            traceback.print_exception(error, file=sys.stderr)
        print(f"{job.name}: {explained}", file=sys.stderr)
        summary, code = {"verdict": FAILED, "error": str(explained)}, EXIT_CODES.get(explained.kind, _FAILED)
    summary = {"job": job.name, **summary, "seconds": round(time.monotonic() - began, 3)}
    print(json.dumps(summary, ensure_ascii=False, default=str), flush=True)
    if arguments.metrics is not None:
        write_metrics(arguments.metrics, summary, more="" if job.figures is None else job.figures(summary))
    return code


def _outcome(job: Job, arguments: argparse.Namespace) -> Mapping[str, object]:
    config = load(arguments.config, os.environ)
    refuse_other_envelope(config, job.name)
    if arguments.dry_run:
        return {"verdict": PLANNED, **job.plan(arguments, config)}
    with session(f"changelog {job.name}", verbose=arguments.verbose) as spark:
        return job.run(spark, arguments, config)


@contextmanager
def session(name: str, *, verbose: bool = False) -> Iterator["SparkSession"]:
    """Yields the active Spark session, and leaves it running. If there is none, starts a session and stops it at the
    end.

    Raises ChangelogError (USAGE) if pyspark is not installed.
    """
    try:
        from pyspark.logger import PySparkLogger  # noqa: PLC0415 - a job's --help and its dry run need no Spark
        from pyspark.sql import SparkSession  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ChangelogError(Kind.USAGE, f"{error.name} is not installed", hint=installation("spark")) from error
    for logger in _LOGGERS:
        PySparkLogger.getLogger(logger).disabled = not verbose
    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    more_settings = {
        "spark.log.level": "WARN" if verbose else "OFF",
        "spark.ui.showConsoleProgress": str(_on_terminal()).lower(),
    }
    spark = begin(name, more_settings)
    try:
        yield spark
    finally:
        spark.stop()


def begin(name: str, more_settings: Mapping[str, str]) -> "SparkSession":
    """Starts a session with `SETTINGS` and `more_settings`; the caller must stop it."""
    from pyspark.sql import SparkSession  # noqa: PLC0415

    # By default, Spark takes the first python3 on PATH, which may lack our packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    for key, value in {**SETTINGS, **more_settings}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _on_terminal() -> bool:
    """Returns whether the job runs on a terminal. Under spark-submit, Python's streams are pipes, so we ask Spark's
    JVM.
    """
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return sys.stderr.isatty()
    from pyspark import SparkContext  # noqa: PLC0415

    SparkContext._ensure_initialized()
    jvm: Any = SparkContext._jvm
    return jvm.java.lang.System.console() is not None


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Prints the error as one line, in the form of all errors of jobs, and exits."""
        self.exit(2, f"{self.prog}: {message}; see `{self.prog} --help`\n")


def _parser(job: Job) -> argparse.ArgumentParser:
    parser = _Parser(prog=job.name, description=job.description)
    parser.add_argument("--config", type=Path, default=Path("changelog.toml"), metavar="FILE", help="%(default)s")
    parser.add_argument("--dry-run", action="store_true", help="print what the job would read and write, and end")
    parser.add_argument("--metrics", type=Path, metavar="FILE", help="also write the summary's figures for Prometheus")
    parser.add_argument("--verbose", action="store_true", help="show Spark's log, and the traceback of an error")
    job.add_arguments(parser)
    return parser
