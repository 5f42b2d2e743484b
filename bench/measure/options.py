"""The options that a benchmark has, and what its sizes are."""

import argparse
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Rows, and rounds in which each side runs; `quick` ones are a single round."""

    rows: int
    quick_rows: int
    rounds: int

    def parser(self, description: str | None, of: str) -> argparse.ArgumentParser:
        """A parser with the options of every such benchmark; `of` says whose rows they are."""
        parser = argparse.ArgumentParser(description=description)
        parser.add_argument("--rows", type=int, help=f"{of}: {self.rows}, with --quick {self.quick_rows}")
        parser.add_argument("--rounds", type=int, help=f"times that each side runs: {self.rounds}, with --quick 1")
        parser.add_argument("--quick", action="store_true", help="one round of fewer rows")
        parser.add_argument("--json", action="store_true", help="a last line for programs")
        return parser

    def chosen(self, options: argparse.Namespace) -> tuple[int, int]:
        """Rows and rounds."""
        rows = options.rows or (self.quick_rows if options.quick else self.rows)
        return rows, options.rounds or (1 if options.quick else self.rounds)
