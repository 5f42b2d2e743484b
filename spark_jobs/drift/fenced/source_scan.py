"""Reads rows of tables at a fence in Spark's tasks: a task reads the parts whose numbers it is given."""

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from changelog.connectors.sources.fences import KeyBounds, Pages, Scan


def scan(
    batches: Iterable[pa.RecordBatch], *, reading: Scan, parts: Sequence[Sequence[Pages]], keys: KeyBounds | None
) -> Iterator[pa.RecordBatch]:
    """The rows (`changelog.connectors.sources.fences.ROWS`) in the range, of the parts whose numbers the first column
    has.
    """
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield from reading.rows(parts[number], keys)
