"""What a checkpoint says of the reading of a table, as far as every source says the same.

An entry is `{"complete": true}`, with `stale` where stored rows no longer hold what some columns do; or
`{"complete": false}` with whatever the source needs to go on (its parts, and what shows that the table is still the
one that they are of), and with `again`, the columns for whose sake a complete table is read once more. Where only a
part of the table is read once more, `stale` stays, also when that is done.

What is left is told by part, under `leaves`: `pages`, how large the part was when it was planned, in any unit that the
source reads by, and `left`, pairs of the first place to read and the first not to read, None for the part's end. A
place is a number of that unit, or a list that begins with one.
"""

from collections.abc import Mapping, Sequence
from typing import Any

COMPLETE: Mapping[str, Any] = {"complete": True}
"""A checkpoint's entry of a table that was read to its end."""

ALL_COLUMNS = "*"
"""Stands for all columns where an entry says for whose sake a table is read again."""


def is_complete(stored: Mapping[str, Any] | None) -> bool:
    """Whether a checkpoint's entry says that the table was read to its end."""
    return stored is not None and bool(stored.get("complete"))


def was_complete(stored: Mapping[str, Any] | None) -> bool:
    """Whether the table was read to its end once, though it may be read again now."""
    return is_complete(stored) or (stored is not None and "again" in stored)


def from_start(stored: Mapping[str, Any]) -> Mapping[str, Any]:
    """The entry without the source's own part: on another server, none of what was read in part holds."""
    return stored if is_complete(stored) else {name: stored[name] for name in ("complete", "again") if name in stored}


def pages_read(stored: Mapping[str, Any]) -> tuple[int, int]:
    """How much of a table is published and how much there is, of its entry; an empty table counts as one page."""
    leaves = stored.get("leaves", {}).values()
    total = max(sum(leaf["pages"] for leaf in leaves), 1)
    if stored["complete"]:
        return total, total
    if not leaves:
        return 0, total  # not planned yet
    left = sum(
        max((leaf["pages"] if end is None else _page(end)) - _page(first), 1)
        for leaf in leaves
        for first, end in leaf["left"]
    )
    return max(total - left, 0), total


def _page(place: int | Sequence[int]) -> int:
    return place if isinstance(place, int) else place[0]


def restated(stored: Mapping[str, Any], columns: Sequence[str], *, read: bool) -> Mapping[str, Any]:
    """What becomes of the entry of a complete table whose stored rows no longer hold what these columns do.

    The table is read again, or else the entry says what is stale.
    """
    stale = sorted({*stored.get("stale", ()), *columns})
    return {"complete": False, "again": stale} if read else {**COMPLETE, "stale": stale}
