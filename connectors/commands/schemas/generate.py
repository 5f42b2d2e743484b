"""`changelog schemas generate`: writes a schema file for each entity, from the live tables."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.text import Text

from changelog.connectors import config, show
from changelog.connectors.schema_files.generated import FOLDER, FileOutcome, FileState, generate

STATES: dict[FileState, tuple[str, str]] = {
    "written": ("green", "written"),
    "unchanged": ("dim", "unchanged"),
    "outdated": ("bold red", "would change"),
    "orphaned": (
        "yellow",
        "warning: there is no entity {entity}; remove the file once nobody reads its topic",
    ),
}

FOUND = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `changelog schemas generate`."""
    parser.add_argument("entity", nargs="*", metavar="ENTITY", help="only these entities; default: all")
    parser.add_argument(
        "--out", type=Path, default=FOLDER, metavar="DIR", help=f"the folder to write to; default: {FOLDER}"
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a file would change")
    parser.add_argument("--json", action="store_true", help="print the outcome for each file as JSON")


def execute(arguments: argparse.Namespace) -> int:
    """Writes the files, and prints what happened to each file.

    With `--check`, writes nothing, and returns 1 if a file would change.
    """
    settings = config.load(arguments.config, os.environ)
    outcomes = generate(settings, arguments.entity, arguments.out, write=not arguments.check)
    if arguments.json:
        states = [{"entity": outcome.entity, "file": str(outcome.file), "state": outcome.state} for outcome in outcomes]
        print(msgspec.json.encode(states).decode())
    else:
        print_outcomes(show.console(), outcomes)
    return FOUND if any(outcome.state == "outdated" for outcome in outcomes) else 0


def print_outcomes(console: Console, outcomes: Sequence[FileOutcome]) -> None:
    """Prints a line for each file; if files are out of date, also a line that says how to write them."""
    for outcome in outcomes:
        style, text = STATES[outcome.state]
        line = Text(f"{outcome.file}: ").append(text.format(entity=outcome.entity), style=style)
        console.print(line, soft_wrap=True)
    if any(outcome.state == "outdated" for outcome in outcomes):
        console.print("\nnothing was written; `changelog schemas generate` writes these files", soft_wrap=True)
