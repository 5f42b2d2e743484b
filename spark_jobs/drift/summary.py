"""Summarizes an entity's drifted keys for its report, in a bounded amount of memory."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, TextIO

import msgspec

from changelog.envelope.codec.json_codec import members
from changelog.spark_jobs.drift.judge_task import SAMPLES_MAX
from changelog.spark_jobs.drift.row_diff import CHANGED, EXTRA, MISSING

BUCKET_S = 300
"""Time is divided into *buckets* of this many seconds.

A drifted key belongs to the bucket in which it was last changed. Drifted keys in the same bucket or in adjacent buckets
belong to the same incident.
"""

WRITERS_MAX = 50
"""The most writers that a report lists for an entity."""


@dataclass(slots=True)
class Tally:
    """Counts the drifted keys of one entity, and keeps samples of them."""

    kinds: Counter[str] = field(default_factory=Counter)
    columns: Counter[str] = field(default_factory=Counter)
    writers: Counter[tuple[str | None, str | None]] = field(default_factory=Counter)
    samples: list[dict[str, Any]] = field(default_factory=list)
    _positions: list[str] = field(default_factory=list)
    _times: list[datetime] = field(default_factory=list)
    _buckets: set[int] = field(default_factory=set)

    def add(self, row: Mapping[str, Any]) -> None:
        """Adds one drifted key. `row` has the columns of `changelog.spark_jobs.drift.judge_task.JUDGED`."""
        self.kinds[row["kind"]] += 1
        self.columns.update(row["columns"])
        if row["committed_at"] is not None:
            # If a row was read from its table, no service is known, and `committed_at` does not say when the row was
            # written.
            if row["service_name"] is not None:
                self._add_write(row["position"], row["committed_at"].astimezone(UTC))
            self.writers[row["service_name"], row["api_version"]] += 1
        if row["sample"] is not None and len(self.samples) < SAMPLES_MAX:
            self.samples.append(_sample(row))

    def _add_write(self, position: str, at: datetime) -> None:
        self._positions = [min([position, *self._positions]), max([position, *self._positions])]
        self._times = [min([at, *self._times]), max([at, *self._times])]
        self._buckets.add(int(at.timestamp()) // BUCKET_S)

    @property
    def drifted(self) -> int:
        """Returns the number of drifted keys."""
        return self.kinds.total()

    def to_json(self) -> dict[str, Any]:
        """Returns the members of an entity's report that are computed from its drifted keys."""
        return {
            **{kind: self.kinds[kind] for kind in (MISSING, EXTRA, CHANGED)},
            "drifted": self.drifted,
            "columns": dict(self.columns.most_common()),
            "writers": [
                {"serviceName": service, "apiVersion": version, "drifted": count}
                for (service, version), count in self.writers.most_common(WRITERS_MAX)
            ],
            "incidents": self._incidents(),
            "samples": self.samples,
        }

    def _incidents(self) -> dict[str, Any] | None:
        """Returns how many incidents there were, and the earliest and the latest of the last writes of the drifted
        keys. Returns None if the changelog does not say for any key when it was last written.
        """
        if not self._buckets:
            return None
        ordered = sorted(self._buckets)
        count = 1 + sum(after - before > 1 for before, after in pairwise(ordered))
        return {
            "count": count,
            "shape": "one" if count == 1 else "many",
            "firstPosition": self._positions[0],
            "lastPosition": self._positions[1],
            "firstAt": time_text(self._times[0]),
            "lastAt": time_text(self._times[1]),
        }


def _sample(row: Mapping[str, Any]) -> dict[str, Any]:
    columns = msgspec.json.decode(row["sample"], type=dict[str, dict[str, msgspec.Raw]])
    provenance = None if row["provenance"] is None else _provenance(row["provenance"])
    return {"key": row["key"], "kind": row["kind"], "columns": columns, "provenance": provenance}


def _provenance(text: str) -> dict[str, Any]:
    """Returns the members of a provenance. `context` stays text, because parsing could round numbers in it."""
    tokens = members(text.encode())
    return {name: token.decode() if name == "context" else json.loads(token) for name, token in tokens.items()}


def tallied(drifted: Iterable[Mapping[str, Any]], keys: TextIO) -> dict[str, Tally]:
    """Summarizes the drifted keys of each entity. Writes a line of JSON to `keys` for each key, in the given order."""
    tallies: dict[str, Tally] = {}
    for row in drifted:
        tallies.setdefault(row["entity"], Tally()).add(row)
        line = {name: row[name] for name in ("entity", "key", "kind", "columns", "position")}
        keys.write(msgspec.json.encode(line).decode() + "\n")
    return tallies


def time_text(at: datetime) -> str:
    """Formats a time as reports show it."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
