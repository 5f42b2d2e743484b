"""What a job gave that ran in the session of the tests."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """The last line of its output, and the lines that it told a person."""

    summary: dict[str, Any]
    lines: list[str]

    @property
    def report(self) -> dict[str, Any]:
        """Of a comparison: its report."""
        report: dict[str, Any] = json.loads(self.beside("report.json").read_bytes())
        return report

    def drifted(self) -> dict[str, tuple[str, list[str]]]:
        """Of a comparison: the drifted keys, of each its kind and its columns, sorted."""
        lines = map(json.loads, self.beside("keys.jsonl").read_text("utf-8").splitlines())
        return {each["key"]: (each["kind"], sorted(each["columns"])) for each in lines}

    def beside(self, name: str) -> Path:
        """Of a comparison: a file beside its page."""
        return Path(self.summary["report"]).with_name(name)


Run = Callable[..., Ran]
"""Runs a job with a configuration and these words; it ends with `code`, 0 where none is said."""
