"""Holds what a job printed and wrote when it ran in the tests' Spark session."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A job's summary, which is the last line of its standard output, and the lines of its standard error."""

    summary: dict[str, Any]
    lines: list[str]

    @property
    def report(self) -> dict[str, Any]:
        """Reads the report of a comparison from `report.json`."""
        report: dict[str, Any] = json.loads(self.beside("report.json").read_bytes())
        return report

    def drifted(self) -> dict[str, tuple[str, list[str]]]:
        """Returns the keys that differ, each with the kind of difference and the sorted columns that differ."""
        lines = map(json.loads, self.beside("keys.jsonl").read_text("utf-8").splitlines())
        return {line["key"]: (line["kind"], sorted(line["columns"])) for line in lines}

    def beside(self, name: str) -> Path:
        """Returns the path of a file in the same folder as the report of a comparison."""
        return Path(self.summary["report"]).with_name(name)


Run = Callable[..., Ran]
"""A function that runs a job with a configuration file and arguments. It checks that the job's exit code equals the
argument `code`, by default 0.
"""
