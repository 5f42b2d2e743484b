"""Columns that are new are announced with the first row that has them."""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from changelog.envelope.codec import json_codec
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError
from changelog.envelope.versions import Announced, Look, Versions


@dataclass(frozen=True, slots=True, kw_only=True)
class First:
    """The first row of a batch whose entity looks new."""

    row: int
    entity: Entity
    look: Look


class Announcer:
    """How the next rows of each entity look, and which of that the changelog does not have yet.

    `versions` knows what columns the changelog has; without it, none are announced.
    """

    def __init__(self, versions: Versions | None) -> None:
        self._versions = versions
        self._unannounced: dict[str, tuple[Entity, Look]] = {}

    def look(self, entity: Entity, look: Look) -> None:
        """The entity's next rows look so."""
        if self._versions is None or self._versions.has(entity, look):
            self._unannounced.pop(entity.name, None)
        else:
            self._unannounced[entity.name] = entity, look

    def firsts(self, rows: pa.RecordBatch) -> Sequence[First]:
        """Where a version is to be announced, in the order of the rows."""
        firsts = [
            First(row=pc.index(rows.column("entity"), entity.name).as_py(), entity=entity, look=look)
            for entity, look in self._unannounced.values()
        ]
        return sorted((first for first in firsts if first.row >= 0), key=lambda first: first.row)

    def announce(self, first: First, provenance: str) -> Announced:
        """The version that the row with this provenance begins. Raises ChangelogError, at the row's position."""
        assert self._versions is not None
        del self._unannounced[first.entity.name]
        decoded = json_codec.decode_provenance(provenance)
        try:
            return self._versions.announce(first.entity, first.look, decoded)
        except ChangelogError as error:
            error.position = decoded.source.position  # where the catalogue could not be asked, too
            raise
