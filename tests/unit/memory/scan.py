"""Scans a database in memory: implements the protocol `Scan` of `changelog.connectors.sources.fences`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from changelog.connectors.capture.rows import row_records
from changelog.connectors.capture.rows.binding import Binding
from changelog.connectors.capture.rows.row_records import Change, Origin, Transaction
from changelog.connectors.sources.fences import ROWS, KeyBounds, Pages
from tests.unit.memory.world import KEYS

LEAVES = 2
LEAF_KEYS = KEYS // LEAVES
PAGE_KEYS = 4
"""How many keys a page has.

A table has two leaves (parts that store rows), one with the lower keys and one with the upper keys. A leaf consists of
pages.
"""

_NOWHERE = Change(transaction=Transaction(xid=0, name="0", epoch=0, commit=0, committed_at=0), ordinal=0, stamp=None)
_ORIGIN = Origin(connector="memory", name="", database="")


@dataclass(frozen=True, slots=True)
class ScannedTable:
    """A copy of a table's rows by key, and the binding that encodes them."""

    binding: Binding
    rows: Mapping[int, tuple[bytes | None, ...]]


@dataclass(frozen=True, slots=True)
class MemoryScan:
    """See `changelog.connectors.sources.fences.Scan`.

    It reads copies of the tables. The copies were made at the fence, so they also have rows that were deleted later.
    """

    tables: Mapping[str, ScannedTable]

    def rows(self, parts: Sequence[Pages], keys: KeyBounds | None) -> Iterator[pa.RecordBatch]:
        """See `Scan.rows`."""
        for part in parts:
            table = self.tables[part.entity]
            in_part = (key for key in table.rows if _contains(part, key))
            yield _encoded(table, part.leaf, [key for key in in_part if keys is None or _is_within(keys, key)])

    def rows_at(self, locators: Mapping[tuple[str, int], Sequence[str]]) -> Iterator[pa.RecordBatch]:
        """See `Scan.rows_at`."""
        for (entity, leaf), texts in locators.items():
            yield _encoded(self.tables[entity], leaf, [_key_at(leaf, text) for text in texts])


def _contains(part: Pages, key: int) -> bool:
    leaf, within = divmod(key, LEAF_KEYS)
    page = within // PAGE_KEYS
    return leaf == part.leaf and part.first <= page and (part.end is None or page < part.end)


def _is_within(keys: KeyBounds, key: int) -> bool:
    assert keys.column == "id"
    bounds = [bound for bound in (keys.first, keys.end) if bound is not None]
    assert all(isinstance(bound, int) for bound in bounds)
    return (keys.first is None or int(keys.first) <= key) and (keys.end is None or key < int(keys.end))


def _locator(key: int) -> str:
    return f"row {key % LEAF_KEYS}"


def _key_at(leaf: int, locator: str) -> int:
    return leaf * LEAF_KEYS + int(locator.removeprefix("row "))


def _encoded(table: ScannedTable, leaf: int, keys: Iterable[int]) -> pa.RecordBatch:
    key_records = [(key, row_records.read(_ORIGIN, table.binding, table.rows[key], _NOWHERE)) for key in keys]
    rows = [
        {
            "entity": record.entity,
            "key": record.place.key,
            "current": bytes(record.envelope.current).decode()
            if isinstance(record.envelope.current, msgspec.Raw)
            else None,
            "json_null": None,
            "leaf": leaf,
            "locator": _locator(key),
        }
        for key, record in key_records
    ]
    return pa.RecordBatch.from_pylist(rows, schema=ROWS)
