"""Defines the members of Debezium's messages.

Events, messages about transactions or tables, and heartbeats share one type (`Payload`), because a message in JSON does
not say which of them it is.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from changelog.connectors.sources.debezium.decode.facts import SourceBlock, TransactionBlock

NULL: Final = Raw(b"null")


class MessageBlock(msgspec.Struct, gc=False):
    """The block `message` of an event with `op` m. `content` is in base64."""

    prefix: str = ""
    content: str | None = None


class Count(msgspec.Struct, gc=False):
    """The number of events that a transaction has in one table."""

    data_collection: str = ""
    event_count: int = 0


class Payload(msgspec.Struct, gc=False):
    """The members of an event, or of a message about a transaction or a table. A message has only some of them."""

    op: str | None = None
    before: Raw = NULL
    after: Raw = NULL
    source: SourceBlock | None = None
    transaction: TransactionBlock | None = None
    message: MessageBlock | None = None
    status: str | None = None
    id: str | None = None
    event_count: int | None = None
    data_collections: Sequence[Count] | None = None
    ts_ms: int | None = None
    ddl: Raw | UnsetType = UNSET
    tableChanges: Raw | UnsetType = UNSET  # noqa: N815 - as Debezium spells it
    updateDescription: Raw = NULL  # noqa: N815


class Outer(msgspec.Struct, gc=False):
    """The two members of a message that carries its schema."""

    schema: Raw | UnsetType = UNSET
    payload: Raw | UnsetType = UNSET


payloads: Final = msgspec.json.Decoder(Payload)
outers: Final = msgspec.json.Decoder(Outer)
