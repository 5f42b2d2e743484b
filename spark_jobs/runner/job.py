"""Runs a job: parses arguments, opens the Spark session, prints an error as one line, ends with a summary on stdout.

Exit codes are those of the command line: 0 done, 1 found something, 2 bad usage or configuration, 3 failed, 4 severe
drift, 5 could not compare. Where a cluster hides exit codes, read `verdict` in the summary on stdout: `done`, `found`,
`planned` (a dry run) or `failed`; for `detect_drift`, `clean`, `drift`, `severe`, `not caught up` or `refused`.
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
from changelog.envelope.errors import EXIT_CODES, ChangelogError, Kind
from changelog.spark_jobs.runner.metrics import write_metrics
from changelog.spark_jobs.runner.spark_errors import explain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DONE, FOUND, PLANNED, FAILED = "done", "found", "planned", "failed"
"""Values of a summary's `verdict`."""

CLEAN, DRIFT, SEVERE, NOT_CAUGHT_UP, REFUSED = "clean", "drift", "severe", "not caught up", "refused"
"""Values of a comparison's `verdict`; with the last two, the summary has a `why`."""

_CODES = {DONE: 0, PLANNED: 0, FOUND: 1, CLEAN: 0, DRIFT: 1, SEVERE: 4, NOT_CAUGHT_UP: 5, REFUSED: 5}
_NOT_COMPARED = 5
_FAILED = 3
_INTERRUPTED = 130

SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
}
"""Settings that the jobs rely on; they override the cluster's own."""

_LOGGERS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
"""Loggers to which pyspark writes every error with its stack trace and row values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job: `spark_jobs/NAME.py`.

    `plan` returns what would be read and written, for --dry-run. `run` does the work and returns the summary with its
    `verdict`. Both raise ChangelogError. Their keys appear in the summary's JSON unchanged.
    """

    name: str
    description: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    plan: Callable[[argparse.Namespace, Config], Mapping[str, object]]
    run: Callable[["SparkSession", argparse.Namespace, Config], Mapping[str, object]]
    figures: Callable[[Mapping[str, object]], str] | None = None
    """Returns, for a summary, further metrics that --metrics writes, in Prometheus's text format."""


def main(job: Job, argv: Sequence[str] | None = None) -> int:
    """Runs the job with these arguments, by default this process's; returns the exit code."""
    arguments = _parser(job).parse_args(argv)
    began = time.monotonic()
    try:
        summary = dict(_outcome(job, arguments))
        code = _CODES[str(summary["verdict"])]
        if code == _NOT_COMPARED:
            print(f"{job.name}: {summary['verdict']}: {summary['why']}", file=sys.stderr)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except Exception as error:  # noqa: BLE001, the top: Spark's errors and our bugs become one line
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
    if arguments.dry_run:
        return {"verdict": PLANNED, **job.plan(arguments, config)}
    with session(f"changelog {job.name}", verbose=arguments.verbose) as spark:
        return job.run(spark, arguments, config)


@contextmanager
def session(name: str, *, verbose: bool = False) -> Iterator["SparkSession"]:
    """Yields a session. An active one is used and left running; otherwise one is started, and stopped at the end.

    Raises ChangelogError (USAGE) where pyspark is not installed.
    """
    try:
        from pyspark.logger import PySparkLogger  # noqa: PLC0415, a job's --help and its dry run need no Spark
        from pyspark.sql import SparkSession  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ChangelogError(Kind.USAGE, f"{error.name} is not installed", hint=installation("spark")) from error
    for logger in _LOGGERS:
        PySparkLogger.getLogger(logger).disabled = not verbose
    present = SparkSession.getActiveSession()
    if present is not None:
        yield present
        return
    others = {
        "spark.log.level": "WARN" if verbose else "OFF",
        "spark.ui.showConsoleProgress": str(_on_terminal()).lower(),
    }
    spark = begin(name, others)
    try:
        yield spark
    finally:
        spark.stop()


def begin(name: str, others: Mapping[str, str]) -> "SparkSession":
    """Starts a session with the jobs' settings and `others`; the caller stops it."""
    from pyspark.sql import SparkSession  # noqa: PLC0415

    # By default, Spark takes the first python3 on PATH, which may lack our packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    for key, value in {**SETTINGS, **others}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _on_terminal() -> bool:
    """Whether a person is watching. Under spark-submit, Python's streams are pipes, so Spark's JVM is asked."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return sys.stderr.isatty()
    from pyspark import SparkContext  # noqa: PLC0415

    SparkContext._ensure_initialized()
    jvm: Any = SparkContext._jvm
    return jvm.java.lang.System.console() is not None


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Exits with one line, as for every other error."""
        self.exit(2, f"{self.prog}: {message}; see `{self.prog} --help`\n")


def _parser(job: Job) -> argparse.ArgumentParser:
    parser = _Parser(prog=job.name, description=job.description)
    parser.add_argument("--config", type=Path, default=Path("changelog.toml"), metavar="FILE", help="%(default)s")
    parser.add_argument("--dry-run", action="store_true", help="print what would be read and written, without doing it")
    parser.add_argument("--metrics", type=Path, metavar="FILE", help="also write the summary's figures for Prometheus")
    parser.add_argument("--verbose", action="store_true", help="show Spark's log, and the traceback of an error")
    job.add_arguments(parser)
    return parser
