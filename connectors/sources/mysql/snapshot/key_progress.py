"""Tracks which ranges of a table's keys are published.

The bounds of the ranges are not known when the reading of a table is planned. At first, the whole table is one range.
A reader that is given a range finds out where the first rows of the range end, and narrows the range to these rows. The
rest of the range is then handed out as a range of its own:

    (all)            ──▶  reads (… 20000]              left: (20000 …)
    (20000 …)        ──▶  reads (20000 … 40000]        left: (40000 …)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from changelog.connectors.capture.tables.table_progress import COMPLETE
from changelog.connectors.sources.mysql.snapshot.key_columns import Literals

CHUNK_ROWS = 20_000
"""How many rows a chunk has, unless a chunk has turned out to be too large."""

_LEAF = "table"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A key at which a range ends or begins. `number` is how many chunks come before the key, for progress reports."""

    number: int
    key: Literals


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRange:
    """The rows whose keys are after `first`, up to and including `end`. If `first` or `end` is None, the range has no
    limit on that side.
    """

    first: Bound | None
    end: Bound | None

    def upto(self, key: Literals) -> "ChunkRange":
        """Returns the beginning of the range, up to and including `key`."""
        return replace(self, end=Bound(number=self.number + 1, key=key))

    @property
    def number(self) -> int:
        """How many chunks come before the range."""
        return 0 if self.first is None else self.first.number


@dataclass(slots=True, kw_only=True)
class KeyProgress:
    """The progress of reading one entity's table; it is a `TableTask` of the windows.

    `signature` identifies the table's columns and their types. `chunks` is roughly the number of its chunks.
    `ranges_left` holds the ranges that are not published yet, in order. `queue` holds those that are handed out.
    `generation` counts how often the reading has started again. `again` and `stale` are explained in `table_progress`.
    """

    entity: str
    signature: str
    chunks: int
    chunk_rows: int = CHUNK_ROWS
    generation: int = 0
    ranges_left: list[ChunkRange] = field(default_factory=lambda: [ChunkRange(first=None, end=None)])
    queue: list[ChunkRange] = field(default_factory=list)
    again: tuple[str, ...] = ()
    stale: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether every range is published."""
        return not self.ranges_left

    def next_range(self) -> ChunkRange | None:
        """Hands out the next range to read; None while all unpublished ranges are handed out."""
        for range_ in self.ranges_left:
            if range_ not in self.queue:
                self.queue.append(range_)
                return range_
        return None

    def narrow(self, part: ChunkRange, narrowed: ChunkRange) -> None:
        """Makes `narrowed`, the beginning of `part`, take the place of `part`, which was handed out.

        The rest of `part` will be handed out as a range of its own.
        """
        rest = ChunkRange(first=narrowed.end, end=part.end)
        number = self.ranges_left.index(part)
        self.ranges_left[number : number + 1] = [narrowed, rest]
        self.queue[self.queue.index(part)] = narrowed

    def give_back(self, part: ChunkRange) -> None:
        """Puts back a range, so that it is handed out again."""
        if part in self.queue:
            self.queue.remove(part)

    def divide(self, part: ChunkRange) -> None:
        """Puts back a range that is too large to read at once. From now on, chunks have a quarter of the rows."""
        self.give_back(part)
        self.chunk_rows = max(self.chunk_rows // 4, 1)

    def admit(self, _part: ChunkRange, fingerprint: str) -> bool:
        """Returns whether the table has the same signature as before. If it does not, the reading of the table
        starts again.
        """
        if fingerprint == self.signature:
            return True
        self.generation += 1
        self.signature, self.stale = fingerprint, ()
        self.ranges_left = [ChunkRange(first=None, end=None)]
        self.queue.clear()
        return False

    def publish(self, part: ChunkRange, _absent_keys: Sequence[str] = ()) -> None:
        """Records that the range is published."""
        self.give_back(part)
        self.ranges_left.remove(part)

    def withdraw(self, part: ChunkRange) -> None:
        """Reverts `publish`: the range was not published after all."""
        self.ranges_left.append(part)
        self.ranges_left.sort(key=lambda range_: range_.number)

    def to_json(self) -> dict[str, Any]:
        """Returns the form that the checkpoint stores."""
        stale = {"stale": list(self.stale)} if self.stale else {}
        if self.complete:
            return {**COMPLETE, **stale}
        ranges = [[_to_json(range_.first) or 0, _to_json(range_.end)] for range_ in _joined(self.ranges_left)]
        again = {"again": list(self.again)} if self.again else {}
        leaves = {_LEAF: {"pages": max(self.chunks, self.ranges_left[-1].number + 1), "left": ranges}}
        return {"complete": False, "signature": self.signature, "leaves": leaves, **again, **stale}

    @classmethod
    def resume(
        cls, entity: str, signature: str, *, chunks: int, chunk_rows: int, document: Mapping[str, Any] | None
    ) -> "KeyProgress":
        """Resumes from `document`, the progress that a checkpoint stored, if the signature is still the same.

        Otherwise, the whole table is to be read.
        """
        progress = cls(entity=entity, signature=signature, chunks=chunks, chunk_rows=chunk_rows)
        if document is None:
            return progress
        progress.again = tuple(document.get("again", ()))
        if document.get("signature") == signature:
            progress.stale = tuple(document.get("stale", ()))
            progress.ranges_left = [
                ChunkRange(first=_bound(first), end=_bound(end)) for first, end in document["leaves"][_LEAF]["left"]
            ]
        return progress


def _to_json(bound: Bound | None) -> list[int | str] | None:
    return None if bound is None else [bound.number, *bound.key]


def _bound(value: Any) -> Bound | None:
    if not value:
        return None
    number, *key = value
    return Bound(number=number, key=tuple(key))


def _joined(ranges: Sequence[ChunkRange]) -> list[ChunkRange]:
    """Joins ranges that follow each other. Checkpoints store the bounds of all ranges, so this makes them smaller."""
    joined: list[ChunkRange] = []
    for range_ in ranges:
        if joined and joined[-1].end is not None and joined[-1].end == range_.first:
            joined[-1] = replace(joined[-1], end=range_.end)
        else:
            joined.append(range_)
    return joined
