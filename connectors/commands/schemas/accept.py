"""`changelog schemas accept`: accepts a change of columns at which the service stopped, or has a table read again."""

import argparse
import os
from contextlib import closing
from dataclasses import replace

from changelog.connectors import config
from changelog.connectors.capture.tables.table_progress import ALL_COLUMNS, is_complete, restated
from changelog.connectors.commands.accept import position_argument, refuse_unready, stop_ahead
from changelog.connectors.terminal import say
from changelog.connectors.wiring.sinks import open_log, open_sink
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.position import Position


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `changelog schemas accept`."""
    parser.add_argument("entity", metavar="ENTITY", help="the entity whose columns were altered")
    parser.add_argument(
        "position",
        nargs="?",
        type=position_argument,
        metavar="POSITION",
        help="the position that the service printed when it stopped",
    )
    parser.add_argument(
        "--read-again",
        action="store_true",
        help="read the table again, because the change altered existing rows in a way that the log does not show",
    )


def execute(arguments: argparse.Namespace) -> int:
    """Stores in the checkpoint which change is accepted, or that the table is to be read again, or both."""
    settings = config.load(arguments.config, os.environ)
    if arguments.position is None and not arguments.read_again:
        raise ChangelogError(
            Kind.USAGE,
            "the command does not say what to accept",
            hint="give the position where the service stopped, or --read-again",
        )
    refuse_unready(settings)
    if open_log(settings).checkpoint() is None:
        raise ChangelogError(Kind.USAGE, "the changelog is empty, so there is nothing to accept")
    with closing(open_sink(settings)) as sink:
        checkpoint = sink.recover()
        assert checkpoint is not None
        sink.commit(_accepted(checkpoint, arguments.entity, arguments.position, read_again=arguments.read_again))
    say(f"{arguments.entity}: accepted; now start the service again")
    return 0


def _accepted(checkpoint: Checkpoint, entity: str, position: Position | None, *, read_again: bool) -> Checkpoint:
    if entity not in checkpoint.settings:
        names = ", ".join(sorted(checkpoint.settings))
        raise ChangelogError(Kind.USAGE, f"the changelog has no entity {entity}", hint=f"it has: {names}")
    new_checkpoint = checkpoint
    if position is not None:
        stop = stop_ahead(checkpoint, position)
        if stop.altered != entity or position > stop.position:
            raise ChangelogError(
                Kind.USAGE,
                f"the service did not stop at a change of the columns of the entity {entity} at this position",
                hint=f"it stopped at {stop.position}: {stop.message}",
                position=position,
            )
        new_checkpoint = replace(new_checkpoint, accepted={**new_checkpoint.accepted, entity: str(position)})
    if read_again:
        progress = new_checkpoint.windows.get(entity, {})
        if not is_complete(progress):
            raise ChangelogError(
                Kind.USAGE,
                f"the table of the entity {entity} has not been read to its end yet",
                hint="wait: the service is still reading it",
            )
        columns = () if "stale" in progress else [ALL_COLUMNS]
        new_checkpoint = replace(
            new_checkpoint, windows={**new_checkpoint.windows, entity: restated(progress, columns, reads_table=True)}
        )
    return new_checkpoint
