"""One run of the comparison of a PostgreSQL source: fences, the waits, and what becomes of it as a report."""

import secrets
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import reduce
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from connectors.capture.settings_guard import check_settings, shapes_of
from connectors.config import Config, FilesConfig, KafkaConfig
from connectors.sinks import Log
from connectors.sinks.kafka.names import topic as topic_of
from connectors.wiring.entities import table_text
from connectors.wiring.sinks import extra_needed, open_log, read_gaps
from envelope.checkpoint import lsn_text
from envelope.entity import Entity
from envelope.errors import ChangelogError, Kind
from envelope.gap import Gap
from envelope.model import Record
from spark_jobs.changelog.read import Archive, Where, name_of
from spark_jobs.drift import catch_up, hold_fence
from spark_jobs.drift.catch_up import NOT_CAUGHT_UP, CaughtUp, NotComparedError
from spark_jobs.drift.compare import Comparison, Counts, Scope, under_fence
from spark_jobs.drift.fence import Fence, SourceDatabase
from spark_jobs.drift.source_scan import Reading
from spark_jobs.drift.summary import Tally, tallied, time_text
from spark_jobs.storage import manifest as manifests

CLEAN, DRIFT, SCHEMA_CHANGED, SKIPPED = "clean", "drift", "schema changed", "skipped"
FORMAT, KIND = 1, "changelog-drift-report"
KEYS_NAME = "keys.jsonl"

_PAUSE_MAX_S = 10

JSON = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A run: what is compared, with the changelog `where`; how long it waits, and the `folder` of reports."""

    config: Config
    where: Where
    scope: Scope
    names: Sequence[str] = ()
    wait_s: float = 60.0
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStart:
    """A run that has begun; its folder is named by its `id`, which sorts as runs do."""

    id: str
    at: datetime
    clock: float

    @classmethod
    def now(cls) -> "RunStart":
        """A run that begins now."""
        at = datetime.now(UTC)
        return cls(id=f"{at:%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}", at=at, clock=time.monotonic())

    def to_json(self, name: str) -> JSON:
        """The report's `run`, which ends now."""
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
    except PackageNotFoundError:  # a checkout on the path, that nobody installed
        return "unknown"


@dataclass(slots=True, kw_only=True)
class Progress:
    """What a run has found out so far, for a report that says why it could not go on, too."""

    fence: Fence | None = None
    caught_up: CaughtUp | None = None
    database: str | None = None
    skipped: dict[str, JSON] = field(default_factory=dict)


def say(text: str) -> None:
    """Progress, for a person."""
    if sys.stderr.isatty():
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def detect(spark: SparkSession, request: Request, start: RunStart) -> JSON:
    """Compares, and gives the report as far as it is known without a policy; its keys are written already.

    Raises ChangelogError; what cannot be compared now is a report that says so.
    """
    seen, entities, failure = Progress(), {}, {}
    try:
        entities = _compared(spark, request, start, seen)
    except NotComparedError as error:
        failure = {"verdict": error.verdict, "why": str(error)}
    source = {
        "kind": request.config.source.kind,
        "database": seen.fence.database if seen.fence else None,
        "server": seen.fence.server if seen.fence else None,
        "name": request.config.name,
    }
    entities = dict(sorted({**entities, **seen.skipped}.items()))
    report = report_json(request, start, entities, source)
    gaps = read_gaps(open_log(request.config)) if seen.caught_up else []
    changelog = {**report["changelog"], "gaps": [_gap_json(gap) for gap in gaps]}
    return {**report, "changelog": changelog, "fence": _fence_json(seen), **failure}


def _gap_json(record: Record) -> JSON:
    gap = Gap.parse(record.envelope.current or b"")
    at = time_text(record.envelope.provenance.source.committed_at)
    return {"reason": gap.reason, "before": gap.before.position, "position": gap.after.position, "at": at}


def report_json(request: Request, start: RunStart, entities: Mapping[str, JSON], source: JSON) -> JSON:
    """A report that ends now, of a comparison without a fence."""
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


