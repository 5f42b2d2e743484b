"""Follows drifted keys from run to run. A key is first *open*, then *republished* (sent again), and then *verified*
(found equal again).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from changelog.spark_jobs.drift.report import keys

RUNS_MAX = 30
"""The most runs that the history in a report covers, including the report's own run."""

FATES_MAX = 1 << 16
"""The most results of `_fate` that are cached."""

JSON = dict[str, Any]


@dataclass(slots=True)
class _Count:
    states: Counter[str] = field(default_factory=Counter)
    first: int | None = None  # the index of the run in which the oldest drift that still exists began

    def add(self, state: str, first: int | None) -> None:
        self.states[state] += 1
        if first is not None and (self.first is None or first < self.first):
            self.first = first

    def to_json(self, runs: Sequence[Mapping[str, Any]]) -> JSON:
        first_seen = None if self.first is None else runs[self.first]["run"]["startedAt"]
        return {**{state: self.states[state] for state in ("open", "republished", "verified")}, "firstSeen": first_seen}


def trend(name: str, runs: Sequence[Mapping[str, Any]]) -> list[JSON]:
    """Returns the entity's counts in each run that compared it, the oldest first."""
    points = []
    for run in runs[-RUNS_MAX:]:
        entity = run["entities"].get(name)
        if entity is not None and entity["drifted"] is not None:
            counts = {kind: entity[kind] for kind in ("missing", "extra", "changed")}
            points.append(
                {"run": run["run"]["id"], "at": run["run"]["startedAt"], "rows": entity["sourceRows"], **counts}
            )
    return points


def histories(runs: Sequence[Mapping[str, Any]], folder: Path | None) -> dict[str, JSON]:
    """Returns the `history` of each entity of the last run. `folder`/RUN_ID/ has the drifted keys of a run.

    A key that drifts in a run is *open*, or *republished* if this run sent a repair of its entity. Once a later run
    compares the whole entity and finds the key equal, the key is *verified*. A run that compared only a part of the
    entity verifies no key. If `folder` is None, the history only covers the last run.
    """
    runs = runs[-RUNS_MAX:]
    if folder is None:
        return {name: _alone(entity, runs[-1]) for name, entity in runs[-1]["entities"].items()}
    files = [_file(run, folder) for run in runs]
    present = [index for index, file in enumerate(files) if file is not None]
    affordable = keys.affordable([file for file in files if file is not None])
    present = present[affordable:]
    counts = {name: _Count() for name in runs[-1]["entities"]}
    steps = {name: _steps(name, runs, set(present)) for name in counts}

    @lru_cache(FATES_MAX)  # many keys drifted in the same runs, so they have the same result
    def fate(name: str, bits: int) -> tuple[str, int | None]:
        return _fate(sum(1 << run for bit, run in enumerate(present) if bits >> bit & 1), steps[name])

    for (name, _), bits in keys.merged([file for index in present if (file := files[index]) is not None]):
        if name in counts:
            counts[name].add(*fate(name, bits))
    return {name: count.to_json(runs) for name, count in counts.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """What one run did for an entity: whether it compared all keys of the entity, and whether it sent a repair."""

    is_judged: bool
    repaired: bool


def _steps(name: str, runs: Sequence[Mapping[str, Any]], present: set[int]) -> list[_Step]:
    steps = []
    for index, run in enumerate(runs):
        entity = run["entities"].get(name)
        is_compared = entity is not None and entity["drifted"] is not None
        # If a run found drift and its file of keys is gone, we cannot know which keys were equal.
        has_keys = is_compared and (index in present or entity["drifted"] == 0)
        # A compared entity has a `why` if some of its keys could not be compared.
        is_judged = has_keys and entity["sampled"] is None and entity["why"] is None
        steps.append(_Step(is_judged=is_judged, repaired=entity is not None and entity.get("repaired") is not None))
    return steps


def _fate(drifted: int, steps: Sequence[_Step]) -> tuple[str, int | None]:
    """Returns a key's state, and the index of the run in which the key began to drift (None if it is verified).

    `drifted` has a bit for each run in which the key drifted.
    """
    state, first_run = "", None
    for index, step in enumerate(steps):
        if drifted >> index & 1:
            first_run = index if first_run is None else first_run
            state = "republished" if step.repaired else "open"
        elif step.is_judged and state:
            state, first_run = "verified", None
    return state, first_run


def _alone(entity: Mapping[str, Any], run: Mapping[str, Any]) -> JSON:
    drifted = entity["drifted"] or 0
    sent_count = drifted if entity.get("repaired") else 0
    first_seen = run["run"]["startedAt"] if drifted else None
    return {"open": drifted - sent_count, "republished": sent_count, "verified": 0, "firstSeen": first_seen}


def _file(run: Mapping[str, Any], folder: Path) -> Path | None:
    """Returns the file of the run's drifted keys; None if the run has no such file, or if it was deleted."""
    if run["keys"] is None:
        return None
    file = folder / run["run"]["id"] / run["keys"]
    return file if file.is_file() else None
