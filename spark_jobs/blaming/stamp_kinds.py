"""Finds who stamped each change: the application, the database's trigger, or nobody. Spark's executors run this."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from changelog.envelope.model import Stamp
from changelog.envelope.stamp import StampKind, kind_of

UNKNOWN: Final = "unknown"
"""Takes the place of a `StampKind` if the writer of a value is unknown: the changelog has the value, but does not have
the change that set it.
"""

STAMPED: Final = pa.schema(
    [
        pa.field("entity", pa.utf8()),
        pa.field("position", pa.utf8()),
        pa.field("day", pa.date32()),
        pa.field("service_name", pa.utf8()),
        pa.field("stamp", pa.utf8()),
    ]
)
"""The columns of the batches that `stamped` yields: one row for each change. `stamp` is a `StampKind`."""

CHANGE_COLUMNS: Final = ("entity", "position", "committed_at", "service_name", "context")
"""The columns of the batches that `stamped` takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DefaultStamps:
    """The stamps that the configuration gives to changes without a stamp. `by_entity` has those of some entities;
    `general` is for all other entities.
    """

    general: Stamp
    by_entity: Mapping[str, Stamp]

    def of(self, entity: str) -> Stamp:
        """Returns the default stamp of an entity."""
        return self.by_entity.get(entity, self.general)


def stamped(batches: Iterable[pa.RecordBatch], *, defaults: DefaultStamps) -> Iterator[pa.RecordBatch]:
    """Turns batches of `CHANGE_COLUMNS` into batches of `STAMPED`."""
    for batch in batches:
        entities, services = batch.column("entity"), batch.column("service_name")
        kinds_without_context: dict[tuple[str, str], StampKind] = {}
        kinds = []
        for entity, service, context in zip(
            entities.to_pylist(), services.to_pylist(), batch.column("context").to_pylist(), strict=True
        ):
            kind = kinds_without_context.get((entity, service)) if context is None else None
            if kind is None:
                stamp = Stamp(api_version="", service_name=service, identifier="", context=context)
                kind = kind_of(stamp, defaults.of(entity))
                if context is None:
                    kinds_without_context[entity, service] = kind
            kinds.append(kind.value)
        days = pc.cast(batch.column("committed_at"), pa.date32())
        arrays = [entities, batch.column("position"), days, services, pa.array(kinds, pa.utf8())]
        yield pa.RecordBatch.from_arrays(arrays, schema=STAMPED)
