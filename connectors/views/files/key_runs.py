"""Keeps in memory where the changes of each key are, in sorted arrays that are searched by bisection.

A *place* is a number that says where a change is. Later changes have higher places. The lowest bit of a place is 1 if
the change ended the row (a delete or a truncate).
"""

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Places = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class _Run(Sequence[bytes]):
    """The keys of some changes, sorted, and the places of these changes. The places of one key ascend. The class is a
    sequence of the keys, so that `bisect` can search it.
    """

    keys: pa.StringArray
    places: Places

    @cached_property
    def _buffers(self) -> tuple[npt.NDArray[np.int32], memoryview]:
        _, offsets, data = self.keys.buffers()
        ends = np.frombuffer(offsets, np.int32, len(self.keys) + 1, self.keys.offset * 4)
        return ends, memoryview(data or b"")

    def __len__(self) -> int:
        return len(self.keys)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[bytes]: ...
    def __getitem__(self, index: Any) -> Any:
        ends, data = self._buffers
        return bytes(data[ends[index] : ends[index + 1]])

    def places_of(self, key: bytes) -> Places:
        begin = bisect_left(self, key)
        return self.places[begin : bisect_right(self, key, begin)]

    def keys_from(self, begin: bytes) -> Iterator[bytes]:
        """Yields each key once, from `begin` on. Jumps over the changes of a key instead of reading all of them."""
        index = bisect_left(self, begin)
        while index < len(self):
            key = self[index]
            yield key
            step = 1
            while index + step < len(self) and self[index + step] == key:
                step *= 2
            index = bisect_right(self, key, index + step // 2, min(index + step, len(self)))

    def since(self, place: int) -> "_Run":
        mask = self.places >= place
        return self if mask.all() else _Run(keys=self.keys.filter(pa.array(mask)), places=self.places[mask])


@dataclass(frozen=True, slots=True)
class KeyRuns:
    """Where the changes of an entity's keys are. Immutable: `add` makes another object, which shares arrays with this
    one.

    Each run has later places than the runs before it. After `add`, each run has at least twice as many changes as the
    next run, unless `since` has shortened it. So there are few runs, and each change was sorted only a few times.
    """

    runs: tuple[_Run, ...] = ()

    @property
    def nbytes(self) -> int:
        """How many bytes of memory the arrays take."""
        return sum(run.keys.nbytes + run.places.nbytes for run in self.runs)

    def add(self, keys: Sequence[pa.StringArray], places: Sequence[Places]) -> "KeyRuns":
        """Returns these changes together with later ones. `keys` and `places` are batches of the later changes; their
        places ascend.
        """
        runs = [*self.runs, _sorted(keys, places)]
        while len(runs) > 1 and len(runs[-2]) < 2 * len(runs[-1]):
            newest, earlier = runs.pop(), runs.pop()
            runs.append(_sorted([earlier.keys, newest.keys], [earlier.places, newest.places]))
        return KeyRuns(tuple(run for run in runs if len(run)))

    def since(self, place: int) -> "KeyRuns":
        """Returns the changes at a place and after it."""
        return KeyRuns(tuple(kept_run for run in self.runs if len(kept_run := run.since(place))))

    def places_of(self, key: str) -> Iterator[int]:
        """Yields the places of a key's changes, the newest first."""
        encoded = key.encode()
        for run in reversed(self.runs):
            yield from map(int, run.places_of(encoded)[::-1])

    def keys_from(self, begin: str) -> Iterator[str]:
        """Yields the keys from `begin` on in ascending order, each once."""
        encoded = begin.encode()
        for key, _ in groupby(heapq.merge(*(run.keys_from(encoded) for run in self.runs))):
            yield key.decode()


def _sorted(keys: Sequence[pa.StringArray], places: Sequence[Places]) -> _Run:
    all_places = np.concatenate(places)
    table = pa.table({"key": pa.chunked_array(keys, pa.utf8()), "place": all_places})
    order = pc.sort_indices(table, sort_keys=[("key", "ascending"), ("place", "ascending")])
    sorted_keys = table.column("key").take(order).combine_chunks()
    return _Run(keys=sorted_keys, places=all_places[order.to_numpy()])
