"""Announces a new version of an entity's columns just before the first row that has these columns.

An entity's rows have a *look*: their columns, and the number of their table in the database (its *relation*). If the
changelog has no version with a look, a row that announces a new version is published before the first row with that
look.
"""

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
    """A row before which a version must be announced: an entity's first row with a look that is new to the changelog.

    `row` is the number of the row in the batch.
    """

    row: int
    entity: Entity
    look: Look


class Announcer:
    """Remembers which entities have a look that the changelog does not have yet.

    `versions` knows the columns that the changelog has; without it, nothing is announced.
    """

    def __init__(self, versions: Versions | None) -> None:
        self._versions = versions
        self._unannounced: dict[str, tuple[Entity, Look]] = {}

    def look(self, entity: Entity, look: Look) -> None:
        """Records that the next rows of the entity have this look."""
        if self._versions is None or self._versions.has(entity, look):
            self._unannounced.pop(entity.name, None)
        else:
            self._unannounced[entity.name] = entity, look

    def firsts(self, rows: pa.RecordBatch) -> Sequence[First]:
        """Returns the rows before which a version must be announced, in their order."""
        firsts = [
            First(row=pc.index(rows.column("entity"), entity.name).as_py(), entity=entity, look=look)
            for entity, look in self._unannounced.values()
        ]
        return sorted((first for first in firsts if first.row >= 0), key=lambda first: first.row)

    def announce(self, first: First, provenance: str) -> Announced:
        """Returns the version that begins with the row `first`, whose provenance is the JSON text `provenance`.

        Raises ChangelogError, with the row's position, if the version is incompatible with readers, or if the
        database's catalogue cannot be read.
        """
        assert self._versions is not None
        del self._unannounced[first.entity.name]
        decoded = json_codec.decode_provenance(provenance)
        try:
            return self._versions.announce(first.entity, first.look, decoded)
        except ChangelogError as error:
            error.position = decoded.source.position  # for every error, even a lost connection
            raise
