"""`changelog drop`: removes what the service left behind in the database, and on Kafka."""

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import sql

from connectors import config, show
from connectors.commands.accept import refuse_running
from connectors.config import Config, FilesConfig, KafkaConfig
from connectors.sources.postgres.admin.catalog import read_tables
from connectors.sources.postgres.admin.slot import SlotState, slot_state
from connectors.sources.postgres.session.connection import connect, translated
from connectors.terminal import say
from connectors.wiring import entities
from connectors.wiring.sinks import extra_needed, open_log
from envelope.errors import ChangelogError, Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What is left on Kafka: topics, and how many messages are in each at most; and a checkpoint.

    `trouble` is why it is not known.
    """

    topics: Mapping[str, int] = field(default_factory=dict)
    checkpoint: bool = False
    trouble: ChangelogError | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `changelog drop` takes."""
    parser.add_argument("--slot", action="store_true", help="the replication slot: the service can then not go on")
    parser.add_argument("--publication", action="store_true", help="the publication")
    parser.add_argument(
        "--topics", action="store_true", help="the entities' topics and those of their deltas, with all in them"
    )
    parser.add_argument("--positions", action="store_true", help="the checkpoint, without which topics stay a gap")
    parser.add_argument("--yes", action="store_true", help="do it; without, only show what would go")


def execute(arguments: argparse.Namespace) -> int:
    """Shows what there is and, with --yes, drops what was named; refuses while the service runs."""
    settings = config.load(arguments.config, os.environ)
    of_kafka = arguments.topics or arguments.positions
    if of_kafka and isinstance(settings.sink, FilesConfig):
        hint = f"the log in {settings.sink.path} is yours to delete"
        raise ChangelogError(Kind.USAGE, "--topics and --positions are of Kafka, and the sink is files", hint=hint)
    with connect(settings.source.dsn) as connection, translated("dropping"):
        slot = slot_state(connection, settings.slot)
        query = "SELECT true FROM pg_publication WHERE pubname = %s"
        published = connection.execute(query, [settings.publication]).fetchone() is not None
        left = _left(settings, connection)
        _show(settings, slot, left, published=published)
        refuse_running(settings)
        if not (of_kafka or arguments.slot or arguments.publication) or not arguments.yes:
            say("nothing is dropped: name what should go, as in --slot --publication, and add --yes")
            return 0
        if of_kafka and left.trouble is not None:
            raise left.trouble
        if arguments.publication and published:
            _drop_publication(connection, settings.publication)
        if arguments.slot and slot is not None:
            connection.execute("SELECT pg_drop_replication_slot(%s)", [settings.slot])
            say(f"dropped slot {settings.slot}")
    if isinstance(settings.sink, KafkaConfig):
        _drop_on_kafka(settings, settings.sink, left, topics=arguments.topics, positions=arguments.positions)
    return 0


def _left(settings: Config, connection: psycopg.Connection[Any]) -> Left:
    """Of our own entities only: those that the checkpoint or the configuration names. A prefix may be shared."""
    if isinstance(settings.sink, FilesConfig):
        return Left()
    try:
        ours = {entity.name for entity in entities.resolve(settings, read_tables(connection))}
    except ChangelogError:  # a table is gone, say
        ours = set(settings.entities)
    try:
        checkpoint = open_log(settings).checkpoint()
        ours |= set() if checkpoint is None else checkpoint.settings.keys()
        with extra_needed():
            from connectors.wiring import kafka  # noqa: PLC0415

            topics = kafka.topics_left(settings, settings.sink, sorted(ours))
    except ChangelogError as error:
        return Left(trouble=error)
    return Left(topics=topics, checkpoint=checkpoint is not None)


def _drop_on_kafka(settings: Config, sink: KafkaConfig, left: Left, *, topics: bool, positions: bool) -> None:
    with extra_needed():
        from connectors.wiring import kafka  # noqa: PLC0415

        if topics and left.topics:
            kafka.delete(sink, list(left.topics))
            say(f"dropped {len(left.topics)} topics")
        if positions and left.checkpoint:
            kafka.forget(settings, sink)
            say(f"dropped the checkpoint of {settings.name}")


def _drop_publication(connection: psycopg.Connection[Any], name: str) -> None:
    """It often belongs to the role that set the service up: then nothing is dropped yet."""
    try:
        connection.execute(sql.SQL("DROP PUBLICATION {}").format(sql.Identifier(name)))
    except psycopg.errors.InsufficientPrivilege as error:
        raise ChangelogError(
            Kind.ACCESS, f"publication {name} belongs to another role; nothing was dropped", hint="drop it as its owner"
        ) from error
    say(f"dropped publication {name}")


def _show(settings: Config, slot: SlotState | None, left: Left, *, published: bool) -> None:
    if slot is None:
        say(f"slot         {settings.slot}: there is none")
    else:
        say(f"slot         {settings.slot}: retains {show.size(slot.retained_bytes or 0)} of log on the server")
    say(f"publication  {settings.publication}: {'there' if published else 'there is none'}")
    if isinstance(settings.sink, FilesConfig):
        say(f"log          {settings.sink.path}: stays; it is yours to delete")
        return
    if left.trouble is not None:
        say(f"topics       unknown: {left.trouble}")
        return
    for name, count in left.topics.items():
        say(f"topic        {name}: {count:,} messages, at most")
    say(f"positions    {settings.name}: {'there' if left.checkpoint else 'there is none'}")
