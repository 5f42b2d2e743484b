"""A fence is one snapshot of the source by which both sides of a comparison are cut.

The driver takes and holds it (`hold_fence`); tasks import its snapshot by name (`source_scan`). A row of the changelog
counts if its transaction, by its 64-bit id, is visible in the snapshot. So both sides show the same transactions,
however much is written meanwhile.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import psycopg

from connectors.capture.rows.binding import Binding
from connectors.sources.postgres.session.connection import connect, translated
from connectors.sources.postgres.session.patience import Patience
from connectors.sources.postgres.snapshot.visibility import Snapshot
from connectors.sources.postgres.values.lsn import lsn_text
from connectors.sources.postgres.values.text_to_json import SETTINGS
from envelope.entity import Entity
from envelope.signal import FENCE_PREFIX

_SILENCE_S = 3600.0  # a task may read many pages before it finds a row
_NO_TRANSACTION_LIMIT = 170000  # servers from this version on have transaction_timeout

Connection = psycopg.Connection[tuple[Any, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A table or partition that holds rows: its quoted name and its number of pages."""

    name: str
    pages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fenced:
    """A table at the fence: how its rows are encoded, the columns to read in order, and its leaves."""

    binding: Binding
    columns: tuple[str, ...]
    leaves: tuple[Leaf, ...]

    @property
    def entity(self) -> Entity:
        """The entity that the table belongs to."""
        return self.binding.entity


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """A snapshot that other sessions can import by `name` while it is held; `text` is the server's text for it.

    Every commit that it shows ends in the log at or before `lsn`.
    """

    name: str
    text: str
    lsn: int
    timeline: int
    system_identifier: str
    database: str
    server: str
    taken_at: datetime
    tables: Mapping[str, Fenced]

    @property
    def snapshot(self) -> Snapshot:
        """The transactions that it shows."""
        return Snapshot.parse(self.text)

    @property
    def place(self) -> str:
        """`lsn` as the server prints it."""
        return lsn_text(self.lsn)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceDatabase:
    """The database, with the configuration that decides how its rows are read."""

    dsn: str = field(repr=False)
    hmac_key: bytes = field(repr=False)
    entities: Sequence[Entity]

    def connect(self) -> Connection:
        """Opens a session that prints values as they are published, and that no server timeout ends."""
        patience = Patience(silence_s=_SILENCE_S)
        connection = connect(self.dsn, settings={**SETTINGS, "lock_timeout": "0"}, patience=patience)
        if connection.info.server_version >= _NO_TRANSACTION_LIMIT:
            with translated("setting up the session"):
                connection.execute("SET transaction_timeout = 0")
        return connection

    def move_log_on(self) -> None:
        """Writes a message in a transaction of its own, so that the changelog moves past all earlier commits."""
        with self.connect() as connection, translated("writing a message"):
            connection.execute("SET synchronous_commit = local")  # a paused standby must not delay the fence
            connection.execute("SELECT pg_logical_emit_message(true, %s, '')", [FENCE_PREFIX])
