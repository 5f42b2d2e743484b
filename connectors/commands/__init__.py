"""Contains the commands of `changelog`. Each command is a module with the functions that `Command` declares."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol


class Command(Protocol):
    """The functions that the module of each command has."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's own arguments. The parser already has the arguments that every command has."""

    def execute(self, arguments: argparse.Namespace) -> int:
        """Runs the command and returns its exit code; raises ChangelogError."""


def add_common_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments that all commands and all verbs have. In `schemas check`, `check` is a verb."""
    unset = argparse.SUPPRESS  # a default of the verb would replace an argument given before the verb
    parser.add_argument("-c", "--config", type=Path, default=unset, metavar="FILE", help="default: changelog.toml")
    parser.add_argument(
        "--verbose", action="store_true", default=unset, help="log more, and show the traceback of an error"
    )


def add_verbs(parser: argparse.ArgumentParser, verbs: Mapping[str, tuple[Command, str]]) -> None:
    """Adds the verbs of a command. After parsing, the attribute `verb` of the arguments names the chosen verb.

    `verbs` has the module and the summary of each verb. A summary begins with a small letter and ends without a period.
    """
    parsers = parser.add_subparsers(title="verbs", metavar="VERB", dest="verb", required=True)
    for name, (verb, summary) in verbs.items():
        verb_parser = parsers.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        add_common_arguments(verb_parser)
        verb.add_arguments(verb_parser)
