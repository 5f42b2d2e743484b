"""`changelog repartition`: gives an entity another number of partitions, in a new topic."""

import argparse
import os

from changelog.connectors import config, failpoints
from changelog.connectors.commands.accept import refuse_running
from changelog.connectors.config import FilesConfig
from changelog.connectors.terminal import say
from changelog.connectors.wiring.sinks import kafka_needed
from changelog.connectors.wiring.sources import database
from changelog.envelope.errors import ChangelogError, Kind

PARTITIONS_MAX = 10_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `changelog repartition`."""
    parser.add_argument("entity", metavar="ENTITY", help="the entity")
    parser.add_argument(
        "--partitions", type=_number, required=True, metavar="N", help="how many partitions the new topic has"
    )


def execute(arguments: argparse.Namespace) -> int:
    """Ends the entity's present topic, and begins a new one with this number of partitions.

    Raises ChangelogError (IN_USE) if the service runs.
    """
    settings = config.load(arguments.config, os.environ)
    entity, partitions = arguments.entity, arguments.partitions
    if isinstance(settings.sink, FilesConfig):
        raise ChangelogError(
            Kind.USAGE,
            "the sink is a file log, and only topics on Kafka can be repartitioned",
            hint="set partitions in the configuration, and start the service with `changelog run --accept-config`",
        )
    if not database(settings).reads_tables:
        raise ChangelogError(
            Kind.USAGE,
            "the service reads no tables of this source, so a new topic would lack the rows that do not change",
            hint="start a new changelog, under another [sink] prefix",
        )
    refuse_running(settings)
    with kafka_needed():
        from changelog.connectors.wiring import kafka  # noqa: PLC0415

        reach = failpoints.parse(os.environ.get(failpoints.VARIABLE))
        generation = kafka.repartition(settings, settings.sink, entity, partitions, reach=reach)
    say(f"{entity}: topic {generation.topic} has {generation.partitions} partitions")
    configured_partitions = settings.entities[entity].partitions if entity in settings.entities else 1
    if configured_partitions == partitions:
        say("now start the service")
    else:
        say(f"now set partitions = {partitions} in [entities.{entity}], and start the service")
    return 0


def _number(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if not 1 <= number <= PARTITIONS_MAX:
        raise argparse.ArgumentTypeError(f"should be a number from 1 to {PARTITIONS_MAX:,}")
    return number
