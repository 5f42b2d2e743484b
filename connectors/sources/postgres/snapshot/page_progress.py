"""Which parts of a table were read and published: by leaf table heap pages, and single rows where they are large."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from connectors.capture.tables.table_progress import COMPLETE

CHUNK_PAGES = 256
"""Heap pages that one chunk reads at first: 2 MiB of table."""

PAGE_SLOTS = 2048
"""What a bound counts a page as: more row pointers than a page of any size has (1,169 in one of 32 KiB)."""


_GROWTH_CHUNKS = 16
"""By how many chunks a table is taken to have grown when its last range turns out too large."""


class Fingerprint(NamedTuple):
    """Stands for what a leaf is read from: its columns (`signature`), and the storage that its pages are of."""

    signature: str
    filenode: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Rows by their place: `first` up to, not including, `end`; None is whatever the table has grown to.

    A bound is PAGE_SLOTS times its page, and the number of a row pointer in it.
    """

    leaf: str
    first: int
    end: int | None


@dataclass(slots=True, kw_only=True)
class LeafProgress:
    """One leaf table: its storage (`filenode`), its size in pages when planned, and what is not yet published."""

    filenode: int
    pages: int
    left: list[tuple[int, int | None]]


@dataclass(slots=True, kw_only=True)
class TableProgress:
    """One entity's table read; `signature` stands for the columns that its chunks were read with.

    `queue` are the ranges handed out and not yet published, `generation` counts beginnings anew. `again` are the
    columns for whose sake a table is read that was whole in the changelog before. A range is of `chunk_pages`, or less
    where one was divided.
    """

    entity: str
    signature: str
    leaves: dict[str, LeafProgress]
    chunk_pages: int = CHUNK_PAGES
    generation: int = 0
    queue: list[Range] = field(default_factory=list)
    again: tuple[str, ...] = ()

    def next_range(self) -> Range | None:
        """Hands out the next pages to read; None while all that is left is under way."""
        for name, leaf in self.leaves.items():
            for number, (first, end) in enumerate(leaf.left):
                if self._is_out(name, first):
                    continue
                taken = self._cut(leaf, first, end)
                if taken != end:
                    leaf.left[number : number + 1] = [(first, taken), (taken or 0, end)]
                found = Range(leaf=name, first=first, end=taken)
                self.queue.append(found)
                return found
        return None

    def _is_out(self, leaf: str, first: int) -> bool:
        return any(each.leaf == leaf and each.first == first for each in self.queue)

    def _cut(self, leaf: LeafProgress, first: int, end: int | None) -> int | None:
        limit = first + self.chunk_pages * PAGE_SLOTS
        limit -= limit % PAGE_SLOTS
        if end is None:
            return None if limit >= leaf.pages * PAGE_SLOTS else limit
        return min(end, limit)

    def give_back(self, taken: Range) -> None:
        """The range is to be read again."""
        if taken in self.queue:
            self.queue.remove(taken)

    def divide(self, taken: Range) -> None:
        """The range holds too much to be read at once: it is left to read in about four parts.

        One without an end is divided up to where the table ended when it was planned; behind that, it has grown.
        """
        self.give_back(taken)
        leaf = self.leaves[taken.leaf]
        end = leaf.pages * PAGE_SLOTS if taken.end is None else taken.end
        if end - taken.first <= 1:
            leaf.pages = taken.first // PAGE_SLOTS + _GROWTH_CHUNKS * self.chunk_pages
            return
        size = max((end - taken.first) // 4, 1)
        if end - taken.first > PAGE_SLOTS:
            size = max(size - size % PAGE_SLOTS, PAGE_SLOTS)
        number = leaf.left.index((taken.first, taken.end))
        starts = range(taken.first, end, size)
        leaf.left[number : number + 1] = zip(starts, [*starts[1:], taken.end], strict=True)

    def admit(self, taken: Range, fingerprint: Fingerprint) -> bool:
        """Whether what is read under these columns and storage belongs to what was read; else all begins again."""
        leaf = self.leaves[taken.leaf]
        if fingerprint == Fingerprint(self.signature, leaf.filenode):
            return True
        leaf.filenode = fingerprint.filenode
        self.begin_anew(fingerprint.signature)
        return False

    def publish(self, taken: Range, _gone: Sequence[str] = ()) -> None:
        """The range is published."""
        self.give_back(taken)
        leaf = self.leaves[taken.leaf]
        leaf.left.remove((taken.first, taken.end))

    def withdraw(self, taken: Range) -> None:
        """The range was not published after all."""
        self.leaves[taken.leaf].left.append((taken.first, taken.end))
        self.leaves[taken.leaf].left.sort(key=lambda each: each[0])

    def begin_anew(self, signature: str) -> None:
        """Nothing that was read holds any more."""
        self.generation += 1
        self.signature = signature
        self.queue.clear()
        for leaf in self.leaves.values():
            leaf.left = [(0, None)]

    @property
    def complete(self) -> bool:
        """Whether every page was published."""
        return not any(leaf.left for leaf in self.leaves.values())

    def to_json(self) -> dict[str, Any]:
        """What the checkpoint keeps."""
        if self.complete:
            return dict(COMPLETE)
        leaves = {
            name: {
                "filenode": leaf.filenode,
                "pages": leaf.pages,
                "left": [[None if bound is None else _stored(bound) for bound in pair] for pair in _joined(leaf.left)],
            }
            for name, leaf in self.leaves.items()
        }
        again = {"again": list(self.again)} if self.again else {}
        return {"complete": False, "signature": self.signature, "leaves": leaves, **again}

    @classmethod
    def resume(
        cls, entity: str, signature: str, leaves: Mapping[str, LeafProgress], stored: Mapping[str, Any] | None
    ) -> "TableProgress":
        """Goes on from what a checkpoint kept, for leaves that are still as they were then."""
        found = cls(entity=entity, signature=signature, leaves=dict(leaves))
        if stored is None:
            return found
        found.again = tuple(stored.get("again", ()))
        if stored.get("signature") != signature:
            return found
        for name, leaf in found.leaves.items():
            kept = stored["leaves"].get(name)
            if kept is not None and kept["filenode"] == leaf.filenode:
                leaf.left = [(_bound(first), None if end is None else _bound(end)) for first, end in kept["left"]]
        return found


def _stored(bound: int) -> int | list[int]:
    """A bound as a checkpoint holds it: its page, and the row pointer where it is inside one."""
    page, slot = divmod(bound, PAGE_SLOTS)
    return [page, slot] if slot else page


def _bound(stored: int | list[int]) -> int:
    page, slot = stored if isinstance(stored, list) else (stored, 0)
    return page * PAGE_SLOTS + slot


def _joined(ranges: list[tuple[int, int | None]]) -> list[list[int | None]]:
    joined: list[list[int | None]] = []
    for first, end in ranges:
        if joined and joined[-1][1] == first:
            joined[-1][1] = end
        else:
            joined.append([first, end])
    return joined
