"""Tracks which ranges of a table's keys are published.

The bounds of the ranges are not known when a table's reading is planned. At first, the whole table is one range. A
reader that is given a range finds out where the first rows of the range end, and narrows the range to these rows. The
rest of the range is handed out again:

    (all)            ──▶  reads (… 20000]              left: (20000 …)
    (20000 …)        ──▶  reads (20000 … 40000]        left: (40000 …)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from changelog.connectors.capture.tables.table_progress import COMPLETE
from changelog.connectors.sources.mysql.snapshot.key_columns import Literals

CHUNK_ROWS = 20_000
"""The rows that one chunk reads at first."""

_LEAF = "table"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A key at which a range ends or begins. `number` is how many chunks come before it, for reports of progress."""

    number: int
    key: Literals


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRange:
    """The rows whose keys are after `first`, up to and including `end`; None is an open end."""

    first: Bound | None
    end: Bound | None

    def upto(self, key: Literals) -> "KeyRange":
        """Returns the beginning of the range, up to and including `key`."""
        return replace(self, end=Bound(number=self.number + 1, key=key))

    @property
    def number(self) -> int:
        """How many chunks come before the range."""
        return 0 if self.first is None else self.first.number


@dataclass(slots=True, kw_only=True)
class KeyProgress:
    """The progress of reading one entity's table; it is a `TableTask` of the windows.

    `signature` identifies the columns, and the table itself. `chunks` is about how many chunks the table has. `left`
    holds the ranges that are not published yet, in order. `queue` says which of them are handed out. `generation`
    counts restarts. `again` and `stale` are the members of the same name in `table_progress`.
    """

    entity: str
    signature: str
    chunks: int
    chunk_rows: int = CHUNK_ROWS
    generation: int = 0
    left: list[KeyRange] = field(default_factory=lambda: [KeyRange(first=None, end=None)])
    queue: list[KeyRange] = field(default_factory=list)
    again: tuple[str, ...] = ()
    stale: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether every range is published."""
        return not self.left

    def next_range(self) -> KeyRange | None:
        """Hands out the next range to read; None while all unpublished ranges are handed out."""
        for range_ in self.left:
            if range_ not in self.queue:
                self.queue.append(range_)
                return range_
        return None

    def narrow(self, taken: KeyRange, narrowed: KeyRange) -> None:
        """Replaces a range that was handed out by its beginning; the rest is handed out again."""
        rest = KeyRange(first=narrowed.end, end=taken.end)
        number = self.left.index(taken)
        self.left[number : number + 1] = [narrowed, rest]
        self.queue[self.queue.index(taken)] = narrowed

    def give_back(self, taken: KeyRange) -> None:
        """Puts back a range, so that it is handed out again."""
        if taken in self.queue:
            self.queue.remove(taken)

    def divide(self, taken: KeyRange) -> None:
        """Puts back a range that is too large to read at once. From now on, chunks have a quarter of the rows."""
        self.give_back(taken)
        self.chunk_rows = max(self.chunk_rows // 4, 1)

    def admit(self, _taken: KeyRange, fingerprint: str) -> bool:
        """Returns whether the table has the same signature as before. If it has another one, the reading of the table
        starts again.
        """
        if fingerprint == self.signature:
            return True
        self.generation += 1
        self.signature, self.stale = fingerprint, ()
        self.left = [KeyRange(first=None, end=None)]
        self.queue.clear()
        return False

    def publish(self, taken: KeyRange, _gone: Sequence[str] = ()) -> None:
        """Records that the range is published."""
        self.give_back(taken)
        self.left.remove(taken)

    def withdraw(self, taken: KeyRange) -> None:
        """Reverts `publish`: the range was not published after all."""
        self.left.append(taken)
        self.left.sort(key=lambda range_: range_.number)

    def to_json(self) -> dict[str, Any]:
        """Returns the form that the checkpoint stores."""
        stale = {"stale": list(self.stale)} if self.stale else {}
        if self.complete:
            return {**COMPLETE, **stale}
        ranges = [[_stored(range_.first) or 0, _stored(range_.end)] for range_ in _joined(self.left)]
        again = {"again": list(self.again)} if self.again else {}
        leaves = {_LEAF: {"pages": max(self.chunks, self.left[-1].number + 1), "left": ranges}}
        return {"complete": False, "signature": self.signature, "leaves": leaves, **again, **stale}

    @classmethod
    def resume(
        cls, entity: str, signature: str, *, chunks: int, chunk_rows: int, stored: Mapping[str, Any] | None
    ) -> "KeyProgress":
        """Resumes from a checkpoint's stored progress, if the table has not changed since."""
        progress = cls(entity=entity, signature=signature, chunks=chunks, chunk_rows=chunk_rows)
        if stored is None:
            return progress
        progress.again = tuple(stored.get("again", ()))
        if stored.get("signature") == signature:
            progress.stale = tuple(stored.get("stale", ()))
            progress.left = [
                KeyRange(first=_bound(first), end=_bound(end)) for first, end in stored["leaves"][_LEAF]["left"]
            ]
        return progress


def _stored(bound: Bound | None) -> list[int | str] | None:
    return None if bound is None else [bound.number, *bound.key]


def _bound(stored: Any) -> Bound | None:
    if not stored:
        return None
    number, *key = stored
    return Bound(number=number, key=tuple(key))


def _joined(ranges: Sequence[KeyRange]) -> list[KeyRange]:
    """Joins ranges that follow each other. Fewer ranges make checkpoints smaller, because each one stores all
    bounds.
    """
    joined: list[KeyRange] = []
    for range_ in ranges:
        if joined and joined[-1].end is not None and joined[-1].end == range_.first:
            joined[-1] = replace(joined[-1], end=range_.end)
        else:
            joined.append(range_)
    return joined
