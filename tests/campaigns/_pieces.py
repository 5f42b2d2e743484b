"""Runs a campaign in pieces, and stores the figures of each piece, so that an interrupted run can be continued."""

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
"""What a piece measured or counted, by name. The figures of a whole run are made from those of its pieces: numbers are
added, also inside of objects, and lists are joined.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A group of `rounds` rounds that are run and judged together. The first one has the number `first`."""

    first: int
    rounds: int
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """How to run a campaign. `site` starts the servers that all pieces share, and yields a function that runs a piece.

    This function raises AssertionError if it finds a fault. A piece has `rounds` rounds, and `at_once` pieces run at
    the same time.
    """

    site: Callable[[], AbstractContextManager[Callable[[Piece], Figures]]]
    rounds: int = 1
    at_once: int = 1


class Progress:
    """Which pieces are finished. `done` has the figures of each of them, by the number of its first round. If `file` is
    given, the progress is stored there.
    """

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
        """How many seconds the campaign took until now, including its interrupted runs."""
        return self._before_s + time.monotonic() - self._since

    def add(self, piece: Piece, figures: Figures) -> None:
        """Adds a finished piece, and writes the file."""
        self.done[piece.first] = figures
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            new_file = self._file.with_suffix(".new")
            new_file.write_text(json.dumps({"seconds": self.seconds, "done": self.done}), "utf-8")
            new_file.replace(self._file)

    def forget(self) -> None:
        """Deletes the file, because the run is complete."""
        if self._file is not None:
            self._file.unlink(missing_ok=True)


def run(campaign: Campaign, rounds: int, seed: int, progress: Progress | None = None) -> dict[str, Any]:
    """Runs the pieces that are not in `progress`, and returns the figures of all pieces together."""
    progress = progress or Progress()
    remaining = [piece for piece in _pieces(campaign, rounds, seed) if piece.first not in progress.done]
    if remaining:
        with campaign.site() as run_piece:
            for piece, figures in _results(run_piece, remaining, campaign.at_once):
                progress.add(piece, figures)
    return {"rounds": rounds, **_total(progress.done[first] for first in sorted(progress.done))}


def _pieces(campaign: Campaign, rounds: int, seed: int) -> list[Piece]:
    rng = random.Random(seed)
    return [
        Piece(first=first, rounds=min(campaign.rounds, rounds - first), seed=rng.randrange(1 << 32))
        for first in range(0, rounds, campaign.rounds)
    ]


def _results(
    run_piece: Callable[[Piece], Figures], pieces: Sequence[Piece], at_once: int
) -> Iterator[tuple[Piece, Figures]]:
    if at_once == 1:  # in this thread, so that an interrupt ends the run immediately
        for piece in pieces:
            yield piece, _run_one(run_piece, piece)
        return
    with ThreadPoolExecutor(at_once) as pool:
        running = {pool.submit(_run_one, run_piece, piece): piece for piece in pieces}
        try:
            for future in as_completed(running):
                yield running[future], future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _run_one(run_piece: Callable[[Piece], Figures], piece: Piece) -> Figures:
    try:
        return run_piece(piece)
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
