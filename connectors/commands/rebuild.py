"""`changelog rebuild`: publishes an entity's whole table again, and a delete of each key that the table lacks."""

import argparse
import os

from changelog.connectors import config
from changelog.connectors.commands import signalling


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `changelog rebuild`."""
    parser.add_argument("entity", metavar="ENTITY", help="the entity")
    signalling.add_arguments(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Asks the service to rebuild the entity, and waits until the rebuild is done."""
    return signalling.ask(config.load(arguments.config, os.environ), arguments, "rebuild", arguments.entity)
