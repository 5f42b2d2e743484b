"""Reads rows of tables under a fence, in Spark's tasks. A *part* is a list of ranges of pages. Each task gets the
numbers of the parts that it reads.
"""

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from changelog.connectors.sources.fences import KeyBounds, Pages, Scan


def scan(
    batches: Iterable[pa.RecordBatch], *, source: Scan, parts: Sequence[Sequence[Pages]], keys: KeyBounds | None
) -> Iterator[pa.RecordBatch]:
    """Yields the rows (`changelog.connectors.sources.fences.ROWS`) of some parts. With `keys`, yields only the rows in
    this range of keys.

    The first column of `batches` says which parts these are: it has their indexes in `parts`.
    """
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield from source.rows(parts[number], keys)
