"""Reads and drops the slot and the publication that a service leaves in its database."""

import psycopg
from psycopg import sql

from changelog.connectors.sources import Remnant
from changelog.connectors.sources.postgres.admin.slot import slot_state
from changelog.connectors.sources.postgres.session.connection import Connection, translated
from changelog.envelope.errors import ChangelogError, Kind

SLOT, PUBLICATION = "slot", "publication"


def read(connection: Connection, slot: str, publication: str) -> list[Remnant]:
    """Returns the present state of the slot and the publication."""
    state = slot_state(connection, slot)
    query = "SELECT true FROM pg_publication WHERE pubname = %s"
    with translated("looking for the publication"):
        has_publication = connection.execute(query, [publication]).fetchone() is not None
    retained = 0 if state is None else state.retained_bytes or 0
    return [
        Remnant(kind=SLOT, name=slot, exists=state is not None, nbytes=retained),
        Remnant(kind=PUBLICATION, name=publication, exists=has_publication),
    ]


def drop(connection: Connection, kind: str, name: str) -> None:
    """Drops the slot or the publication of this name."""
    with translated("dropping"):
        if kind == SLOT:
            connection.execute("SELECT pg_drop_replication_slot(%s)", [name])
        else:
            _drop_publication(connection, name)


def _drop_publication(connection: Connection, name: str) -> None:
    """Drops the publication.

    Raises ChangelogError (ACCESS) if the publication belongs to another role. Often, that role set the service up.
    """
    try:
        connection.execute(sql.SQL("DROP PUBLICATION {}").format(sql.Identifier(name)))
    except psycopg.errors.InsufficientPrivilege as error:
        raise ChangelogError(
            Kind.ACCESS, f"publication {name} belongs to another role; nothing was dropped", hint="drop it as its owner"
        ) from error
