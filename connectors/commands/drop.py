"""`changelog drop`: removes what the service created in the database and on Kafka."""

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from changelog.connectors import config, show
from changelog.connectors.commands.accept import refuse_running
from changelog.connectors.config import Config, FilesConfig, KafkaConfig
from changelog.connectors.sources import Database, Remnant
from changelog.connectors.terminal import say
from changelog.connectors.wiring.sinks import kafka_needed, open_log
from changelog.connectors.wiring.sources import database, read_entities
from changelog.envelope.errors import ChangelogError, Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaRemnants:
    """The topics and the checkpoint that the service created on Kafka and that still exist.

    `topics` has the topics, each with an upper bound of the number of its messages. `checkpoint` says whether there is
    a checkpoint. If both are unknown, `trouble` says why.
    """

    topics: Mapping[str, int] = field(default_factory=dict)
    checkpoint: bool = False
    trouble: ChangelogError | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `changelog drop`."""
    parser.add_argument(
        "--slot", action="store_true", help="drop the replication slot; the service cannot continue without it"
    )
    parser.add_argument("--publication", action="store_true", help="drop the publication")
    parser.add_argument(
        "--group", action="store_true", help="drop the consumer group that shows how far the service has read topics"
    )
    parser.add_argument(
        "--topics", action="store_true", help="delete the topics of the entities and of their deltas, with all messages"
    )
    parser.add_argument(
        "--positions",
        action="store_true",
        help="delete the checkpoint; if the topics stay, the service then stops at a gap",
    )
    parser.add_argument(
        "--yes", action="store_true", help="drop what the other options name; without --yes, only show what exists"
    )


def execute(arguments: argparse.Namespace) -> int:
    """Shows what exists, and drops what the arguments name if `--yes` is given.

    Raises ChangelogError (IN_USE) if the service runs.
    """
    settings = config.load(arguments.config, os.environ)
    drops_on_kafka = arguments.topics or arguments.positions
    if drops_on_kafka and isinstance(settings.sink, FilesConfig):
        hint = f"to delete the log, delete the folder {settings.sink.path}"
        raise ChangelogError(Kind.USAGE, "--topics and --positions are for Kafka, but the sink is files", hint=hint)
    source = database(settings)
    remnants = source.remnants()
    kinds = {remnant.kind for remnant in remnants}
    for kind, of in (("slot", "PostgreSQL"), ("publication", "PostgreSQL"), ("group", "topics of Debezium")):
        if vars(arguments)[kind] and kind not in kinds:
            raise ChangelogError(Kind.USAGE, f"--{kind} is for {of}; the service creates none for this source")
    on_kafka = _read_kafka(settings, source)
    _show(settings, remnants, on_kafka)
    refuse_running(settings)
    if not (drops_on_kafka or any(vars(arguments)[kind] for kind in kinds)) or not arguments.yes:
        say(f"nothing is dropped: {_advice(settings, remnants)}")
        return 0
    if drops_on_kafka and on_kafka.trouble is not None:
        raise on_kafka.trouble
    for remnant in reversed(remnants):  # the slot last: it stays if dropping the publication fails
        if remnant.exists and vars(arguments).get(remnant.kind):
            source.drop(remnant.kind)
            say(f"dropped {remnant.kind} {remnant.name}")
    if isinstance(settings.sink, KafkaConfig):
        _drop_on_kafka(settings, settings.sink, on_kafka, topics=arguments.topics, positions=arguments.positions)
    return 0


def _advice(settings: Config, remnants: Sequence[Remnant]) -> str:
    """Returns how to drop something, as the end of a sentence."""
    options = [f"--{remnant.kind}" for remnant in remnants]
    if not options and isinstance(settings.sink, KafkaConfig):
        options = ["--topics", "--positions"]
    if not options:
        return "the service creates nothing on this server"
    return f"name what to drop, as in {' '.join(options)}, and add --yes"


def _read_kafka(settings: Config, source: Database) -> KafkaRemnants:
    """Looks for the topics and the checkpoint of this service on Kafka.

    Looks only for topics of entities that the checkpoint or the configuration has. Other topics with the same prefix
    may belong to other programs.
    """
    if isinstance(settings.sink, FilesConfig):
        return KafkaRemnants()
    try:
        names = {entity.name for entity in read_entities(settings, source)}
    except ChangelogError:  # for example, because a table is gone
        names = set(settings.entities)
    try:
        checkpoint = open_log(settings).checkpoint()
        names |= set() if checkpoint is None else checkpoint.settings.keys()
        with kafka_needed():
            from changelog.connectors.wiring import kafka  # noqa: PLC0415

            topics = kafka.topics_left(settings, settings.sink, sorted(names))
    except ChangelogError as error:
        return KafkaRemnants(trouble=error)
    return KafkaRemnants(topics=topics, checkpoint=checkpoint is not None)


def _drop_on_kafka(
    settings: Config, sink: KafkaConfig, on_kafka: KafkaRemnants, *, topics: bool, positions: bool
) -> None:
    with kafka_needed():
        from changelog.connectors.wiring import kafka  # noqa: PLC0415

        if topics and on_kafka.topics:
            kafka.delete(sink, list(on_kafka.topics))
            say(f"dropped {len(on_kafka.topics)} topics")
        if positions and on_kafka.checkpoint:
            kafka.forget(settings, sink)
            say(f"dropped the checkpoint of the source {settings.name}")


def _show(settings: Config, remnants: Sequence[Remnant], on_kafka: KafkaRemnants) -> None:
    for remnant in remnants:
        say(f"{remnant.kind:<13}{remnant.name}: {_state_of(remnant)}")
    if isinstance(settings.sink, FilesConfig):
        say(f"log          {settings.sink.path}: is never dropped; delete the folder yourself")
        return
    if on_kafka.trouble is not None:
        say(f"topics       unknown: {on_kafka.trouble}")
        return
    for name, count in on_kafka.topics.items():
        say(f"topic        {name}: {count:,} messages (at most)")
    say(f"positions    {settings.name}: {'there' if on_kafka.checkpoint else 'there is none'}")


def _state_of(remnant: Remnant) -> str:
    if not remnant.exists:
        return "there is none"
    return "there" if remnant.nbytes is None else f"there; the server keeps {show.size(remnant.nbytes)} of log for it"
