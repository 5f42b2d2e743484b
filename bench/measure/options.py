"""Defines the options that several benchmarks share, such as `--rows` and `--rounds`. Prints figures."""

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How many rows and rounds a benchmark has by default. With --quick, it has `quick_rows` rows and one round."""

    rows: int
    quick_rows: int
    rounds: int

    def parser(self, description: str | None, rows_help: str) -> argparse.ArgumentParser:
        """Returns a parser for the shared options. `rows_help` says what `--rows` counts."""
        parser = argparse.ArgumentParser(description=description)
        parser.add_argument("--rows", type=int, help=f"{rows_help}: {self.rows}, with --quick {self.quick_rows}")
        parser.add_argument("--rounds", type=int, help=f"times that each side runs: {self.rounds}, with --quick 1")
        parser.add_argument("--quick", action="store_true", help="run only one round, with fewer rows")
        parser.add_argument("--json", action="store_true", help="print a last line of JSON")
        return parser

    def chosen(self, options: argparse.Namespace) -> tuple[int, int]:
        """Returns how many rows and how many rounds the user asked for."""
        rows = options.rows or (self.quick_rows if options.quick else self.rows)
        return rows, options.rounds or (1 if options.quick else self.rounds)


def print_figures(figures: Mapping[str, object], *, as_json: bool) -> None:
    """Prints each figure in a line. With `as_json`, also prints a last line: JSON with all figures."""
    for name, value in figures.items():
        print(f"{name}: {value}")
    if as_json:
        print(json.dumps(figures))
