"""Defines the record of a gap. A gap is a part of the database's log that was lost before its changes could be
published. The record says what is known about it, and is a row of the reserved entity `gaps`.

The record has the first position of a new epoch (`changelog.envelope.position`). So every row after the gap has a later
position than every row before the gap.
"""

from datetime import datetime
from typing import Self

import msgspec
from msgspec import Raw

from changelog.envelope.entity import GAPS
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.key import key_text
from changelog.envelope.model import MISSING, Envelope, Op, Place, Provenance, Record, Source
from changelog.envelope.position import Position
from changelog.envelope.versions import PUBLISHER

NO_TRANSACTION = "0"
"""The transaction id in a gap's record. It is PostgreSQL's invalid id, because no transaction wrote the record."""


class Side(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The start or the end of a gap. A member that is None is unknown.

    | member | at the start of the gap | at the end of the gap |
    |---|---|---|
    | `position` | the position of the last row | the position of the gap's record |
    | `through` | the log position up to which the changelog is complete | the log position from which it continues |
    | `committed_at` | the commit time of the last row | None |

    A log position is written as the database prints it. `system` and `timeline` say which database's log this is.
    """

    position: str | None
    epoch: int
    through: str | None
    system: str | None
    timeline: int | None
    committed_at: datetime | None = None


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """A gap in the changelog `name`: why changes were lost, and where the gap starts and ends.

    After the gap, the service reads the tables of `entities` again. For keys that a table no longer has, it publishes
    deletes.
    """

    name: str
    reason: str
    before: Side
    after: Side
    entities: tuple[str, ...]

    @classmethod
    def parse(cls, state: bytes | Raw) -> Self:
        """Parses a gap from the `current` of a row. Raises ChangelogError (MALFORMED) if it is not a gap."""
        try:
            return msgspec.json.decode(state, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ChangelogError(Kind.MALFORMED, "a row of the entity `gaps` is not a gap") from error

    def record(self, *, connector: str, database: str, at: datetime) -> Record:
        """Returns the row that records the gap. `at` is the time at which the service continued past the gap.

        The row's key is the changelog's name and the epoch after the gap.
        """
        assert self.after.position is not None
        source = Source(
            connector=connector,
            name=self.name,
            database=database,
            table="",
            op=Op.CREATE,
            position=Position.parse(self.after.position),
            transaction=NO_TRANSACTION,
            committed_at=at,
        )
        return Record(
            entity=GAPS,
            place=Place(key=key_text([self.name, str(self.after.epoch)]), partition=0),
            envelope=Envelope(
                provenance=Provenance(stamp=PUBLISHER, source=source),
                current=Raw(msgspec.json.encode(self)),
                original=MISSING,
            ),
        )
