"""The frame of every job: arguments, session, errors as one line, a summary as the last line of stdout.

Exit codes are those of the command line: 0 done, 1 found something, 2 bad usage or configuration, 3 failed, 4 severe
drift, 5 could not compare. Where a cluster hides them, `verdict` in the summary says it: `done`, `found`, `planned` (a
dry run) or `failed`; of `detect_drift`, `clean`, `drift`, `severe`, `not caught up` or `refused`.
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

from connectors.config import Config, load
from connectors.extras import installation
from envelope.errors import EXIT_CODES, ChangelogError, Kind
from spark_jobs.runner.metrics import write_metrics
from spark_jobs.runner.spark_errors import explain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DONE, FOUND, PLANNED, FAILED = "done", "found", "planned", "failed"
"""What a summary's `verdict` may be."""

CLEAN, DRIFT, SEVERE, NOT_CAUGHT_UP, REFUSED = "clean", "drift", "severe", "not caught up", "refused"
"""And that of a comparison; of the last two the summary says `why`."""

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
"""What the jobs rely on, whatever the cluster's own settings are."""

_LOGGERS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
"""Where pyspark writes an error as it is made, stack trace, values and all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job: `spark_jobs/NAME.py`.

    `plan` gives what would be read and written, for --dry-run; `run` does it and gives the summary, with its
    `verdict`. Both raise ChangelogError. Their keys go into the summary's JSON as they are.
    """

    name: str
    description: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    plan: Callable[[argparse.Namespace, Config], Mapping[str, object]]
    run: Callable[["SparkSession", argparse.Namespace, Config], Mapping[str, object]]
    figures: Callable[[Mapping[str, object]], str] | None = None
    """Gives, from the summary, what --metrics writes beside its numbers, in Prometheus's text format."""


def main(job: Job, argv: Sequence[str] | None = None) -> int:
    """Runs the job as its command line says, by default this process's; gives the exit code."""
    arguments = _parser(job).parse_args(argv)
    began = time.monotonic()
    try:
        summary = dict(_outcome(job, arguments))
        code = _CODES[str(summary["verdict"])]
        if code == _NOT_COMPARED:
            print(f"{job.name}: {summary['verdict']}: {summary['why']}", file=sys.stderr)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except Exception as error:  # noqa: BLE001, the top: Spark's errors, and bugs of ours, become one line
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
    """The session of spark-submit, or one of this process's own; one that is there already is used and left as it is.

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
    """A session that is the caller's to stop, with the jobs' settings and `others`."""
    from pyspark.sql import SparkSession  # noqa: PLC0415

    # Spark's own choice is the first python3 on PATH, which need not be the one with our packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    for key, value in {**SETTINGS, **others}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _on_terminal() -> bool:
    """Whether a person watches. Under spark-submit, Python's streams are pipes of Spark's process, which is asked."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return sys.stderr.isatty()
    from pyspark import SparkContext  # noqa: PLC0415

    SparkContext._ensure_initialized()
    jvm: Any = SparkContext._jvm
    return jvm.java.lang.System.console() is not None


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, as every other error."""
        self.exit(2, f"{self.prog}: {message}; see `{self.prog} --help`\n")


def _parser(job: Job) -> argparse.ArgumentParser:
    parser = _Parser(prog=job.name, description=job.description)
    parser.add_argument("--config", type=Path, default=Path("changelog.toml"), metavar="FILE", help="%(default)s")
    parser.add_argument("--dry-run", action="store_true", help="say what would be read and written, and do neither")
    parser.add_argument("--metrics", type=Path, metavar="FILE", help="write the summary's figures for Prometheus, too")
    parser.add_argument("--verbose", action="store_true", help="show Spark's own log, and the traceback of an error")
    job.add_arguments(parser)
    return parser
