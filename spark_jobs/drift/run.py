"""Compares the changelog with the database from which it is made, under a *fence*: a snapshot of this database."""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from changelog.connectors.capture.settings_guard import check_settings, shapes_of
from changelog.connectors.config import KafkaConfig
from changelog.connectors.permissions import DATA_FILE, DATA_FOLDER, make_file, make_folder
from changelog.connectors.sinks import Log
from changelog.connectors.sources import Database
from changelog.connectors.sources.fences import Fence
from changelog.connectors.wiring.sinks import kafka_needed, open_log, read_gaps
from changelog.connectors.wiring.sources import database
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError, Kind
from changelog.spark_jobs.drift.chosen_entities import entities_of
from changelog.spark_jobs.drift.compare import Comparison, Counts, under_fence
from changelog.spark_jobs.drift.fenced import catch_up
from changelog.spark_jobs.drift.fenced.catch_up import NOT_CAUGHT_UP, CaughtUp, NotComparedError
from changelog.spark_jobs.drift.report_json import (
    JSON,
    KEYS_NAME,
    NOTHING,
    SKIPPED,
    Request,
    RunProgress,
    RunStart,
    about,
    entity_json,
    fence_json,
    gap_json,
    report_json,
)
from changelog.spark_jobs.drift.summary import Tally, tallied
from changelog.spark_jobs.reading.where import Archive, name_of
from changelog.spark_jobs.storage.manifest import newest
from changelog.spark_jobs.storage.open_store import store_of

_PAUSE_MAX_S = 10


def say(text: str) -> None:
    """Shows progress to a person at a terminal."""
    if sys.stderr.isatty():
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def detect(spark: SparkSession, request: Request, start: RunStart) -> JSON:
    """Compares the changelog with its source, and writes the file of drifted keys.

    Returns the report, to which no policy has been applied yet. If nothing can be compared now, the report says why.
    """
    progress, entities, failure = RunProgress(), {}, {}
    try:
        entities = _compared(spark, request, start, progress)
    except NotComparedError as error:
        failure = {"verdict": error.verdict, "why": str(error)}
    source = {
        "kind": request.config.source.kind,
        "database": progress.fence.database if progress.fence else None,
        "server": progress.fence.server if progress.fence else None,
        "name": request.config.name,
    }
    entities = dict(sorted({**entities, **progress.skipped}.items()))
    report = report_json(request, start, entities, source)
    gaps = read_gaps(open_log(request.config)) if progress.caught_up else []
    changelog = {**report["changelog"], "gaps": [gap_json(gap) for gap in gaps]}
    return {**report, "changelog": changelog, "fence": fence_json(progress), **failure}


def _compared(spark: SparkSession, request: Request, start: RunStart, progress: RunProgress) -> dict[str, JSON]:
    """Returns the entities of the report, and writes the file of drifted keys.

    1. Waits until the service has read all tables completely.
    2. Takes the fence, a snapshot of the database.
    3. Waits until the changelog has caught up with the fence.
    4. Compares both sides.
    5. Under later fences, compares those keys again that could not be decided under the fences before.
    """
    config = request.config
    compared_entities = []
    for entity in entities_of(config, request.names):
        reason = _skipped(entity)
        if reason is None:
            compared_entities.append(entity)
        else:
            progress.skipped[entity.name] = {**about(entity), "verdict": SKIPPED, "why": reason, **NOTHING}
    if not compared_entities:
        return {}
    compare = _Compare(
        spark=spark, request=request, source=database(config), entities=tuple(compared_entities), log=open_log(config)
    )
    with ExitStack() as fences:
        comparisons = [compare.first(fences, progress)]  # steps 1 to 4
        deadline = time.monotonic() + request.wait_s
        while (undecided := comparisons[-1].undecided()) is not None and time.monotonic() < deadline:
            say("some keys are undecided at this fence: comparing them again under a later fence")
            comparisons.append(compare.again(fences, comparisons[-1], undecided))  # 5
            time.sleep(min(len(comparisons), _PAUSE_MAX_S))
        folder = request.folder / start.id
        tallies = written(folder, comparisons)
    counts = _totals(comparisons)
    seconds = round(time.monotonic() - start.clock, 3)
    return {
        entity.name: entity_json(
            about(entity), counts.get(entity.name, Counts()), tallies.get(entity.name, Tally()), request.scope, seconds
        )
        for entity in compared_entities
    }


