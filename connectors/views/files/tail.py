"""Keeps an index in memory of the *tail*: the changes of the changelog that are not archived yet.

A *place* (`key_runs`) is, from the highest bit to the lowest: the sequence of the log's file, the number of the row in
the file, and whether the change ended the row.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from changelog.connectors.sinks.files.layout import log_file
from changelog.connectors.views.files.key_runs import KeyRuns, Places
from changelog.connectors.views.files.row_groups import read_columns
from changelog.envelope.entity import TRUNCATE_KEY
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Op
from changelog.envelope.service_choice import ALL_SERVICES, ServiceChoice

TAIL_BYTES = 1 << 30
"""How many bytes the index may take. A change takes 12 bytes, plus the bytes of its key."""

ADDED_ROWS = 1 << 20
"""How many changes are read before they are sorted into the index."""

_COLUMNS = ("entity", "key", "op", "service_name")

_ROW_BITS = 27
_ENDS = pa.array([Op.DELETE.value, Op.TRUNCATE.value])


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """The index of the log's files that are not archived. `last` is the sequence of the log's newest file, archived or
    not. Immutable, like `KeyRuns`.

    `runs` has the changes of each entity since its last truncate. `truncates` has the place of that truncate. Only
    changes that `services` includes are in the index.
    """

    last: int
    services: ServiceChoice = ALL_SERVICES
    runs: Mapping[str, KeyRuns] = field(default_factory=dict)
    truncates: Mapping[str, int] = field(default_factory=dict)

    def of(self, entity: str) -> KeyRuns:
        """Returns where the changes of an entity are; an empty `KeyRuns` if the tail has none."""
        return self.runs.get(entity, KeyRuns())

    def add_files(self, path: Path, sequences: Iterable[int]) -> "Tail":
        """Returns the index with further files of the log in the folder `path`.

        Raises ChangelogError: PRECONDITION if the index would take more than `TAIL_BYTES`, and the errors of
        `read_columns`.
        """
        tail = self
        files: list[tuple[int, list[pa.RecordBatch]]] = []
        rows = 0
        for sequence in sequences:
            files.append((sequence, read_columns(log_file(path, sequence), _COLUMNS)))
            rows += sum(len(batch) for batch in files[-1][1])
            if rows >= ADDED_ROWS:
                tail, files, rows = tail._with(path, files), [], 0
        return tail._with(path, files) if files else tail

    def after(self, archived: int) -> "Tail":
        """Returns the index without the files up to the sequence `archived`, which the archive has now."""
        begin = (archived + 1) << _ROW_BITS
        runs = {entity: runs.since(begin) for entity, runs in self.runs.items()}
        return Tail(
            last=max(self.last, archived),
            services=self.services,
            runs={entity: of_entity for entity, of_entity in runs.items() if of_entity.runs},
            truncates={entity: place for entity, place in self.truncates.items() if place >= begin},
        )

    def _with(self, path: Path, files: list[tuple[int, list[pa.RecordBatch]]]) -> "Tail":
        keys: dict[str, list[pa.StringArray]] = defaultdict(list)
        places: dict[str, list[Places]] = defaultdict(list)
        truncates = dict(self.truncates)
        for sequence, batches in files:
            for entity, entity_keys, entity_places in _of_entities(sequence, batches, self.services):
                is_truncate = pc.equal(entity_keys, TRUNCATE_KEY).to_numpy(zero_copy_only=False)
                if is_truncate.any():
                    truncates[entity] = int(entity_places[is_truncate].max())
                keys[entity].append(entity_keys)
                places[entity].append(entity_places)
        runs = dict(self.runs)
        for entity, of_entity in keys.items():
            runs[entity] = self.of(entity).add(of_entity, places[entity])
            if truncates.get(entity) != self.truncates.get(entity):
                runs[entity] = runs[entity].since(truncates[entity] + 1)
        if sum(of_entity.nbytes for of_entity in runs.values()) > TAIL_BYTES:
            raise ChangelogError(
                Kind.PRECONDITION,
                f"the log in {path} has more changes that are not archived than fit into {TAIL_BYTES >> 20} MiB",
                hint="archive them (docs/how-to/archive.md)",
            )
        return Tail(last=files[-1][0], services=self.services, runs=runs, truncates=truncates)


def of_services(rows: pa.RecordBatch, services: ServiceChoice) -> pa.BooleanArray | None:
    """Returns, for each change in `rows`, whether `services` includes it; None if it includes all changes."""
    if not services.names:
        return None
    is_named = pc.is_in(rows.column("service_name"), pa.array(services.names, pa.utf8()))
    return is_named if services.is_of_kept else pc.invert(is_named)


def sequence_and_row(place: int) -> tuple[int, int]:
    """Returns the sequence of the log's file in which a change is, and the number of its row there."""
    return place >> _ROW_BITS, (place & (1 << _ROW_BITS) - 1) >> 1


def ends_row(place: int) -> bool:
    """Returns whether the change at a place ended the row of its key."""
    return bool(place & 1)


def _of_entities(
    sequence: int, batches: Iterable[pa.RecordBatch], services: ServiceChoice
) -> Iterator[tuple[str, pa.StringArray, Places]]:
    """Yields, for each row group of a file and each entity in it, the entity, the keys of the changes that `services`
    includes, and their places.
    """
    first_row = 0
    for rows in batches:
        numbers = np.arange(first_row, first_row + len(rows), dtype=np.int64)
        first_row += len(rows)
        ends = pc.is_in(rows.column("op"), _ENDS).to_numpy(zero_copy_only=False)
        places = sequence << _ROW_BITS | numbers << 1 | ends
        is_included = of_services(rows, services)
        for entity in pc.unique(rows.column("entity")).to_pylist():
            mask = pc.equal(rows.column("entity"), entity)
            mask = mask if is_included is None else pc.and_(mask, is_included)
            yield entity, rows.column("key").filter(mask), places[mask.to_numpy(zero_copy_only=False)]