def _fence_json(seen: Progress) -> JSON | None:
    fence, caught_up = seen.fence, seen.caught_up
    if fence is None:
        return None
    position = caught_up.checkpoint.position if caught_up else None
    return {
        "snapshot": fence.text,
        "lsn": lsn_text(fence.lsn),
        "takenAt": time_text(fence.taken_at),
        "position": None if position is None else str(position),
        "caughtUpAt": time_text(caught_up.at) if caught_up else None,
        "waitedSeconds": round(caught_up.waited_s, 3) if caught_up else None,
    }


def _compared(spark: SparkSession, request: Request, start: RunStart, seen: Progress) -> dict[str, JSON]:
    """The report's entities; writes the run's keys.

    1. Waits until all tables are read to their ends. 2. Takes the fence. 3. Waits until the changelog is behind it.
    4. Compares; 5. again, what could not be told.
    """
    config = request.config
    chosen = []
    for entity in hold_fence.entities_of(config, request.names):
        why = _skipped(entity)
        if why is None:
            chosen.append(entity)
        else:
            seen.skipped[entity.name] = {**_about(entity), "verdict": SKIPPED, "why": why, **NOTHING}
    if not chosen:
        return {}
    hmac_key = b"" if config.mask is None else config.mask.key.encode()
    source = SourceDatabase(dsn=config.source.dsn, hmac_key=hmac_key, entities=tuple(chosen))
    compare = _Compare(spark=spark, request=request, source=source, log=open_log(config))
    with ExitStack() as fences:
        comparisons = [compare.first(fences, seen)]  # 1 to 4
        deadline = time.monotonic() + request.wait_s
        while (undecided := comparisons[-1].undecided()) is not None and time.monotonic() < deadline:
            say("some keys cannot be told at this fence: again, under a later one")
            comparisons.append(compare.again(fences, comparisons[-1], undecided))  # 5
            time.sleep(min(len(comparisons), _PAUSE_MAX_S))
        folder = request.folder / start.id
        tallies = written(folder, comparisons)
    counts = _totals(comparisons)
    seconds = round(time.monotonic() - start.clock, 3)
    return {
        entity.name: entity_json(
            _about(entity), counts.get(entity.name, Counts()), tallies.get(entity.name, Tally()), request.scope, seconds
        )
        for entity in chosen
    }


def _skipped(entity: Entity) -> str | None:
    if entity.immutable and entity.on_change_of_immutable == "ignore":
        return 'it is immutable, and changes of its table are ignored (on_change_of_immutable = "ignore")'
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compare:
    spark: SparkSession
    request: Request
    source: SourceDatabase
    log: Log

    def first(self, fences: ExitStack, seen: Progress) -> Comparison:
        request, names = self.request, [entity.name for entity in self.source.entities]
        deadline = time.monotonic() + request.wait_s
        shapes = shapes_of(self.source.entities, codec=request.config.codec, hmac_key=self.source.hmac_key)
        while True:
            checkpoint = catch_up.until_read(self.log, names, deadline=deadline, wait=time.sleep)
            settings = {name: checkpoint.settings.get(name) for name in names}
            check_settings(replace(checkpoint, settings=settings, partial=False), shapes, accept=False)
            with ExitStack() as own:
                seen.fence, seen.caught_up = self._fence(own, self.source, deadline, seen)
                if catch_up.unread(seen.caught_up.checkpoint, names) is None:
                    fences.enter_context(own.pop_all())
                    break  # else a repair was asked for before the fence: a later one shows what becomes of it
        say(f"comparing {', '.join(names)} as of {lsn_text(seen.fence.lsn)}")
        return self._under(self.source, seen.fence, seen.caught_up, None)

    def again(self, fences: ExitStack, before: Comparison, undecided: DataFrame) -> Comparison:
        names = {name for name, item in before.counts.items() if item.undecided}
        source = replace(self.source, entities=tuple(item for item in self.source.entities if item.name in names))
        fence, caught_up = self._fence(fences, source, time.monotonic() + self.request.wait_s, Progress())
        return self._under(source, fence, caught_up, undecided)

    def _fence(
        self, fences: ExitStack, source: SourceDatabase, deadline: float, seen: Progress
    ) -> tuple[Fence, CaughtUp]:
        fence = seen.fence = fences.enter_context(hold_fence.held(source, deadline=deadline))
        source.move_log_on()
        say(f"waiting until the changelog goes up to {lsn_text(fence.lsn)}")
        caught_up = catch_up.until_caught_up(self.log, fence, deadline=deadline, wait=time.sleep)
        if isinstance(self.request.where, Archive):
            _until_archived(self.spark, self.request, self.request.where, list(fence.tables), deadline)
        return fence, caught_up

    def _under(self, source: SourceDatabase, fence: Fence, caught_up: CaughtUp, only: DataFrame | None) -> Comparison:
        reading = Reading(source=source, fence=fence)
        return under_fence(
            self.spark, reading, self.request.where, self.log, caught_up.checkpoint, self.request.scope, only
        )


