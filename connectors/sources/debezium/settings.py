"""Defines the settings of the Debezium source."""

from collections.abc import Callable
from dataclasses import dataclass, field

from changelog.connectors.capture.settings_guard import PLAIN_CODEC
from changelog.connectors.sources.debezium.inputs import ConfiguredInput, Declared
from changelog.connectors.sources.debezium.tables import Translate


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """Settings for a source that publishes each transaction as a whole, once all of its events have arrived.

    Debezium writes the BEGIN and the END of each transaction to `topic`, and PostgreSQL's logical messages to
    `messages`. All messages of one transaction, row events included, may take up at most `bytes_max` bytes.
    """

    topic: str
    messages: str
    bytes_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of one source.

    `name` is the name of the changelog, and `connector` that of Debezium's connector. `origin` says where the events
    come from. `translator` makes a new function that translates Debezium's messages into events. `hmac_key` is the
    secret of the `sha256` masks. `codec` names the format in which the sink stores rows; the source only checks that it
    has not changed. `keeps_state` says that the service itself stores the current row of every key. With
    `accept_settings`, the source continues even if settings that decide the order or the content of the changelog have
    changed. `declared` has the tables whose keys the configuration names, with the columns that it names; a table
    without any event so far is known only from `declared`. Without `whole`, transactions are published as they arrive.
    `snapshots` is a hash of the properties that decide which rows Debezium's snapshots read. It is empty if the source
    makes no sweep. A sweep searches for rows that disappeared between two snapshots (see the module `snapshots`).
    """

    name: str
    connector: str
    origin: ConfiguredInput
    translator: Callable[[], Translate]
    hmac_key: bytes
    codec: str = PLAIN_CODEC
    keeps_state: bool = False
    accept_settings: bool = False
    declared: Declared = field(default_factory=dict)
    whole: Whole | None = None
    snapshots: str = ""
