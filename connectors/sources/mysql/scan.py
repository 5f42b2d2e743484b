"""Implements `changelog.connectors.sources.fences.Scan`: reads tables from the files to which a fence copied them.

Each table is one Parquet file with the columns of `fences.ROWS`. Spark's executors import this module.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from changelog.connectors.sources.fences import KeyBounds, Pages
from changelog.envelope.errors import ChangelogError, Kind

GROUP_PAGES = 512
"""Comparisons divide the reading of a table by pages. Here, each row group of the table's file counts as this many
pages, and all of the group's rows are in the first of these pages.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedTable:
    """The file with a table's rows, and how many columns the table's key has."""

    file: Path
    key_columns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MysqlScan:
    """Implements `changelog.connectors.sources.fences.Scan`. `tables` maps the names of entities to their copies.

    A locator is the number of a row group and the number of a row in this group, with a colon between them.
    """

    tables: Mapping[str, CopiedTable]

    def rows(self, parts: Sequence[Pages], keys: KeyBounds | None) -> Iterator[pa.RecordBatch]:
        """See `Scan.rows`."""
        for part in parts:
            table = self.tables[part.entity]
            with _opened(table.file) as parquet:
                for group in _groups(part, parquet.num_row_groups):
                    for batch in parquet.read_row_group(group).to_batches():
                        yield batch if keys is None else _in_range(batch, keys, table.key_columns)

    def rows_at(self, locators: Mapping[tuple[str, int], Sequence[str]]) -> Iterator[pa.RecordBatch]:
        """See `Scan.rows_at`."""
        for (entity, _), texts in locators.items():
            with _opened(self.tables[entity].file) as parquet:
                for group, numbers in sorted(_by_group(texts).items()):
                    yield from parquet.read_row_group(group).take(numbers).to_batches()


def locators(group: int, count: int) -> pa.StringArray:
    """Returns the locators of the `count` rows of a row group."""
    return pa.array([f"{group}:{number}" for number in range(count)], pa.utf8())


def _by_group(texts: Sequence[str]) -> Mapping[int, list[int]]:
    by_group: dict[int, list[int]] = defaultdict(list)
    for text in texts:
        group, _, number = text.partition(":")
        by_group[int(group)].append(int(number))
    return by_group


def _opened(file: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(file)
    except FileNotFoundError:
        raise ChangelogError(
            Kind.CONNECTION,
            "the copy of a table is not there: the fence has ended, or this machine cannot reach the copy's folder",
            hint="set [source] fence_folder to a folder that all machines of the Spark cluster share",
        ) from None


def _groups(part: Pages, count: int) -> Iterator[int]:
    """Yields the row groups whose first page is in a part."""
    for group in range(count):
        page = group * GROUP_PAGES
        if part.first <= page and (part.end is None or page < part.end):
            yield group


def _in_range(batch: pa.RecordBatch, keys: KeyBounds, key_columns: int) -> pa.RecordBatch:
    """Returns the rows whose keys are in a range. Only the first column of a key counts. Texts can be compared as they
    are, because Python orders them as their bytes in UTF-8.
    """
    is_number = isinstance(keys.first if keys.first is not None else keys.end, int)
    value_of: Callable[[str], int | str] = int if is_number else str
    texts = batch.column("key").to_pylist()
    firsts = texts if key_columns == 1 else [msgspec.json.decode(text, type=list[str])[0] for text in texts]
    mask = [_holds(keys, value_of(text)) for text in firsts]
    return batch.filter(pa.array(mask, pa.bool_()))


def _holds(keys: KeyBounds, value: int | str) -> bool:
    return (keys.first is None or keys.first <= value) and (keys.end is None or value < keys.end)  # type: ignore[operator]
