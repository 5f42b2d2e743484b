"""`spark-submit spark_jobs/archive.py`: stores the changelog as sorted Parquet files. There are files for each entity
and day, or for each entity and range of keys.

From a changelog on Kafka, the job archives all messages that were committed since the last run, into the folder
`--archive`. From a file log, it archives the days that are closed, into the log's own folder `archive/`. A day (in UTC)
is closed if it ended at least an hour before the log's newest change. Readers read only the files that the newest
manifest lists, and a run writes its manifest after its files. So a run can be killed at any moment; the next run
repeats its work.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from changelog.connectors import failpoints
from changelog.connectors.config import Config, FilesConfig, KafkaConfig
from changelog.connectors.sinks.files.layout import sequences
from changelog.connectors.wiring.sinks import kafka_needed
from changelog.envelope.errors import ChangelogError, Kind
from changelog.spark_jobs.archiving.merging import to_level, to_merge, to_merge_newest
from changelog.spark_jobs.archiving.retention import closed_sequences, first_kept, open_day, to_drop
from changelog.spark_jobs.runner.arguments import path_or_uri, positive
from changelog.spark_jobs.runner.job import DONE, Job, main
from changelog.spark_jobs.storage.manifest import ARCHIVE, NOTHING, ArchiveFile, Manifest, newest
from changelog.spark_jobs.storage.open_store import is_local, store_of
from changelog.spark_jobs.storage.store import FolderStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from changelog.spark_jobs.archiving.complete import Goal
    from changelog.spark_jobs.archiving.files import Merged
    from changelog.spark_jobs.archiving.write_files import ArchiveRun
    from changelog.spark_jobs.reading.kafka_offsets import Spans

CLOSED, ALL, MINOR, LEVELS = "closed", "all", "minor", "levels"
"""The choices of --compact."""

CHECK_EVERY_S = 60
"""How often --continuous checks for new topics, in seconds."""


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--archive",
        type=path_or_uri,
        metavar="PATH",
        help="where to keep the archive of a changelog on Kafka: any folder or "
        "URI that Spark can write to (file:, s3a:, abfs:, hdfs:)",
    )
    once = parser.add_mutually_exclusive_group()
    once.add_argument("--once", action="store_true", help="archive what there is now, and end (the default)")
    once.add_argument("--continuous", action="store_true", help="run until stopped, by structured streaming")
    parser.add_argument(
        "--every",
        type=positive,
        default=300,
        metavar="SECONDS",
        help="with --continuous, how often to archive what is new (%(default)s)",
    )
    parser.add_argument(
        "--offsets",
        type=positive,
        default=2_000_000,
        metavar="N",
        help="write a new manifest after at most this many Kafka offsets (%(default)s)",
    )
    parser.add_argument(
        "--skip", action="append", default=[], metavar="ENTITY", help="leave out this entity's topic; may be repeated"
    )
    parser.add_argument(
        "--accept-lost", action="store_true", help="continue although Kafka no longer has the next messages"
    )
    parser.add_argument(
        "--compact",
        nargs="?",
        const=CLOSED,
        choices=(CLOSED, ALL, MINOR, LEVELS),
        help="after archiving, merge files: closed (the default) merges the files of each closed day; all, the files "
        "of every day; minor, the newest files of every day; levels merges all closed days into files with disjoint "
        "ranges of keys. For a file log, all and minor also archive days that are not closed",
    )
    parser.add_argument(
        "--keep-days", type=positive, metavar="N", help="at the end, drop all days except today and the N days before"
    )
    parser.add_argument(
        "--grace-hours",
        type=positive,
        default=24,
        metavar="N",
        help="how long readers may still need files that were replaced or dropped (%(default)s)",
    )


def _plan(arguments: argparse.Namespace, config: Config) -> Mapping[str, object]:
    """Returns what a run would read, compact and drop, and where it would write. If only a Spark session can read the
    archive, returns only where the run would read and write.
    """
    store = _store(arguments, config)
    if store is None:
        return {"reads": _origin(config), "writes": f"{arguments.archive}/{ARCHIVE}"}
    manifest, started_at = newest(store) or NOTHING, datetime.now(UTC)
    summary: dict[str, object] = {"reads": _origin(config), "writes": f"{store.root}/{ARCHIVE}"}
    if isinstance(config.sink, KafkaConfig):
        spans = _unread(arguments, config, config.sink, manifest)
        summary["offsets"] = {name: _count(spans, name) for name, _ in sorted(spans)}
    else:
        summary["log_files"] = len(closed_sequences(config.sink.path, manifest.log.last, _log_end(arguments)))
    if arguments.compact:
        summary["compacts_files"] = sum(map(len, _to_compact(arguments, manifest, started_at)))
    if arguments.keep_days:
        summary["drops_days"] = sorted(to_drop(manifest, first_kept(started_at, arguments.keep_days)))
    return summary


def _run(spark: "SparkSession", arguments: argparse.Namespace, config: Config) -> Mapping[str, object]:
    """Archives the new changes, then compacts, drops and deletes as the arguments say."""
    from changelog.spark_jobs.archiving import clear, files, levels  # noqa: PLC0415 - --help and a dry run need no Spark
    from changelog.spark_jobs.archiving.write_files import ArchiveRun  # noqa: PLC0415

    store = _store(arguments, config, spark)
    assert store is not None
    reach = failpoints.parse(os.environ.get(failpoints.VARIABLE))
    run = ArchiveRun(spark=spark, store=store, at=datetime.now(UTC), reach=reach)
    log = config.sink.path if isinstance(config.sink, FilesConfig) else None
    summary: dict[str, object] = {"verdict": DONE, "archive": store.root}
    if isinstance(config.sink, KafkaConfig):
        if arguments.continuous:
            _follow(run, arguments, config, config.sink)
        summary["rows"] = _archive_new(run, arguments, config, config.sink)
    else:
        summary |= _merge_counts("archived", files.archive_log(run, config.sink.path, _log_end(arguments)))
    if arguments.compact:
        summary |= _merge_counts("compacted", _compact(run, arguments))
    if arguments.keep_days:
        summary["dropped_days"] = levels.drop_days(run, keep_days=arguments.keep_days)
    if log is not None or arguments.compact or arguments.keep_days:
        summary["deleted_files"] = clear.clear(run, grace=timedelta(hours=arguments.grace_hours), log=log)
    return summary


def _merge_counts(what: str, merged: "Merged") -> dict[str, object]:
    return {
        f"{what}_files": merged.files,
        f"{what}_into": merged.into,
        f"{what}_rows": merged.rows,
        f"{what}_repeats": merged.repeats,
    }


def _to_compact(arguments: argparse.Namespace, manifest: Manifest, at: datetime) -> list[list[ArchiveFile]]:
    """Returns the files that a run at this time would compact. Each inner list is compacted together."""
    if arguments.compact == MINOR:
        return to_merge_newest(manifest)
    if arguments.compact == LEVELS:
        return to_level(manifest, open_day(at))
    return to_merge(manifest, _before(arguments, at))


def _compact(run: "ArchiveRun", arguments: argparse.Namespace) -> "Merged":
    from changelog.spark_jobs.archiving import files, levels  # noqa: PLC0415

    if arguments.compact == MINOR:
        return files.compact_newest(run)
    if arguments.compact == LEVELS:
        return levels.compact_levels(run, before=open_day(run.at))
    return files.compact(run, before=_before(arguments, run.at))


def _before(arguments: argparse.Namespace, at: datetime) -> date:
    """Returns the first day whose files are not merged."""
    return date.max if arguments.compact == ALL else open_day(at)


def _log_end(arguments: argparse.Namespace) -> date | None:
    """Returns the day before which all days of a file log are archived. None means the first day that is not closed."""
    return date.max if arguments.compact in (ALL, MINOR) else None


def _store(arguments: argparse.Namespace, config: Config, spark: "SparkSession | None" = None) -> FolderStore | None:
    """Returns the store of the archive. If `spark` is None and only a session can reach the store, returns None."""
    if isinstance(config.sink, FilesConfig):
        for name in ("archive", "continuous", "skip", "accept_lost"):
            if getattr(arguments, name):
                raise ChangelogError(
                    Kind.USAGE,
                    f"--{name.replace('_', '-')} is for a changelog on Kafka",
                    hint="a file log keeps its archive in its own folder",
                )
        store = store_of(config.sink.path)
        if not sequences(config.sink.path) and newest(store) is None:
            hint = "`changelog run` creates it; check [sink] path"
            raise ChangelogError(Kind.PRECONDITION, f"there is no changelog in {config.sink.path}", hint=hint)
        return store
    if not arguments.archive:
        raise ChangelogError(Kind.USAGE, "--archive is missing", hint="say where the archive is: --archive PATH")
    if spark is None and not is_local(arguments.archive):
        return None
    return store_of(arguments.archive, spark)


def _origin(config: Config) -> str:
    if isinstance(config.sink, FilesConfig):
        return f"the file log in {config.sink.path}"
    return f"the changelog {config.prefix} at {config.sink.bootstrap_servers}"


# From Kafka


def _unread(arguments: argparse.Namespace, config: Config, sink: KafkaConfig, manifest: Manifest) -> "Spans":
    """Returns the spans of offsets that have to be read: the committed messages after the offsets in the manifest."""
    with kafka_needed():
        from changelog.connectors.wiring import kafka  # noqa: PLC0415
        from changelog.spark_jobs.archiving.complete import refuse_deleted  # noqa: PLC0415
        from changelog.spark_jobs.reading import kafka_offsets  # noqa: PLC0415

        client = kafka.client(sink)
        if not arguments.accept_lost:
            refuse_deleted(client, config.prefix, manifest, arguments.skip)
        return kafka_offsets.unread(
            client, config.prefix, manifest.offsets, skip=arguments.skip, lost=arguments.accept_lost
        )


def _count(spans: "Spans", topic: str) -> int:
    return sum(span.end - span.first for (name, _), span in spans.items() if name == topic)


def _archive_new(run: "ArchiveRun", arguments: argparse.Namespace, config: Config, sink: KafkaConfig) -> int:
    """Archives all messages that are committed on Kafka now, with as many manifests as this needs. Returns the number
    of rows.
    """
    from changelog.spark_jobs.archiving.files import land, record_complete  # noqa: PLC0415
    from changelog.spark_jobs.reading import kafka_offsets  # noqa: PLC0415
    from changelog.spark_jobs.reading.read_kafka import decoded, kafka_options  # noqa: PLC0415
    from changelog.spark_jobs.reading.where import Kafka, where_of  # noqa: PLC0415

    where = where_of(config)
    assert isinstance(where, Kafka)
    goal = _goal(config, sink, arguments.skip)  # must be made before the ends of the partitions are read
    row_count = 0
    for spans in kafka_offsets.slices(_unread(arguments, config, sink, run.manifest()), arguments.offsets):
        options = {
            **kafka_options(where),
            **kafka_offsets.begin_options(spans),
            "endingOffsets": kafka_offsets.as_json(spans, "end"),
            "minPartitions": str(run.spark.sparkContext.defaultParallelism),
        }
        rows = decoded(run.spark.read.format("kafka").options(**options).load(), where)
        row_count += land(run, rows, spans, prefix=config.prefix, goal=goal)
    record_complete(run, goal)
    return row_count


def _goal(config: Config, sink: KafkaConfig, skip: Collection[str]) -> "Goal | None":
    """Returns the goal of a run that begins to read now: a position up to which the archive is to become complete."""
    from changelog.connectors.wiring import kafka  # noqa: PLC0415
    from changelog.spark_jobs.archiving.complete import goal_of  # noqa: PLC0415
    from changelog.spark_jobs.reading import kafka_offsets  # noqa: PLC0415

    names = kafka_offsets.entities(kafka.client(sink).admin(), config.prefix).keys() - {*skip}
    return goal_of(kafka.open_log(config, sink), config.prefix, names)


def _follow(run: "ArchiveRun", arguments: argparse.Namespace, config: Config, sink: KafkaConfig) -> NoReturn:
    """Archives new messages by structured streaming, until the job is stopped. If there are new topics, begins a new
    query.

    Each query begins at the offsets in the manifest. So Spark's checkpoint of a query is not needed after the query has
    ended, and is deleted then. While the query runs, the checkpoint says at which offsets a micro-batch ends. The rows
    of the micro-batch do not say this, because not every offset has a row.
    """
    from changelog.spark_jobs.reading import kafka_offsets  # noqa: PLC0415
    from changelog.spark_jobs.reading.read_kafka import decoded, kafka_options  # noqa: PLC0415
    from changelog.spark_jobs.reading.where import Kafka, where_of  # noqa: PLC0415

    where = where_of(config)
    assert isinstance(where, Kafka)
    while True:
        spans = _unread(arguments, config, sink, run.manifest())
        options = {
            **kafka_options(where),
            **kafka_offsets.begin_options(spans),
            "maxOffsetsPerTrigger": str(arguments.offsets),
        }
        with tempfile.TemporaryDirectory(prefix="changelog-archive-") as folder:
            goals = partial(_goal, config, sink, arguments.skip)
            micro = MicroBatches(run, Path(folder), spans, config.prefix, goals)
            query = (
                decoded(run.spark.readStream.format("kafka").options(**options).load(), where)
                .writeStream.foreachBatch(micro.land)
                .option("checkpointLocation", f"file:{folder}")
                .trigger(processingTime=f"{arguments.every} seconds")
                .start()
            )
            try:
                while not query.awaitTermination(CHECK_EVERY_S):
                    if _unread(arguments, config, sink, run.manifest()).keys() != spans.keys():
                        break
            except Exception:
                if micro.failure is not None:
                    raise micro.failure from None
                raise
            finally:
                query.stop()


class MicroBatches:
    """Archives the micro-batches of a query that begins where `spans` begin. `folder` has the query's checkpoint.

    A *goal* is a position up to which the archive is to become complete (`changelog.spark_jobs.archiving.complete`). A
    goal may need several micro-batches. When the archive has reached it, `goals` is called for the next goal.
    """

    def __init__(
        self, run: "ArchiveRun", folder: Path, spans: "Spans", prefix: str, goals: "Callable[[], Goal | None]"
    ) -> None:
        self._run, self._folder, self._prefix = run, folder, prefix
        self._spans, self._goals = spans, goals
        self._goal = self._next_goal()
        self.failure: ChangelogError | None = None

    def land(self, rows: "DataFrame", batch_number: int) -> None:
        """Archives one micro-batch. An error is also stored in `failure`, because Spark raises another error in its
        place, with a Java stack trace.
        """
        from changelog.spark_jobs.archiving.files import land  # noqa: PLC0415
        from changelog.spark_jobs.reading.kafka_offsets import ending, ends_of_batch  # noqa: PLC0415

        try:
            spans = ending(self._spans, ends_of_batch(self._folder, batch_number))
            land(replace(self._run, at=datetime.now(UTC)), rows, spans, prefix=self._prefix, goal=self._goal)
            if self._goal is None or self._goal.is_reached(self._run.manifest().offsets):
                self._goal = self._next_goal()
        except ChangelogError as error:
            self.failure = error
            raise
        self._spans = {part: replace(span, first=span.end, after=span.end) for part, span in spans.items()}

    def _next_goal(self) -> "Goal | None":
        """Returns the next goal. Returns None if the changelog has no checkpoint, or if its rows up to its checkpoint
        cannot be read yet; then the next micro-batch tries again.
        """
        try:
            return self._goals()
        except ChangelogError as error:
            if error.kind is not Kind.CONNECTION:
                raise
            return None


JOB = Job(
    name="archive",
    description=__doc__ or "",
    add_arguments=_arguments,
    plan=_plan,
    run=_run,
)

if __name__ == "__main__":
    sys.exit(main(JOB))
