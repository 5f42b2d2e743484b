"""`changelog drop`: removes what the service left behind in the database."""

import argparse
import os
from typing import Any

import psycopg
from psycopg import sql

from connectors import config, show
from connectors.config import Config
from connectors.sources.postgres.connection import connect, translated
from connectors.sources.postgres.setup import SlotState, slot_state
from envelope.errors import ChangelogError, Kind


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `changelog drop` takes."""
    parser.add_argument("--slot", action="store_true", help="the replication slot: the service can then not go on")
    parser.add_argument("--publication", action="store_true", help="the publication")
    parser.add_argument("--yes", action="store_true", help="do it; without, only show what would go")


def execute(arguments: argparse.Namespace) -> int:
    """Shows what there is and, with --yes, drops what was named; refuses while the slot is read."""
    settings = config.load(arguments.config, os.environ)
    nothing_named = not (arguments.slot or arguments.publication)
    with connect(settings.source.dsn) as connection, translated("dropping"):
        slot = slot_state(connection, settings.slot)
        query = "SELECT true FROM pg_publication WHERE pubname = %s"
        published = connection.execute(query, [settings.publication]).fetchone() is not None
        _show(settings, slot, published=published)
        if slot is not None and slot.active_pid is not None:
            raise ChangelogError(
                Kind.IN_USE,
                f"slot {settings.slot} is in use by {slot.application or 'process'} {slot.active_pid}",
                hint="stop the service first",
            )
        if nothing_named or not arguments.yes:
            print("nothing is dropped: name what should go, --slot or --publication or both, and add --yes")
            return 0
        if arguments.publication and published:
            _drop_publication(connection, settings.publication)
        if arguments.slot and slot is not None:
            connection.execute("SELECT pg_drop_replication_slot(%s)", [settings.slot])
            print(f"dropped slot {settings.slot}")
    return 0


def _drop_publication(connection: psycopg.Connection[Any], name: str) -> None:
    """It often belongs to the role that set the service up: then nothing is dropped yet."""
    try:
        connection.execute(sql.SQL("DROP PUBLICATION {}").format(sql.Identifier(name)))
    except psycopg.errors.InsufficientPrivilege as error:
        raise ChangelogError(
            Kind.ACCESS, f"publication {name} belongs to another role; nothing was dropped", hint="drop it as its owner"
        ) from error
    print(f"dropped publication {name}")


def _show(settings: Config, slot: SlotState | None, *, published: bool) -> None:
    if slot is None:
        print(f"slot         {settings.slot}: there is none")
    else:
        print(f"slot         {settings.slot}: retains {show.size(slot.retained_bytes or 0)} of log on the server")
    print(f"publication  {settings.publication}: {'there' if published else 'there is none'}")
    print(f"log          {settings.sink.path}: stays; it is yours to delete")
