"""What the PostgreSQL source is configured with, and how its sessions are set up."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from changelog.connectors.capture.settings_guard import PLAIN_CODEC
from changelog.connectors.sources.postgres.session.patience import ANSWER_S
from changelog.connectors.sources.postgres.snapshot.chunk_reader import LOCK_TIMEOUT_S
from changelog.connectors.sources.postgres.snapshot.page_progress import CHUNK_PAGES
from changelog.connectors.sources.postgres.values.text_to_json import SETTINGS

CATALOG_SETTINGS: Mapping[str, str] = {**SETTINGS, "lock_timeout": f"{LOCK_TIMEOUT_S}s"}
"""For the session that asks the catalogue: sizes wait for locks, and a long ALTER TABLE must not hold us up unsaid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the source is told.

    `patience_s` is how long a slot may still be held by a session that is gone; `accept_settings` lets the source
    go on although what shapes the changelog changed, `accept_cluster` although the cluster is another one. `codec` is
    what the sink makes of the rows: of no interest here, but that it shapes the changelog, too. Signals that are not
    signed with `signals_secret` are not obeyed; without it, all are.

    A connection is lost when the server does not answer for `answer_s`, or reads a table for `read_s` without a byte;
    no wait outlasts `stopping`. `sessions` are the server's processes of the sessions that this process has had, and
    `alive` is called now and then while opening rightly takes long.
    """

    name: str
    dsn: str
    slot: str
    publication: str
    failover: bool
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
