"""The progress of reading a table, as a checkpoint stores it: the part that is the same for every source.

An entry is `{"complete": true}`, with `stale` if older rows of the changelog no longer have the values of some columns;
or `{"complete": false}` with what the source needs to continue (its parts, and evidence that the table is still the
same one), and with `again`, the columns that forced a complete table to be read again. If only a part of the table is
read again, `stale` stays, even after that.

`leaves` has the parts of the table. `pages` is the size of a part when it was planned, in any unit that the source
reads by. `left` are the ranges still to read: pairs of the first place, and the first place after the range, None for
the part's end. A place is a number of that unit, or a list that begins with one.
"""

from collections.abc import Mapping, Sequence
from typing import Any

COMPLETE: Mapping[str, Any] = {"complete": True}
"""The entry of a table that was read completely."""

ALL_COLUMNS = "*"
"""Stands for all columns in `again`."""


def is_complete(stored: Mapping[str, Any] | None) -> bool:
    """Whether the entry says that the table was read completely."""
    return stored is not None and bool(stored.get("complete"))


def was_complete(stored: Mapping[str, Any] | None) -> bool:
    """Whether the table was once read completely, even if it is being read again."""
    return is_complete(stored) or (stored is not None and "again" in stored)


def from_start(stored: Mapping[str, Any]) -> Mapping[str, Any]:
    """The entry without the source's own part: on another server, partial progress is void."""
    return stored if is_complete(stored) else {name: stored[name] for name in ("complete", "again") if name in stored}


def pages_read(stored: Mapping[str, Any]) -> tuple[int, int]:
    """The pages of a table that are published, and all its pages; an empty table counts as one page."""
    leaves = stored.get("leaves", {}).values()
    total = max(sum(leaf["pages"] for leaf in leaves), 1)
    if stored["complete"]:
        return total, total
    if not leaves:
        return 0, total  # not planned yet
    pages_left = sum(
        max((leaf["pages"] if end is None else _page(end)) - _page(first), 1)
        for leaf in leaves
        for first, end in leaf["left"]
    )
    return max(total - pages_left, 0), total


def _page(place: int | Sequence[int]) -> int:
    return place if isinstance(place, int) else place[0]


def restated(stored: Mapping[str, Any], columns: Sequence[str], *, read: bool) -> Mapping[str, Any]:
    """The new entry of a complete table if older rows of the changelog no longer have the values of these columns.

    With `read`, the table is read again; otherwise the entry lists the columns as stale.
    """
    stale = sorted({*stored.get("stale", ()), *columns})
    return {"complete": False, "again": stale} if read else {**COMPLETE, "stale": stale}
