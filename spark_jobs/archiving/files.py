"""Adds files to an archive and compacts them (docs/how-to/archive.md).

A run's files become visible all at once, when the manifest lists them. A run that is killed before that leaves files
that no manifest lists. `changelog.spark_jobs.archiving.clear` deletes such files later, together with replaced files.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

from pyspark.sql import DataFrame

from changelog.connectors.sinks.files.layout import log_file
from changelog.connectors.sinks.kafka.admin.names import topic as topic_of
from changelog.envelope.errors import ChangelogError, Kind
from changelog.spark_jobs.archiving.complete import Goal
from changelog.spark_jobs.archiving.retention import closed_sequences, to_merge
from changelog.spark_jobs.archiving.write_files import ArchiveRun, WrittenFile, write_files
from changelog.spark_jobs.reading.kafka_offsets import Offsets, Spans
from changelog.spark_jobs.reading.read_files import ROWS
from changelog.spark_jobs.storage.manifest import ArchiveFile, Manifest, Replaced, commit
from changelog.spark_jobs.storage.store import Store

FAIL_POINTS = ("archive:written", "archive:moved", "archive:committed", "archive:dropped", "archive:cleared")
"""The boundaries between steps at which tests make a run crash."""


DAYS_AT_ONCE = 64
"""How many days are compacted in one commit. A day of two entities counts as two."""


def land(run: ArchiveRun, rows: DataFrame, spans: Spans, *, prefix: str, goal: Goal | None = None) -> int:
    """Commits the rows that were read from these spans, together with the spans' ends. Returns the number of rows.

    A span is a range of offsets in a partition of a topic. `rows` have the columns of
    `changelog.envelope.columnar.batch.SCHEMA`; the column `partition` has the numbers of Kafka's partitions. For each
    entity that reaches `goal`, the goal's position is recorded. Raises ChangelogError (IN_USE) if another run archived
    one of the spans at the same time.
    """
    with write_files(run, rows) as new_files:
        listed_files = [_landed(file, spans, prefix) for file in new_files]

        def add(manifest: Manifest) -> Manifest:
            offsets = {topic: dict(parts) for topic, parts in manifest.offsets.items()}
            for (topic, partition), span in spans.items():
                if offsets.setdefault(topic, {}).get(str(partition)) != span.after:
                    raise _in_use(run.store, f"{topic}, partition {partition}, was archived")
                offsets[topic][str(partition)] = span.end
            complete = _complete(manifest, goal, prefix, offsets)
            return replace(manifest, files=(*manifest.files, *listed_files), offsets=offsets, complete=complete)

        commit(run.store, add, at=run.at)
    run.reach("archive:committed")
    return sum(file.rows for file in listed_files)


def record_complete(run: ArchiveRun, goal: Goal | None, *, prefix: str) -> None:
    """Records the position of `goal` if some entity has reached the goal but has no position in the manifest yet.

    A run that finds no new messages needs this, for example if an older version wrote the manifest: that version
    recorded no positions.
    """

    def add(manifest: Manifest) -> Manifest:
        return replace(manifest, complete=_complete(manifest, goal, prefix, manifest.offsets))

    before = run.manifest()
    if add(before).complete.keys() - before.complete.keys():
        commit(run.store, add, at=run.at)


def _complete(manifest: Manifest, goal: Goal | None, prefix: str, offsets: Offsets) -> dict[str, str]:
    if goal is None:
        return dict(manifest.complete)
    reached = goal.complete(prefix, offsets)
    return dict(manifest.complete) | {  # the maximum, because another run may have recorded a later position
        entity: max(position, manifest.complete.get(entity, "")) for entity, position in reached.items()
    }


def _landed(file: "WrittenFile", spans: Spans, prefix: str) -> ArchiveFile:
    topic = topic_of(prefix, file.entity)
    return file.listed(
        {str(partition): (span.first, span.end) for (name, partition), span in spans.items() if name == topic}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """The result of a merge: how many files were merged (`files`), into how many files (`into`), how many rows they
    had, and how many rows were dropped because they were repeats.
    """

    files: int = 0
    into: int = 0
    rows: int = 0
    repeats: int = 0

    def __add__(self, other: "Merged") -> "Merged":
        return Merged(
            files=self.files + other.files,
            into=self.into + other.into,
            rows=self.rows + other.rows,
            repeats=self.repeats + other.repeats,
        )


def compact(run: ArchiveRun, *, before: date) -> Merged:
    """Merges the files of each entity and day into one sorted file, for the days before a date, and drops repeats.

    A repeat has the same entity, partition and position as another row. Raises ChangelogError (IN_USE) if another run
    replaced or dropped the same files at the same time.
    """
    merged = Merged()
    groups = to_merge(run.manifest(), before)
    for begin in range(0, len(groups), DAYS_AT_ONCE):
        merged += _merge(run, [file for files in groups[begin : begin + DAYS_AT_ONCE] for file in files])
    return merged


def _merge(run: ArchiveRun, old_files: Sequence[ArchiveFile]) -> Merged:
    rows = _read(run, [f"{run.store.root}/{file.path}" for file in old_files])
    with write_files(run, rows) as written_files:
        new_files = [file.listed(_offsets(old_files, file)) for file in written_files]
        merged = Merged(
            files=len(old_files),
            into=len(new_files),
            rows=_rows(old_files),
            repeats=_rows(old_files) - _rows(new_files),
        )
        if merged.repeats < 0:
            raise ChangelogError(
                Kind.MALFORMED,
                f"files of {run.store.root} have more rows than their manifest says",
                hint="restore the files that the manifest lists from a copy",
            )

        def swap(manifest: Manifest) -> Manifest:
            old_paths = frozenset(file.path for file in old_files)
            other_files = tuple(file for file in manifest.files if file.path not in old_paths)
            if len(other_files) + len(old_files) != len(manifest.files):
                raise _in_use(run.store, "the files that this run merged were replaced")
            return replace(manifest, files=(*other_files, *new_files))

        commit(run.store, swap, at=run.at)
    run.reach("archive:committed")
    return merged


def _rows(files: Iterable[ArchiveFile]) -> int:
    return sum(file.rows for file in files)


def _offsets(old: Iterable[ArchiveFile], new: "WrittenFile") -> dict[str, tuple[int, int]]:
    """Returns, by partition, the lowest and the highest offset of the old files that the new file replaces."""
    spans: dict[str, tuple[int, int]] = {}
    for file in old:
        if (file.entity, file.day) == (new.entity, new.day):
            for partition, (first, end) in file.offsets.items():
                low, high = spans.get(partition, (first, end))
                spans[partition] = min(low, first), max(high, end)
    return spans


def archive_log(run: ArchiveRun, path: Path, before: date | None = None) -> Merged:
    """Archives the days of the file log at `path` before a date, by default the closed days.

    The log files themselves stay until `changelog.spark_jobs.archiving.clear` deletes them.
    """
    archived = run.manifest().log.last
    log_files = closed_sequences(path, archived, before)
    if not log_files:
        return Merged()
    rows = _read(run, [f"file:{log_file(path.absolute(), sequence)}" for sequence in log_files])
    with write_files(run, rows) as written_files:
        new_files = [file.listed({}) for file in written_files]

        def add(manifest: Manifest) -> Manifest:
            if manifest.log.last != archived:
                raise _in_use(run.store, "the log was archived")
            return replace(manifest, log=Replaced(first=1, last=log_files[-1]), files=(*manifest.files, *new_files))

        commit(run.store, add, at=run.at)
    run.reach("archive:committed")
    return Merged(files=len(log_files), into=len(new_files), rows=_rows(new_files))


def _read(run: ArchiveRun, files: Sequence[str]) -> DataFrame:
    reader = run.spark.read.schema(ROWS).option("recursiveFileLookup", "true")
    return reader.option("parquet.page.verify-checksum.enabled", "true").parquet(*files)


def _in_use(store: Store, event: str) -> ChangelogError:
    return ChangelogError(Kind.IN_USE, f"{event} by another run in {store.root}", hint="start only one run at a time")
