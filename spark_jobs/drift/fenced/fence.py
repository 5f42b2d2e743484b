"""A fence: one snapshot of the source that both sides of a comparison are cut by, as the driver and its tasks know it.

The driver takes and holds it (`hold_fence`); tasks import its snapshot by name (`source_scan`).
A row of the changelog counts if its transaction is visible in the snapshot, by its 64-bit id: so both sides show the
same transactions, however much is written meanwhile.
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
from connectors.sources.postgres.values.text_to_json import SETTINGS
from envelope.entity import Entity
from envelope.signal import FENCE_PREFIX

_SILENCE_S = 3600.0  # a task may look through many pages for the few rows that it wants
_NO_TRANSACTION_LIMIT = 170000  # from here on servers have transaction_timeout

Connection = psycopg.Connection[tuple[Any, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """What holds rows: its name as SQL has it, and its pages."""

    name: str
    pages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fenced:
    """A table as it is at the fence: how its rows are encoded, the columns to ask for in order, and its leaves."""

    binding: Binding
    columns: tuple[str, ...]
    leaves: tuple[Leaf, ...]

    @property
    def entity(self) -> Entity:
        """Whose table it is."""
        return self.binding.entity


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """A snapshot that others can import by its `name` as long as it is held; `text` is how the server prints it.

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
        """What it shows."""
        return Snapshot.parse(self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceDatabase:
    """The database, and what of the configuration shapes the rows that are read from it."""

    dsn: str = field(repr=False)
    hmac_key: bytes = field(repr=False)
    entities: Sequence[Entity]

    def connect(self) -> Connection:
        """A session in which values are printed as they are published, and which no timeout of the server's ends."""
        patience = Patience(silence_s=_SILENCE_S)
        connection = connect(self.dsn, settings={**SETTINGS, "lock_timeout": "0"}, patience=patience)
        if connection.info.server_version >= _NO_TRANSACTION_LIMIT:
            with translated("setting up the session"):
                connection.execute("SET transaction_timeout = 0")
        return connection

    def move_log_on(self) -> None:
        """Writes a message, alone in its transaction: the changelog gets behind what was committed before it."""
        with self.connect() as connection, translated("writing a message"):
            connection.execute("SET synchronous_commit = local")  # a paused standby must not hold the fence up
            connection.execute("SELECT pg_logical_emit_message(true, %s, '')", [FENCE_PREFIX])
