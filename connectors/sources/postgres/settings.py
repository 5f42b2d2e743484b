"""Defines the configuration of the PostgreSQL source, and the settings of its sessions."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from changelog.connectors.capture.settings_guard import PLAIN_CODEC
from changelog.connectors.patience import ANSWER_S
from changelog.connectors.sources.postgres.snapshot.chunk_reader import LOCK_TIMEOUT_S
from changelog.connectors.sources.postgres.snapshot.page_progress import CHUNK_PAGES
from changelog.connectors.sources.postgres.values.text_to_json import SETTINGS

CATALOG_SETTINGS: Mapping[str, str] = {**SETTINGS, "lock_timeout": f"{LOCK_TIMEOUT_S}s"}
"""The settings of the session that reads the catalogue.

To read the size of a table, the session needs a lock, which a long ALTER TABLE can hold. Because of the timeout, the
session then fails instead of waiting silently.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of one source.

    `name` is the name of the changelog. `hmac_key` is the secret of the `sha256` masks. `codec` names the format in
    which the sink stores rows; the source only checks that it has not changed. Tables are read in chunks of
    `chunk_pages` pages, by as many threads as `workers` says. Signals must be signed with `signals_secret`; without a
    secret, all signals are obeyed. `failover` says that the slot is synchronized to standbys. `keeps_state` says that
    the service itself stores the current row of every key. Then the log need not contain whole old rows, only their
    keys.

    `patience_s` is how many seconds a start waits for a slot that a dead session may still hold. With
    `accept_settings`, the source continues even if a setting has changed that decides the order or the content of the
    changelog. With `accept_cluster`, it continues even on another database cluster.

    A connection counts as lost if a query gets no answer for `answer_s` seconds, or if a table read gets no byte for
    `read_s` seconds. Every wait ends soon after `stopping` returns true. `sessions` holds the process ids, on the
    server, of the replication sessions that this service has opened. The server creates a slot only after all running
    transactions have ended; `alive` is called now and then during this wait, so that the service does not count as
    hung.
    """

    name: str
    dsn: str
    slot: str
    publication: str
    failover: bool
    keeps_state: bool = False
    hmac_key: bytes
    signals_secret: bytes | None = None
    codec: str = PLAIN_CODEC
    workers: int = 2
    chunk_pages: int = CHUNK_PAGES
    patience_s: float = 5.0
    accept_settings: bool = False
    accept_cluster: bool = False
    answer_s: float = ANSWER_S
    read_s: float = 300.0
    sessions: set[int] = field(default_factory=set)
    stopping: Callable[[], bool] = lambda: False
    alive: Callable[[], None] = lambda: None
