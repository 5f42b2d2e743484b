"""The commands of `changelog`, one module each, all of the shape `Command`."""

import argparse
from pathlib import Path
from typing import Protocol


class Command(Protocol):
    """What a module in `changelog.connectors.commands` offers."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Adds what the command takes beside `--config` and `--verbose`."""

    def execute(self, arguments: argparse.Namespace) -> int:
        """Does it and gives the exit code; raises ChangelogError."""


def add_common_arguments(parser: argparse.ArgumentParser) -> None:
    """What every command takes, and every verb behind it."""
    unset = argparse.SUPPRESS  # else a verb's default would replace what stands before the verb
    parser.add_argument("-c", "--config", type=Path, default=unset, metavar="FILE", help="default: changelog.toml")
    parser.add_argument(
        "--verbose", action="store_true", default=unset, help="log more, and show the traceback of an error"
    )
