"""Announces a new version of an entity's columns just before the first row that has these columns.

A version has the columns of a table, the table's number in the database (its *relation*), and an id of the entity's
settings. If one of these differs from the entity's last version, a new version is announced: it is published as a row
of its own, just before the entity's next row.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from changelog.envelope.codec import json_codec
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError
from changelog.envelope.versions import Announced, TableColumns, Versions


@dataclass(frozen=True, slots=True, kw_only=True)
class First:
    """A row before which a new version must be announced: an entity's first row that its last version does not fit.

    `row` is the number of the row in the batch. `table` has the columns of the row.
    """

    row: int
    entity: Entity
    table: TableColumns


class Announcer:
    """Remembers which entities need a new version.

    `versions` knows the versions that the changelog has; without it, nothing is announced.
    """

    def __init__(self, versions: Versions | None) -> None:
        self._versions = versions
        self._unannounced: dict[str, tuple[Entity, TableColumns]] = {}

    def set_columns(self, entity: Entity, table: TableColumns) -> None:
        """Records that the next rows of the entity have these columns."""
        if self._versions is None or self._versions.has(entity, table):
            self._unannounced.pop(entity.name, None)
        else:
            self._unannounced[entity.name] = entity, table

    def firsts(self, rows: pa.RecordBatch) -> Sequence[First]:
        """Returns the rows before which a version must be announced, in their order."""
        firsts = [
            First(row=pc.index(rows.column("entity"), entity.name).as_py(), entity=entity, table=table)
            for entity, table in self._unannounced.values()
        ]
        return sorted((first for first in firsts if first.row >= 0), key=lambda first: first.row)

    def announce(self, first: First, provenance: str) -> Announced:
        """Returns the version that begins with the row `first`. `provenance` is the row's provenance as JSON text.

        Raises ChangelogError, with the row's position, if the version is not compatible with earlier versions, or if
        the database's catalogue cannot be read.
        """
        assert self._versions is not None
        del self._unannounced[first.entity.name]
        decoded = json_codec.decode_provenance(provenance)
        try:
            return self._versions.announce(first.entity, first.table, decoded)
        except ChangelogError as error:
            error.position = decoded.source.position  # for every error, even a lost connection
            raise
