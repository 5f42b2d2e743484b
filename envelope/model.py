"""Defines the parts of a message: `<provenance, current, original>`.

A *state* is the JSON of a row. `current` is the state after a change, and `original` the state before the change.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import Enum, StrEnum
from typing import Final

from msgspec import Raw

from changelog.envelope.position import Position


class Op(StrEnum):
    """What happened to a row. `read` means that the row was read from the table rather than from the database's log."""

    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"
    READ = "read"
    TRUNCATE = "truncate"


class Missing(Enum):
    """The type of `MISSING`. MISSING stands for a whole state that a message does not have. It is not the same as null.

    A single value that the log did not send is something else: the state lacks its column, and `Source.unavailable`
    names the column.
    """

    MISSING = "missing"

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = Missing.MISSING
"""Stands for an absent state: a state that does not exist, or an original that is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """Who made a change. An application writes a stamp inside its own transaction. A change without a stamp gets the
    default stamp of the configuration.

    `context` is a JSON object as the application wrote it, or None. `changelog.envelope.stamp` has its size limits.
    """

    api_version: str
    service_name: str
    identifier: str
    context: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a change was read.

    `unavailable` names the columns that `current` lacks, because the database's log did not send their values.
    `json_null` names the json columns of `current` whose null is JSON's null rather than SQL's. `unavailable_original`
    and `json_null_original` are the same for `original`. `mask` identifies the masks of the entity's columns
    (`changelog.envelope.mask.mask_id`).

    An event that an application published itself (`changelog.connectors.producer`) was not read from any source. The
    application gives it an `id`. Its position is `UNPLACED` until a reader gives it a position from its Kafka offset.
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
    """Who made a change, and where the change was read."""

    stamp: Stamp
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """One change of one row: its provenance, and the row after the change and before the change, as raw JSON text.

    For a create or a read, `original` is MISSING. For an update, it is MISSING unless the source sent the whole old
    row; single values may still be missing from it (`unavailable_original`). For a delete, `current` is None. For a
    truncate, both are None.
    """

    provenance: Provenance
    current: Raw | None
    original: Raw | None | Missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The address of a message: its canonical key text and its partition."""

    key: str
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """An envelope with its address: one Kafka record, or one row of the file log.

    A row moves if a change gives it another key, or another value in a column of `partition_by`. Such a change makes
    two records: a delete with `moved_to` at the old address, and a create with `moved_from` at the new one.
    """

    entity: str
    place: Place
    envelope: Envelope
    moved_to: Place | None = None
    moved_from: Place | None = None


def position_of(record: Record) -> Position:
    """Returns the position of a record's change."""
    return record.envelope.provenance.source.position
