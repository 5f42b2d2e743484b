"""Makes the report of a comparison as JSON (docs/drift-report.schema.json). The report does not say yet what to do
about drift: a policy decides that later.
"""

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from changelog.connectors.config import Config, FilesConfig
from changelog.connectors.sources.fences import Fence
from changelog.connectors.wiring.entities import table_text
from changelog.envelope.entity import Entity
from changelog.envelope.gap import Gap
from changelog.envelope.model import Record
from changelog.spark_jobs.drift.compare import Counts, Scope
from changelog.spark_jobs.drift.fenced.catch_up import CaughtUp
from changelog.spark_jobs.drift.summary import Tally, time_text
from changelog.spark_jobs.reading.where import Archive, Where, name_of

CLEAN, DRIFT, SCHEMA_CHANGED, SKIPPED = "clean", "drift", "schema changed", "skipped"


FORMAT, KIND = 1, "changelog-drift-report"


KEYS_NAME = "keys.jsonl"


JSON = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A comparison that a user requested. `where` is the changelog. `names` are the entities; if it is empty, all
    entities are compared. The run waits at most `wait_s` seconds until the changelog has caught up. Reports are written
    to `folder`.
    """

    config: Config
    where: Where
    scope: Scope
    names: Sequence[str] = ()
    wait_s: float = 60.0
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStart:
    """The start of a run. `id` is also the name of the run's folder; ids sort by time. `clock` is what `time.monotonic`
    returned at the start.
    """

    id: str
    at: datetime
    clock: float

    @classmethod
    def now(cls) -> "RunStart":
        """Returns the start of a run that begins now."""
        at = datetime.now(UTC)
        return cls(id=f"{at:%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}", at=at, clock=time.monotonic())

    def to_json(self, name: str) -> JSON:
        """Returns the member `run` of the report of a run that ends now. `name` is the name of the service."""
        return {
            "id": self.id,
            "startedAt": time_text(self.at),
            "finishedAt": time_text(datetime.now(UTC)),
            "seconds": round(time.monotonic() - self.clock, 3),
            "version": _version(),
            "name": name,
        }


def _version() -> str:
    try:
        return version("changelog-publisher")
    except PackageNotFoundError:  # in a checkout, nothing may be installed
        return "unknown"


@dataclass(slots=True, kw_only=True)
class RunProgress:
    """What a run has found so far. The report has this even if the run then cannot compare."""

    fence: Fence | None = None
    caught_up: CaughtUp | None = None
    database: str | None = None
    skipped: dict[str, JSON] = field(default_factory=dict)


def gap_json(record: Record) -> JSON:
    """Returns a gap in the changelog, as the report lists it. `record` is the row that records the gap."""
    gap = Gap.parse(record.envelope.current or b"")
    at = time_text(record.envelope.provenance.source.committed_at)
    return {"reason": gap.reason, "before": gap.before.position, "position": gap.after.position, "at": at}


def report_json(request: Request, start: RunStart, entities: Mapping[str, JSON], source: JSON) -> JSON:
    """Returns the report of a comparison that ends now. Its member `fence` is null: callers may set it."""
    sink = "files" if isinstance(request.config.sink, FilesConfig) else "kafka"
    return {
        "format": FORMAT,
        "kind": KIND,
        "run": start.to_json(request.config.name),
        "verdict": DRIFT if any(entity["drifted"] for entity in entities.values()) else CLEAN,
        "exact": True,
        "why": None,
        "source": source,
        "changelog": {
            "kind": "archive" if isinstance(request.where, Archive) else sink,
            "where": name_of(request.where),
        },
        "fence": None,
        "entities": entities,
        "keys": KEYS_NAME if any(entity["drifted"] is not None for entity in entities.values()) else None,
    }


def fence_json(progress: RunProgress) -> JSON | None:
    """Returns the member `fence` of the report; None if the run took no fence. If the changelog has not caught up, the
    members that would say when and where it did are null.
    """
    fence, caught_up = progress.fence, progress.caught_up
    if fence is None:
        return None
    position = caught_up.checkpoint.position if caught_up else None
    return {
        "snapshot": fence.text,
        "lsn": fence.place,
        "takenAt": time_text(fence.taken_at),
        "position": None if position is None else str(position),
        "caughtUpAt": time_text(caught_up.at) if caught_up else None,
        "waitedSeconds": round(caught_up.waited_s, 3) if caught_up else None,
    }


NOTHING: Mapping[str, Any] = {
    "sourceRows": None,
    "changelogRows": None,
    "missing": None,
    "extra": None,
    "changed": None,
    "drifted": None,
    "ppm": None,
    "columns": {},
    "schemaChanged": {},
    "unknown": {},
    "writers": [],
    "incidents": None,
    "samples": [],
    "sampled": None,
    "seconds": None,
}
"""For an entity that was not compared: those members of its report that a comparison would fill."""


def about(entity: Entity) -> JSON:
    """Returns those members of an entity's report that do not depend on a comparison."""
    return {"table": table_text(entity.table), "key": list(entity.key)}


def entity_json(about: Mapping[str, Any], counts: Counts, tally: Tally, scope: Scope, seconds: float) -> JSON:
    """Returns the report of an entity that was compared."""
    changed = {name: f"{number:,} rows: altered without a row event" for name, number in counts.schema_changed.items()}
    verdict = DRIFT if tally.drifted else SCHEMA_CHANGED if changed else CLEAN
    return {
        **about,
        "verdict": verdict,
        "why": _undecided(counts.undecided),
        "sourceRows": counts.source_rows,
        "changelogRows": counts.changelog_rows,
        **tally.to_json(),
        "ppm": round(tally.drifted / max(counts.source_rows, 1) * 1e6, 3),
        "schemaChanged": changed,
        "unknown": dict(counts.unknown),
        "sampled": sampled_text(scope),
        "seconds": seconds,
    }


def _undecided(keys: int) -> str | None:
    if not keys:
        return None
    if keys == 1:
        return "1 key could not be compared: the database did not show its last change yet"
    return f"{keys:,} keys could not be compared: the database did not show their last changes yet"


def sampled_text(scope: Scope) -> str | None:
    """Returns the limits of the comparison in words; None if there are no limits."""
    parts = []
    if scope.share is not None:
        parts.append(f"{scope.share:.4%} of the keys".replace(".0000%", "%"))
    if scope.keys is not None:
        parts.append(str(scope.keys))
    if scope.since is not None:
        parts.append(f"keys that changed after {scope.since}")
    return ", ".join(parts) or None
