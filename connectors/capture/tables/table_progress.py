"""Defines how a checkpoint stores the progress of reading a table: the members that are the same for all sources.

A checkpoint stores one entry for each entity. An entry is a JSON object with these members:

- `complete`: whether the table was read completely.
- `stale`: the columns with outdated values in older rows of the changelog; absent if there are none. In these columns,
  the table's rows got new values that the database's log does not show, for example from the default of a new column.
  If only a part of the table is read again, the entry keeps `stale`, also after that part is read.
- `again`: if a table that was complete is now read again, the columns because of which it is read; `ALL_COLUMNS` stands
  for all columns. Otherwise, `again` is absent.
- `leaves`: the parts of the table by name, such as its partitions. `leaves` is absent until the reading is planned, and
  when the table is complete. Each leaf has these members:
    - `pages`: the size of the leaf when its reading was planned, in pages. What a page is depends on the source.
    - `left`: the ranges still to read, as `[first, end)` pairs. A bound is the number of a page, or a list that begins
      with that number if the bound is inside the page. `end` is None if the range goes to the end of the leaf.

While a table is not complete, its source may add further members to the entry and to each leaf. They identify the
table, so that the source notices if the table was replaced.
"""

from collections.abc import Mapping, Sequence
from typing import Any

COMPLETE: Mapping[str, Any] = {"complete": True}
"""The entry of a table that was read completely."""

ALL_COLUMNS = "*"
"""The name in `again` that means all columns."""


def is_complete(progress: Mapping[str, Any] | None) -> bool:
    """Returns whether the entry says that the table was read completely."""
    return progress is not None and bool(progress.get("complete"))


def was_complete(progress: Mapping[str, Any] | None) -> bool:
    """Returns whether the table was read completely at least once, even if it is now read again."""
    return is_complete(progress) or (progress is not None and "again" in progress)


def from_start(progress: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the entry without its progress, so that reading starts over. A complete table keeps its entry.

    Used for a changelog that continues from another server, where the stored ranges mean nothing.
    """
    if is_complete(progress):
        return progress
    return {name: progress[name] for name in ("complete", "again") if name in progress}


def pages_read(progress: Mapping[str, Any]) -> tuple[int, int]:
    """Returns how many pages of the table are read and published, and how many pages it has.

    An empty table counts as one page. If the reading is not planned yet, the result is (0, 1).
    """
    leaves = progress.get("leaves", {}).values()
    total = max(sum(leaf["pages"] for leaf in leaves), 1)
    if progress["complete"]:
        return total, total
    if not leaves:
        return 0, total
    pages_left = sum(
        max((leaf["pages"] if end is None else _page_number(end)) - _page_number(first), 1)
        for leaf in leaves
        for first, end in leaf["left"]
    )
    return max(total - pages_left, 0), total


def _page_number(bound: int | Sequence[int]) -> int:
    return bound if isinstance(bound, int) else bound[0]


def restated(progress: Mapping[str, Any], columns: Sequence[str], *, reads_table: bool) -> Mapping[str, Any]:
    """Returns the new entry of a complete table after `columns` have become stale (see `stale` above).

    With `reads_table`, the entry says that the table is read again because of these columns and those that were stale
    before. Without `reads_table`, the entry lists all of them in `stale`.
    """
    names = sorted({*progress.get("stale", ()), *columns})
    return {"complete": False, "again": names} if reads_table else {**COMPLETE, "stale": names}
