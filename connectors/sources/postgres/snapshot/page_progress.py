"""Tracks which parts of a table have been published.

A part is a range of heap pages of a leaf (the plain table, or a partition that stores rows). If rows are large, a part
is a range of rows inside a page.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from changelog.connectors.capture.tables.table_progress import COMPLETE

CHUNK_PAGES = 256
"""How many heap pages a chunk has at first. They take up 2 MiB."""

PAGE_SLOTS = 2048
"""The distance between the bounds of two consecutive pages (see `Range`). It must be greater than the number of row
pointers in any page. A page of 32 KiB, the largest, has at most 1,169.
"""


_GROWTH_CHUNKS = 16
"""A leaf may have grown since its chunks were planned. If the range past the planned end is too large to be read at
once, we assume that the leaf has grown by this many chunks, and read them one by one.
"""


class Fingerprint(NamedTuple):
    """Identifies the state of a leaf: the `signature` of its columns and the `filenode` of its storage."""

    signature: str
    filenode: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """The rows of a leaf from the bound `first` up to, but not including, the bound `end`.

    If `end` is None, the range goes to the end of the leaf. A bound is a number: PAGE_SLOTS times the page number, plus
    the number of the row pointer in the page.
    """

    leaf: str
    first: int
    end: int | None


@dataclass(slots=True, kw_only=True)
class LeafProgress:
    """The progress in one leaf.

    `filenode` identifies its storage, and `pages` is its size when the reads were planned. `ranges_left` holds the
    ranges that are not yet published, as pairs of `first` and `end` (see `Range`).
    """

    filenode: int
    pages: int
    ranges_left: list[tuple[int, int | None]]


@dataclass(slots=True, kw_only=True)
class TableProgress:
    """The progress of reading one entity's table.

    `signature` identifies the columns with which its chunks were read. `queue` holds the ranges that were handed out
    and are not yet published. `generation` counts restarts. If a table that was already complete is read again, `again`
    holds the columns that are the reason. `stale` holds the columns whose published values stay out of date, because
    only a part of the table is read again. A range spans `chunk_pages` pages, or less if it was divided.
    """

    entity: str
    signature: str
    leaves: dict[str, LeafProgress]
    chunk_pages: int = CHUNK_PAGES
    generation: int = 0
    queue: list[Range] = field(default_factory=list)
    again: tuple[str, ...] = ()
    stale: tuple[str, ...] = ()

    def next_range(self) -> Range | None:
        """Hands out the next range to read; None while all unpublished ranges are handed out."""
        for name, leaf in self.leaves.items():
            for number, (first, end) in enumerate(leaf.ranges_left):
                if self._is_out(name, first):
                    continue
                cut = self._cut(leaf, first, end)
                if cut != end:
                    leaf.ranges_left[number : number + 1] = [(first, cut), (cut or 0, end)]
                range_ = Range(leaf=name, first=first, end=cut)
                self.queue.append(range_)
                return range_
        return None

    def _is_out(self, leaf: str, first: int) -> bool:
        return any(range_.leaf == leaf and range_.first == first for range_ in self.queue)

    def _cut(self, leaf: LeafProgress, first: int, end: int | None) -> int | None:
        limit = first + self.chunk_pages * PAGE_SLOTS
        limit -= limit % PAGE_SLOTS
        if end is None:
            return None if limit >= leaf.pages * PAGE_SLOTS else limit
        return min(end, limit)

    def give_back(self, part: Range) -> None:
        """Puts back a range, so that it is handed out again."""
        if part in self.queue:
            self.queue.remove(part)

    def divide(self, part: Range) -> None:
        """Divides a range that is too large to read at once into about four parts.

        A range without an end is divided up to the end that the leaf had when the reads were planned. The last part has
        no end either, so it includes rows that were added later. If even this part is too large, the planned end is
        moved (see `_GROWTH_CHUNKS`).
        """
        self.give_back(part)
        leaf = self.leaves[part.leaf]
        end = leaf.pages * PAGE_SLOTS if part.end is None else part.end
        if end - part.first <= 1:
            leaf.pages = part.first // PAGE_SLOTS + _GROWTH_CHUNKS * self.chunk_pages
            return
        size = max((end - part.first) // 4, 1)
        if end - part.first > PAGE_SLOTS:
            size = max(size - size % PAGE_SLOTS, PAGE_SLOTS)
        number = leaf.ranges_left.index((part.first, part.end))
        starts = range(part.first, end, size)
        leaf.ranges_left[number : number + 1] = zip(starts, [*starts[1:], part.end], strict=True)

    def admit(self, part: Range, fingerprint: Fingerprint) -> bool:
        """Returns whether the leaf has the same columns and storage as before; if not, the whole table starts anew."""
        leaf = self.leaves[part.leaf]
        if fingerprint == Fingerprint(self.signature, leaf.filenode):
            return True
        leaf.filenode = fingerprint.filenode
        self.restart(fingerprint.signature)
        return False

    def publish(self, part: Range, _absent_keys: Sequence[str] = ()) -> None:
        """Records that the range is published."""
        self.give_back(part)
        leaf = self.leaves[part.leaf]
        leaf.ranges_left.remove((part.first, part.end))

    def withdraw(self, part: Range) -> None:
        """Reverts `publish`: the range was not published after all."""
        self.leaves[part.leaf].ranges_left.append((part.first, part.end))
        self.leaves[part.leaf].ranges_left.sort(key=lambda bounds: bounds[0])

    def restart(self, signature: str) -> None:
        """Discards all progress: the table is read again from its start."""
        self.generation += 1
        self.signature = signature
        self.stale = ()
        self.queue.clear()
        for leaf in self.leaves.values():
            leaf.ranges_left = [(0, None)]

    @property
    def complete(self) -> bool:
        """Whether every page is published."""
        return not any(leaf.ranges_left for leaf in self.leaves.values())

    def to_json(self) -> dict[str, Any]:
        """Returns the form that the checkpoint stores."""
        stale = {"stale": list(self.stale)} if self.stale else {}
        if self.complete:
            return {**COMPLETE, **stale}
        leaves = {
            name: {
                "filenode": leaf.filenode,
                "pages": leaf.pages,
                "left": [
                    [None if bound is None else _to_json(bound) for bound in pair] for pair in _joined(leaf.ranges_left)
                ],
            }
            for name, leaf in self.leaves.items()
        }
        again = {"again": list(self.again)} if self.again else {}
        return {"complete": False, "signature": self.signature, "leaves": leaves, **again, **stale}

    @classmethod
    def resume(
        cls, entity: str, signature: str, leaves: Mapping[str, LeafProgress], document: Mapping[str, Any] | None
    ) -> "TableProgress":
        """Returns the progress that a checkpoint stored (`document`). Leaves that changed since then start anew."""
        progress = cls(entity=entity, signature=signature, leaves=dict(leaves))
        if document is None:
            return progress
        progress.again = tuple(document.get("again", ()))
        if document.get("signature") != signature:
            return progress
        progress.stale = tuple(document.get("stale", ()))
        for name, leaf in progress.leaves.items():
            entry = document["leaves"].get(name)
            if entry is not None and entry["filenode"] == leaf.filenode:
                leaf.ranges_left = [
                    (_bound(first), None if end is None else _bound(end)) for first, end in entry["left"]
                ]
        return progress


def _to_json(bound: int) -> int | list[int]:
    """Returns a bound as the checkpoint stores it: a page number, or a list of a page number and a row pointer."""
    page, slot = divmod(bound, PAGE_SLOTS)
    return [page, slot] if slot else page


def _bound(value: int | list[int]) -> int:
    page, slot = value if isinstance(value, list) else (value, 0)
    return page * PAGE_SLOTS + slot


def _joined(ranges: list[tuple[int, int | None]]) -> list[list[int | None]]:
    joined: list[list[int | None]] = []
    for first, end in ranges:
        if joined and joined[-1][1] == first:
            joined[-1][1] = end
        else:
            joined.append([first, end])
    return joined
