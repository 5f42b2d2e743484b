"""`changelog signal`: has the service read no tables for a while, or give up what it was asked to repair."""

import argparse
import os

from connectors import config
from connectors.commands import signalling


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `changelog signal` takes."""
    parser.add_argument(
        "do",
        choices=("pause", "resume", "cancel"),
        help="pause: tables are not read for now, while streaming goes on; resume: they are again; "
        "cancel: repairs are given up",
    )
    parser.add_argument("entity", nargs="?", metavar="ENTITY", help="only of this entity")
    signalling.add_arguments(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Asks the service for it, and waits until it has heard."""
    return signalling.ask(config.load(arguments.config, os.environ), arguments, arguments.do, arguments.entity)
