"""Drives a campaign piece by piece, and keeps what is done: an interrupted run is taken up where it was."""

import json
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Figures = Mapping[str, Any]
"""Numbers, which are added up over the pieces; objects of numbers, likewise; lists, which are joined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What is run, judged and counted as a whole: some rounds from `first` on, with a seed of their own."""

    first: int
    rounds: int
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """`site` makes what all pieces share, and gives what runs one: AssertionError when it finds a fault.

    A piece has `rounds` rounds, and `at_once` pieces run side by side.
    """

    site: Callable[[], AbstractContextManager[Callable[[Piece], Figures]]]
    rounds: int = 1
    at_once: int = 1


class Kept:
    """The pieces that are done, by their first round, and the seconds that they took; in a file, if one is given."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self.done: dict[int, Figures] = {}
        self._before_s, self._since = 0.0, time.monotonic()
        if file is not None and file.exists():
            stored = json.loads(file.read_text("utf-8"))
            self._before_s = stored["seconds"]
            self.done = {int(first): figures for first, figures in stored["done"].items()}

    @property
    def seconds(self) -> float:
        """Of all runs so far."""
        return self._before_s + time.monotonic() - self._since

    def add(self, piece: Piece, figures: Figures) -> None:
        """The piece is done."""
        self.done[piece.first] = figures
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            beside = self._file.with_suffix(".new")
            beside.write_text(json.dumps({"seconds": self.seconds, "done": self.done}), "utf-8")
            beside.replace(self._file)

    def forget(self) -> None:
        """The run is over."""
        if self._file is not None:
            self._file.unlink(missing_ok=True)


def run(campaign: Campaign, rounds: int, seed: int, kept: Kept | None = None) -> dict[str, Any]:
    """Runs the pieces that are not in `kept`, and gives the figures of all."""
    kept = kept or Kept()
    left = [piece for piece in _pieces(campaign, rounds, seed) if piece.first not in kept.done]
    if left:
        with campaign.site() as one:
            for piece, figures in _results(one, left, campaign.at_once):
                kept.add(piece, figures)
    return {"rounds": rounds, **_total(kept.done[first] for first in sorted(kept.done))}


def _pieces(campaign: Campaign, rounds: int, seed: int) -> list[Piece]:
    rng = random.Random(seed)
    return [
        Piece(first=first, rounds=min(campaign.rounds, rounds - first), seed=rng.randrange(1 << 32))
        for first in range(0, rounds, campaign.rounds)
    ]


def _results(one: Callable[[Piece], Figures], pieces: Sequence[Piece], at_once: int) -> Iterator[tuple[Piece, Figures]]:
    if at_once == 1:  # without a thread, so that an interrupt ends it at once
        for piece in pieces:
            yield piece, _judged(one, piece)
        return
    with ThreadPoolExecutor(at_once) as pool:
        running = {pool.submit(_judged, one, piece): piece for piece in pieces}
        try:
            for future in as_completed(running):
                yield running[future], future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _judged(one: Callable[[Piece], Figures], piece: Piece) -> Figures:
    try:
        return one(piece)
    except AssertionError as error:
        last = f" to {piece.first + piece.rounds - 1}" if piece.rounds > 1 else ""
        raise AssertionError(f"round {piece.first}{last} (seed {piece.seed}): {error}") from error


def _total(parts: Iterable[Figures]) -> dict[str, Any]:
    total: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items():
            total[name] = _sum(total[name], value) if name in total else value
    return total


def _sum(before: Any, more: Any) -> Any:
    return _total([before, more]) if isinstance(before, Mapping) else before + more
