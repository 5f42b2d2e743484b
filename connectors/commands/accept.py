"""`changelog accept`: decides what the service does with the change at which it stopped, so that it can continue."""

import argparse
import os
from contextlib import closing
from dataclasses import replace

from changelog.connectors import config
from changelog.connectors.config import Config, FilesConfig
from changelog.connectors.sinks.files.layout import find_recovery
from changelog.connectors.terminal import say
from changelog.connectors.wiring.sinks import open_log, open_sink
from changelog.connectors.wiring.sources import database
from changelog.connectors.wiring.status import probe
from changelog.envelope.checkpoint import Checkpoint, Stop
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.position import Position

DECISIONS = ("skip", "default", "dead-letter")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `changelog accept`."""
    parser.add_argument(
        "position",
        type=position_argument,
        metavar="POSITION",
        help="the position that the service printed when it stopped",
    )
    parser.add_argument(
        "--as",
        dest="decision",
        required=True,
        choices=DECISIONS,
        help="skip: leave the change out; default: publish it although a policy forbids it; "
        "dead-letter: publish it under the entity `dead` instead",
    )


def execute(arguments: argparse.Namespace) -> int:
    """Stores the decision in the checkpoint. The service obeys it when it reads the change at this position again."""
    position: Position = arguments.position
    settings = config.load(arguments.config, os.environ)
    refuse_unready(settings)
    if open_log(settings).checkpoint() is None:
        raise ChangelogError(Kind.USAGE, "the changelog is empty, so there is nothing to accept", position=position)
    with closing(open_sink(settings)) as sink:
        checkpoint = sink.recover()
        assert checkpoint is not None
        _refuse_elsewhere(checkpoint, position, arguments.decision)
        sink.commit(replace(checkpoint, decisions=checkpoint.decisions.accept(position, arguments.decision)))
    say(f"{position}: {arguments.decision}; now start the service again")
    return 0


def _refuse_elsewhere(checkpoint: Checkpoint, position: Position, decision: str) -> None:
    """Raises ChangelogError (USAGE) unless the service stopped at this position and this decision lets it continue."""
    stop = stop_ahead(checkpoint, position)
    if stop.position != position:
        raise ChangelogError(
            Kind.USAGE,
            "the service did not stop at this position",
            hint=f"it stopped at {stop.position}: {stop.message}",
            position=position,
        )
    if decision not in stop.choices:
        raise ChangelogError(
            Kind.USAGE,
            f"--as {decision} does not resolve this stop ({stop.message})",
            hint=stop.hint,
            position=position,
        )


def stop_ahead(checkpoint: Checkpoint, position: Position) -> Stop:
    """Returns the stop that the checkpoint stores: the change at which the service stopped, and why.

    Raises ChangelogError (USAGE) if no stop is stored, or if the changelog already has rows at or after `position`.
    """
    if checkpoint.position is not None and position <= checkpoint.position:
        raise ChangelogError(
            Kind.USAGE,
            f"the changelog is past this position already, at {checkpoint.position}",
            hint="take the position from the error with which the service stopped",
            position=position,
        )
    if checkpoint.stop is None:
        raise ChangelogError(
            Kind.USAGE,
            "the service has not stopped at any change since it stored its last row",
            hint="start the service: if it stops at a change, it prints and stores the position of this change",
            position=position,
        )
    return checkpoint.stop


def refuse_unready(settings: Config) -> None:
    """Raises ChangelogError if the sink must not be opened now.

    A damaged file log must not be opened. Kafka's sink must not be opened while the service runs, because the broker
    would then refuse the service's writes. For a file log, this function does not check whether the service runs: the
    log itself refuses a second writer.
    """
    if isinstance(settings.sink, FilesConfig):
        damage = find_recovery(settings.sink.path).damage
        if damage is not None:  # only the service can check whether the rows before the damage still match the source
            raise damage.error("start the service first: it sets the damaged file aside")
        return
    refuse_running(settings)


def refuse_running(settings: Config) -> None:
    """Raises ChangelogError (IN_USE) if the service runs, even if it only waits for its database.

    If no service answers at its address, asks the database. Also raises ChangelogError if the database does not answer.
    """
    if probe(settings):
        raise ChangelogError(
            Kind.IN_USE, f"the service runs, and listens at {settings.service.listen}", hint="stop it first"
        )
    database(settings).refuse_if_read(must_answer=True)


def position_argument(text: str) -> Position:
    """Parses a position in an argument."""
    try:
        return Position.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