def _until_archived(
    spark: SparkSession, request: Request, where: Archive, names: Sequence[str], deadline: float
) -> None:
    """Waits until an archive has all that its topics hold now. Raises NotComparedError (NOT_CAUGHT_UP)."""
    sink = request.config.sink
    if not isinstance(sink, KafkaConfig):
        raise ChangelogError(
            Kind.USAGE, "a file log has its archive in its own folder, and is read with it", hint="leave out --archive"
        )
    with extra_needed():
        from connectors.wiring import kafka  # noqa: PLC0415, comparing files needs no Kafka client
        from spark_jobs.changelog import kafka_offsets  # noqa: PLC0415

        spans = kafka_offsets.unread(kafka.client(sink), request.config.prefix, {}, lost=True)
    topics = {topic_of(request.config.prefix, name) for name in names}
    due = {part: span.end for part, span in spans.items() if part[0] in topics}
    store = manifests.store_of(where.path, spark)
    while True:
        manifest = manifests.newest(store)
        offsets = manifest.offsets if manifest else {}
        behind = [part for part, end in due.items() if offsets.get(part[0], {}).get(str(part[1]), 0) < end]
        if not behind:
            return
        if time.monotonic() > deadline:
            topic, number = behind[0]
            message = f"{name_of(where)} lacks what {topic}, partition {number}, holds"
            raise NotComparedError(NOT_CAUGHT_UP, message, hint="run spark_jobs/archive.py first, or wait longer")
        time.sleep(1.0)


def written(folder: Path, comparisons: Sequence[Comparison]) -> dict[str, Tally]:
    """Writes the run's keys; gives what is told of them."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / KEYS_NAME).open("w", encoding="utf-8") as keys:
        return tallied(_rows([comparison.drifted() for comparison in comparisons]), keys)


def _rows(frames: Sequence[DataFrame | None]) -> Iterator[Mapping[str, Any]]:
    """The drifted keys, by entity and key; no more of them at once than a partition holds."""
    present = [frame for frame in frames if frame is not None]
    if not present:
        return iter(())
    ordered = reduce(DataFrame.union, present).orderBy("entity", "key")
    return (row.asDict() for row in ordered.toLocalIterator())


def _totals(comparisons: Sequence[Comparison]) -> dict[str, Counts]:
    """The first comparison's counts, and what the later ones said of the keys that it left undecided."""
    totals = dict(comparisons[0].counts)
    for before, after in pairwise(comparisons):
        for name, counts in before.counts.items():
            if counts.undecided:
                totals[name].add(after.counts.get(name, Counts()))
    return totals


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
"""Of an entity that was not compared."""


def _about(entity: Entity) -> JSON:
    return {"table": table_text(entity.table), "key": list(entity.key)}


def entity_json(about: Mapping[str, Any], counts: Counts, tally: Tally, scope: Scope, seconds: float) -> JSON:
    """An entity of the report."""
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
    return f"{keys:,} keys could not be compared: their last changes are in the changelog and not yet visible"


def sampled_text(scope: Scope) -> str | None:
    """What was left out, for people."""
    parts = []
    if scope.share is not None:
        parts.append(f"{scope.share:.4%} of the keys".replace(".0000%", "%"))
    if scope.keys is not None:
        parts.append(str(scope.keys))
    if scope.since is not None:
        parts.append(f"keys that changed behind {scope.since}")
    return ", ".join(parts) or None
