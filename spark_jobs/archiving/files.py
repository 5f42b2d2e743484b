"""Adds files to an archive and compacts them (docs/how-to/archive.md).

The new files of a run become visible all at once, when a manifest lists them. If the run is killed earlier, its files
stay, but no manifest lists them. `changelog.spark_jobs.archiving.clear` later deletes such files, and files that were
replaced.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

from pyspark.sql import DataFrame

from changelog.connectors.sinks.files.layout import log_file
from changelog.connectors.sinks.kafka.admin.names import entity_of, generation_of
from changelog.envelope.errors import ChangelogError, Kind
from changelog.spark_jobs.archiving.complete import Goal
from changelog.spark_jobs.archiving.merging import rows_of, to_merge, to_merge_newest
from changelog.spark_jobs.archiving.retention import closed_sequences
from changelog.spark_jobs.archiving.write_files import ArchiveRun, WrittenFile, write_files
from changelog.spark_jobs.reading.kafka_offsets import Offsets, Spans
from changelog.spark_jobs.reading.read_files import ROWS
from changelog.spark_jobs.storage.manifest import ArchiveFile, Manifest, Replaced, commit
from changelog.spark_jobs.storage.store import FolderStore

FAIL_POINTS = ("archive:written", "archive:moved", "archive:committed", "archive:dropped", "archive:cleared")
"""The names of the points between a run's steps at which tests make the run crash."""


DAYS_AT_ONCE = 64
"""How many days are compacted before a manifest is written. A day for which two entities have files counts as two."""


def land(run: ArchiveRun, rows: DataFrame, spans: Spans, *, prefix: str, goal: Goal | None = None) -> int:
    """Archives the rows that were read from these spans. Returns the number of rows.

    A span is a range of offsets in a partition of a topic. The manifest that lists the new files also has the ends of
    the spans, and the position of `goal` for each entity that has reached the goal. `rows` have the columns of
    `changelog.envelope.columnar.batch.SCHEMA`; the column `partition` has the numbers of Kafka's partitions. Raises
    ChangelogError (IN_USE) if another run archived one of the spans at the same time.
    """
    with write_files(run, rows) as new_files:
        listed_files = [_landed(file, spans, prefix) for file in new_files]

        def add(manifest: Manifest) -> Manifest:
            offsets = {topic: dict(parts) for topic, parts in manifest.offsets.items()}
            for (topic, partition), span in spans.items():
                if offsets.setdefault(topic, {}).get(str(partition)) != span.after:
                    raise _in_use(run.store, f"topic {topic}, partition {partition}, was archived")
                offsets[topic][str(partition)] = span.end
            complete = _complete(manifest, goal, offsets)
            return replace(manifest, files=(*manifest.files, *listed_files), offsets=offsets, complete=complete)

        commit(run.store, add, at=run.at)
    run.reach("archive:committed")
    return sum(file.rows for file in listed_files)


def record_complete(run: ArchiveRun, goal: Goal | None) -> None:
    """Records the position of `goal` for each entity that has reached the goal. Writes a manifest only if one of these
    entities has no position in the newest manifest.

    A run that finds no new messages needs this if the newest manifest lacks positions, for example because an old
    version of this job wrote it: such a version recorded no positions.
    """

    def add(manifest: Manifest) -> Manifest:
        return replace(manifest, complete=_complete(manifest, goal, manifest.offsets))

    before = run.manifest()
    if add(before).complete.keys() - before.complete.keys():
        commit(run.store, add, at=run.at)


def _complete(manifest: Manifest, goal: Goal | None, offsets: Offsets) -> dict[str, str]:
    if goal is None:
        return dict(manifest.complete)
    reached_positions = goal.complete(offsets)
    return dict(manifest.complete) | {  # the maximum, because another run may have recorded a later position
        entity: max(position, manifest.complete.get(entity, "")) for entity, position in reached_positions.items()
    }


def _landed(file: "WrittenFile", spans: Spans, prefix: str) -> ArchiveFile:
    own_spans = {part: span for part, span in spans.items() if entity_of(prefix, part[0]) == file.entity}
    return file.listed({_label(*part): (span.first, span.end) for part, span in own_spans.items()})


