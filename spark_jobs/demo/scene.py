"""Holds what all chapters on Spark use: the state of the demo's story, the Spark session, and functions that run a job
and show its command line.
"""

import io
import json
import os
import shlex
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import JustifyMethod
from rich.table import Table
from rich.text import Text

from changelog.connectors.demo import Ending
from changelog.envelope.errors import ChangelogError, Kind
from changelog.spark_jobs.runner.job import FAILED, Job, main

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_LOG = "spark.log"
"""The file for Spark's messages, in the demo's folder."""

_INTERRUPTED = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The input of a chapter: the state in which `changelog demo` ended, and the Spark session."""

    story: Ending
    spark: "SparkSession"

    def run(self, job: Job, *options: str) -> Mapping[str, Any]:
        """Shows the job's command line, runs it and returns its summary. Raises ChangelogError if it failed."""
        self.show(f"spark-submit spark_jobs/{job.name}.py", *options)
        output = io.StringIO()
        with redirect_stdout(output), redirect_stderr(io.StringIO()):
            code = main(job, ["--config", str(self.story.config), *options])
        if code == _INTERRUPTED:
            raise KeyboardInterrupt
        summary: dict[str, Any] = json.loads(output.getvalue().splitlines()[-1])
        if summary["verdict"] == FAILED:
            hint = f"see {self.story.folder / SPARK_LOG}"
            raise ChangelogError(Kind.PRECONDITION, f"{job.name}: {summary['error']}", hint=hint)
        return summary

    def show(self, program: str, *options: str) -> None:
        """Shows a command line as a user would type it in the demo's folder."""
        command_line = shlex.join(option.replace(f"{self.story.folder}{os.sep}", "") for option in options)
        self.story.console.print(Text(f"   $ {program} {command_line}\n", style="dim"))


Chapter = Callable[[Scene], Mapping[str, str]]
"""A chapter. It returns descriptions of the files that it wrote into the demo's folder, by their paths."""


def columns(*headings: str | tuple[str, JustifyMethod]) -> Table:
    """Returns an empty table with these columns, drawn without borders."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in headings:
        name, justify = heading if isinstance(heading, tuple) else (heading, None)
        table.add_column(name, justify=justify or "left", overflow="ellipsis", no_wrap=True)
    return table
