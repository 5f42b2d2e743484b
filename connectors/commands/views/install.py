"""`changelog views install`: fetches the jars with which `changelog views serve` follows topics."""

import argparse
import os
from pathlib import Path

from changelog.connectors.java import jars
from changelog.connectors.terminal import say
from changelog.connectors.views.streams.jars import JARS, default_folder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `changelog views install`."""
    to_help = "the folder for the jars; default: one in the user's data folder"
    parser.add_argument("--to", type=Path, metavar="DIR", help=to_help)


def execute(arguments: argparse.Namespace) -> int:
    """Fetches the jars."""
    folder = arguments.to or default_folder(os.environ)
    count = jars.install(JARS, folder)
    say(f"{count} jars of {JARS.title} are in {folder}")
    return 0
