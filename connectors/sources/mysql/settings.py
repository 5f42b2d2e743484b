"""Defines the settings of the MySQL source, and opens its sessions."""

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from changelog.connectors.capture.settings_guard import PLAIN_CODEC
from changelog.connectors.sources.mysql.session.address import Address
from changelog.connectors.sources.mysql.session.connection import Connection
from changelog.connectors.sources.mysql.session.packets import ANSWER_S, PacketPatience
from changelog.connectors.sources.mysql.snapshot.chunk_reader import SESSION
from changelog.connectors.sources.mysql.snapshot.key_progress import CHUNK_ROWS
from changelog.connectors.sources.mysql.values.selected import SETTINGS

_SERVER_ID_BASE = 0x4000_0000


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of one source.

    `name` is the name of the changelog. `hmac_key` is the secret of the `sha256` masks. `codec` names the format in
    which the sink stores rows; the source only checks that it has not changed. Tables are read in chunks of
    `chunk_rows` rows, by as many threads as `workers` says. Signals must be signed with `signals_secret`; without a
    secret, all signals are obeyed. `keeps_state` says that the service knows the current row of every key; then MySQL's
    log need not have all values of TEXT and BLOB columns. `replica_id` is the `server_id` under which we ask the server
    for its log, as a replica would; by default it is computed from `name`.

    Comparisons copy tables to new folders in `fence_folder`; None means the usual folder for temporary files.

    `patience_s` is how many seconds a start waits for a lock that a dead session may still hold. With
    `accept_settings`, the source continues even if settings have changed on which the order or the content of the
    changelog depends. With `accept_server`, the source continues even if the server's log lacks transactions that the
    changelog has.

    A connection counts as lost if a query gets no answer for `answer_s` seconds, or if a table read gets no byte for
    `read_s` seconds. Every wait ends soon after `stopping` returns true. `connections` holds the ids of all connections
    that have read the log for this process, so that it recognises its own lost sessions.
    """

    name: str
    dsn: str
    hmac_key: bytes
    signals_secret: bytes | None = None
    codec: str = PLAIN_CODEC
    keeps_state: bool = False
    workers: int = 2
    chunk_rows: int = CHUNK_ROWS
    replica_id: int | None = None
    fence_folder: Path | None = None
    patience_s: float = 5.0
    accept_settings: bool = False
    accept_server: bool = False
    answer_s: float = ANSWER_S
    read_s: float = 300.0
    connections: set[int] = field(default_factory=set)
    stopping: Callable[[], bool] = lambda: False

    @cached_property
    def address(self) -> Address:
        """The server and the account. Raises ChangelogError (USAGE)."""
        return Address.parse(self.dsn)

    @property
    def server_id(self) -> int:
        """The id under which the service asks for the log. No replica of the server may have the same id."""
        return self.replica_id or _SERVER_ID_BASE | zlib.crc32(self.name.encode()) >> 2

    def connect(self) -> Connection:
        """Opens a session for short queries."""
        patience = PacketPatience(silence_s=self.answer_s, stopping=self.stopping)
        return Connection(self.address, patience=patience, statements=SETTINGS)

    def connect_reading(self, stopping: Callable[[], bool]) -> Connection:
        """Opens a session that reads tables. A wait ends at once when `stopping` returns true."""
        patience = PacketPatience(silence_s=self.read_s, stopping=stopping, stopping_s=0.0)
        return Connection(self.address, patience=patience, statements=(*SETTINGS, *SESSION))
