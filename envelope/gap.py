"""The record of a gap, a row of the reserved entity `gaps`: what is known about changes that a changelog lacks.

Its position is the first one of a new epoch, so that every row after the gap is newer than every row before it.
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
"""PostgreSQL's invalid transaction id, because no transaction wrote the record."""


class Side(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One side of a gap: a place in the changelog and in the database's log. None means unknown.

    `position` is that of the last row before the gap, or of the record itself. `through` is the log position up to
    which the changelog is complete, or from which it continues, as the database prints it; `system` and `timeline` say
    which database's log that is. `committed_at` is the time of the last row before the gap.
    """

    position: str | None
    epoch: int
    through: str | None
    system: str | None
    timeline: int | None
    committed_at: datetime | None = None


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """A gap in the changelog `name`: why changes were lost, and between which places.

    The tables of `entities` are read again after it, and keys that they lack are deleted.
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
        """The row. Its key is the changelog's name with the epoch after the gap; `at` is when the gap was crossed."""
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