def _label(topic: str, number: int) -> str:
    """Returns the key of a partition in `ArchiveFile.offsets`: its number, such as `5`. If an entity was repartitioned,
    it has later topics, and their number comes first: `G2/5` is partition 5 of the second topic.
    """
    generation = generation_of(topic)
    return str(number) if generation == 1 else f"G{generation}/{number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """The result of a merge: how many files were merged (`files`) into how many files (`into`); how many rows the
    merged files had, and how many of these rows were dropped as repeats.
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
    """Merges the files of each entity and day into one sorted file, for the days before `before`, and drops repeats.

    A repeat has the same entity, partition and position as another row. Raises ChangelogError (IN_USE) if another run
    replaced or dropped the same files at the same time.
    """
    return _merge(run, to_merge(run.manifest(), before))


def compact_newest(run: ArchiveRun) -> Merged:
    """Merges only the newest files of each entity and day, so that a day has few files while it still gets more."""
    return _merge(run, to_merge_newest(run.manifest()))


def _merge(run: ArchiveRun, groups: Sequence[Sequence[ArchiveFile]]) -> Merged:
    merged = Merged()
    for begin in range(0, len(groups), DAYS_AT_ONCE):
        old_files = [file for files in groups[begin : begin + DAYS_AT_ONCE] for file in files]
        with write_files(run, read_archived(run, old_files)) as written_files:
            merged += swap(run, old_files, written_files)
        run.reach("archive:committed")
    return merged


def swap(run: ArchiveRun, old_files: Sequence[ArchiveFile], written_files: Sequence[WrittenFile]) -> Merged:
    """Writes a manifest in which new files replace old ones. The new files have the old files' rows without repeats.

    Raises ChangelogError: MALFORMED if the new files have more rows than the old ones have according to the manifest,
    IN_USE if another run replaced the old files.
    """
    new_files = listed(old_files, written_files)
    merged = Merged(
        files=len(old_files),
        into=len(new_files),
        rows=rows_of(old_files),
        repeats=rows_of(old_files) - rows_of(new_files),
    )
    if merged.repeats < 0:
        raise ChangelogError(
            Kind.MALFORMED,
            f"files of {run.store.root} have more rows than their manifest says",
            hint="restore the files that the manifest lists from a copy",
        )

    def swapped(manifest: Manifest) -> Manifest:
        rest = without(run.store, manifest, old_files)
        return replace(rest, files=(*rest.files, *new_files))

    commit(run.store, swapped, at=run.at)
    return merged


def without(store: FolderStore, manifest: Manifest, files: Sequence[ArchiveFile]) -> Manifest:
    """Returns the manifest without these files. Raises ChangelogError (IN_USE) if the manifest lacks one of them."""
    paths = frozenset(file.path for file in files)
    other_files = tuple(file for file in manifest.files if file.path not in paths)
    if len(other_files) + len(files) != len(manifest.files):
        raise _in_use(store, "the files that this run merged were replaced")
    return replace(manifest, files=other_files)


def listed(old_files: Sequence[ArchiveFile], written_files: Iterable[WrittenFile]) -> list[ArchiveFile]:
    """Returns the manifest's entries for new files that replace old ones.

    For each partition, an entry has a range of offsets. This range covers those of all old files of the same entity
    that share a day with the new file.
    """
    return [file.listed(_offsets(old_files, file.listed({}))) for file in written_files]


def _offsets(old: Iterable[ArchiveFile], new: ArchiveFile) -> dict[str, tuple[int, int]]:
    spans: dict[str, tuple[int, int]] = {}
    for file in old:
        if file.entity == new.entity and file.first_day <= new.day and new.first_day <= file.day:
            for partition, (first, end) in file.offsets.items():
                low, high = spans.get(partition, (first, end))
                spans[partition] = min(low, first), max(high, end)
    return spans


def archive_log(run: ArchiveRun, path: Path, before: date | None = None) -> Merged:
    """Archives the oldest files of the file log at `path`: those that have only changes of days before `before`. If
    `before` is None, these are the closed days.

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
    return Merged(files=len(log_files), into=len(new_files), rows=rows_of(new_files))


def read_archived(run: ArchiveRun, files: Sequence[ArchiveFile]) -> DataFrame:
    """Returns the rows of these files of the archive."""
    return _read(run, [f"{run.store.root}/{file.path}" for file in files])


def _read(run: ArchiveRun, files: Sequence[str]) -> DataFrame:
    reader = run.spark.read.schema(ROWS).option("recursiveFileLookup", "true")
    return reader.option("parquet.page.verify-checksum.enabled", "true").parquet(*files)


def _in_use(store: FolderStore, event: str) -> ChangelogError:
    return ChangelogError(Kind.IN_USE, f"{event} by another run in {store.root}", hint="start only one run at a time")
