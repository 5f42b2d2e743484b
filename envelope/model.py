"""What a message is: `<provenance, current, original>`."""

from dataclasses import dataclass
from datetime import datetime
from enum import Enum, StrEnum
from typing import Final

from msgspec import Raw

from envelope.position import Position


class Op(StrEnum):
    """What happened to the entity; `read` is a row read from the table, not from the log."""

    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"
    READ = "read"
    TRUNCATE = "truncate"


class Missing(Enum):
    """The type of `MISSING`, which is neither null nor unavailable."""

    MISSING = "missing"

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = Missing.MISSING
"""Nothing stands there: a state that does not exist, or an original that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """Who made a change: set by the application inside its own transaction, or a default.

    `context` is a JSON object, as the application wrote it (`envelope.stamp` says how large it may be); None for none.
    """

    api_version: str
    service_name: str
    identifier: str
    context: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a change was read.

    An event that a service published itself (`connectors.producer`) was read nowhere: it has an `id`, and its position
    is `UNPLACED` until a reader finds it at its offset.
    """

    connector: str
    name: str
    database: str
    table: str
    op: Op
    position: Position
    transaction: str
    committed_at: datetime
    unavailable: tuple[str, ...] = ()
    unavailable_original: tuple[str, ...] = ()
    json_null: tuple[str, ...] = ()
    json_null_original: tuple[str, ...] = ()
    mask: str | None = None
    id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Who made a change, and where it was read."""

    stamp: Stamp
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """One change of one entity: the full state after it and before it, as raw JSON text.

    create: `original` is MISSING. update: both, `original` MISSING when it is wholly unknown.
    delete: `current` is None. read: `current` only. truncate: both are None.
    """

    provenance: Provenance
    current: Raw | None
    original: Raw | None | Missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a message stands: the canonical key text and the partition."""

    key: str
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """An envelope with its address: one Kafka record, or one row of the file log.

    A changed key or partition value is two records, a delete with `moved_to` and a create with
    `moved_from`.
    """

    entity: str
    place: Place
    envelope: Envelope
    moved_to: Place | None = None
    moved_from: Place | None = None


def position_of(record: Record) -> Position:
    """Where in the order of its source a record stands."""
    return record.envelope.provenance.source.position