def _skipped(entity: Entity) -> str | None:
    if entity.immutable and entity.on_change_of_immutable == "ignore":
        return 'it is immutable, and changes of its table are ignored (on_change_of_immutable = "ignore")'
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compare:
    spark: SparkSession
    request: Request
    source: Database
    entities: Sequence[Entity]
    log: Log

    def first(self, fences: ExitStack, progress: RunProgress) -> Comparison:
        request, names = self.request, [entity.name for entity in self.entities]
        deadline = time.monotonic() + request.wait_s
        shapes = shapes_of(self.entities, codec=request.config.codec, hmac_key=request.config.hmac_key)
        while True:
            checkpoint = catch_up.until_read(self.log, names, deadline=deadline, wait=time.sleep)
            settings = {name: checkpoint.settings.get(name) for name in names}
            check_settings(replace(checkpoint, settings=settings, partial=False), shapes, accept=False)
            with ExitStack() as attempt:
                progress.fence, progress.caught_up = self._fence(attempt, self.entities, deadline, progress)
                if catch_up.unread(progress.caught_up.checkpoint, names) is None:
                    fences.enter_context(attempt.pop_all())
                    break
                # A repair began before the fence was taken. So the loop waits until the repair is done, and takes a
                # later fence, which shows the repair's result.
        say(f"comparing {', '.join(names)} as of {progress.fence.place}")
        return self._under(progress.fence, progress.caught_up, None)

    def again(self, fences: ExitStack, comparison: Comparison, undecided: DataFrame) -> Comparison:
        names = {name for name, item in comparison.counts.items() if item.undecided}
        entities = [entity for entity in self.entities if entity.name in names]
        fence, caught_up = self._fence(fences, entities, time.monotonic() + self.request.wait_s, RunProgress())
        return self._under(fence, caught_up, undecided)

    def _fence(
        self, fences: ExitStack, entities: Sequence[Entity], deadline: float, progress: RunProgress
    ) -> tuple[Fence, CaughtUp]:
        fence = progress.fence = fences.enter_context(catch_up.held(self.source, entities, deadline=deadline))
        say(f"waiting until the changelog reaches {fence.place}")
        caught_up = catch_up.until_caught_up(self.log, fence, deadline=deadline, wait=time.sleep)
        if isinstance(self.request.where, Archive):
            _until_archived(self.spark, self.request, self.request.where, list(fence.tables), deadline)
        return fence, caught_up

    def _under(self, fence: Fence, caught_up: CaughtUp, only: DataFrame | None) -> Comparison:
        request = self.request
        return under_fence(self.spark, fence, request.where, self.log, caught_up.checkpoint, request.scope, only)


def _until_archived(
    spark: SparkSession, request: Request, where: Archive, names: Sequence[str], deadline: float
) -> None:
    """Waits until an archive has all messages that are in Kafka's topics now.

    Raises NotComparedError (NOT_CAUGHT_UP) when the deadline has passed. Raises ChangelogError (USAGE) if the changelog
    is a file log, because such a log and its archive are always read together.
    """
    sink = request.config.sink
    if not isinstance(sink, KafkaConfig):
        raise ChangelogError(Kind.USAGE, "a file log and its archive are read together", hint="leave out --archive")
    with kafka_needed():
        from changelog.connectors.wiring import kafka  # noqa: PLC0415 - comparing files needs no Kafka client

        end_offsets = kafka.open_log(request.config, sink).complete_ends(names)
    store = store_of(where.path, spark)
    while True:
        manifest = newest(store)
        offsets = manifest.offsets if manifest else {}
        parts_missing = [
            part for part, end in end_offsets.items() if offsets.get(part[0], {}).get(str(part[1]), 0) < end
        ]
        if not parts_missing:
            return
        if time.monotonic() > deadline:
            topic, partition = parts_missing[0]
            message = f"{name_of(where)} lacks messages of topic {topic}, partition {partition}"
            raise NotComparedError(NOT_CAUGHT_UP, message, hint="run spark_jobs/archive.py first, or wait longer")
        time.sleep(1.0)


def written(folder: Path, comparisons: Sequence[Comparison]) -> dict[str, Tally]:
    """Writes the drifted keys of these comparisons to a file in `folder`. Returns a summary of them for each entity."""
    make_folder(folder, DATA_FOLDER)
    make_file(folder / KEYS_NAME, DATA_FILE)
    with (folder / KEYS_NAME).open("w", encoding="utf-8") as keys:
        return tallied(_rows([comparison.drifted() for comparison in comparisons]), keys)


def _rows(frames: Sequence[DataFrame | None]) -> Iterator[Mapping[str, Any]]:
    """Yields the drifted keys, sorted by entity and key. Only one partition at a time is loaded into memory."""
    non_empty = [frame for frame in frames if frame is not None]
    if not non_empty:
        return iter(())
    sorted_rows = reduce(DataFrame.union, non_empty).orderBy("entity", "key")
    return (row.asDict() for row in sorted_rows.toLocalIterator())


def _totals(comparisons: Sequence[Comparison]) -> dict[str, Counts]:
    """Returns the counts of all comparisons together. Each comparison after the first has only the keys that the one
    before left undecided, so its counts are added.
    """
    totals = dict(comparisons[0].counts)
    for comparison, next_comparison in pairwise(comparisons):
        for name, counts in comparison.counts.items():
            if counts.undecided:
                totals[name].add(next_comparison.counts.get(name, Counts()))
    return totals
