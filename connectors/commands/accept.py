"""`changelog accept`: lets the service past a change that it stopped at."""

import argparse
import os
from contextlib import closing
from dataclasses import replace

from connectors import config
from connectors.sinks.filelayout import find_recovery
from connectors.sinks.files import FileSink
from envelope.errors import ChangelogError, Kind
from envelope.position import Position

DECISIONS = ("skip", "default", "dead-letter")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `changelog accept` takes."""
    parser.add_argument("position", type=_position, metavar="POSITION", help="where the service stopped, as it says")
    parser.add_argument(
        "--as",
        dest="decision",
        required=True,
        choices=DECISIONS,
        help="skip: leave the change out; default: publish it as if no policy spoke against it; "
        "dead-letter: set it aside, under the entity `dead`",
    )


def execute(arguments: argparse.Namespace) -> int:
    """Stores the decision with the position, so that every replay decides alike."""
    position: Position = arguments.position
    path = config.load(arguments.config, os.environ).sink.path
    damage = find_recovery(path).damage
    if damage is not None:  # only the service can tell whether the log before it still joins on to the source
        raise damage.error("start the service first, which sets it aside")
    with closing(FileSink(path)) as sink:
        checkpoint = sink.recover()
        if checkpoint is None:
            raise ChangelogError(Kind.USAGE, "the changelog is empty, so there is nothing to pass", position=position)
        if checkpoint.position is not None and position <= checkpoint.position:
            raise ChangelogError(
                Kind.USAGE,
                f"the changelog is past this position already, at {checkpoint.position}",
                hint="take the position from the error that the service stopped with",
            )
        decisions = {**checkpoint.decisions, str(position): arguments.decision}
        sink.commit(replace(checkpoint, decisions=decisions))
    print(f"{position}: {arguments.decision}; now start the service again")
    return 0


def _position(text: str) -> Position:
    try:
        return Position.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
