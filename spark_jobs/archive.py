"""`spark-submit spark_jobs/archive.py`: the changelog as sorted Parquet files, a folder an entity and day.

Of a changelog on Kafka, what was committed since the last run goes into `--archive`; of a file log, its closed days go
into its own `archive/`. What is visible is what the newest manifest lists, so a run may be killed at any moment, and
the next one does it again.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from connectors import failpoints
from connectors.config import Config, FilesConfig, KafkaConfig
from connectors.sinks.files.layout import sequences
from connectors.wiring.sinks import extra_needed
from envelope.errors import ChangelogError, Kind
from spark_jobs.archiving.retention import closed_sequences, open_day, to_drop, to_merge
from spark_jobs.runner.arguments import place, positive
from spark_jobs.runner.job import DONE, Job, main
from spark_jobs.storage.manifest import ARCHIVE, NOTHING, Manifest, newest
from spark_jobs.storage.open_store import is_local, store_of
from spark_jobs.storage.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark_jobs.archiving.files import Merged
    from spark_jobs.archiving.write_files import ArchiveRun
    from spark_jobs.changelog.kafka_offsets import Spans

CLOSED, ALL = "closed", "all"

LOOKS_S = 60
"""How often --continuous looks for new topics."""


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--archive",
        type=place,
        metavar="PATH",
        help="where the archive of a changelog on Kafka is: any folder or "
        "URI that Spark writes to (file:, s3a:, abfs:, hdfs:)",
    )
    once = parser.add_mutually_exclusive_group()
    once.add_argument("--once", action="store_true", help="take what there is now, and end (the default)")
    once.add_argument("--continuous", action="store_true", help="go on until stopped, by structured streaming")
    parser.add_argument(
        "--every",
        type=positive,
        default=300,
        metavar="SECONDS",
        help="how often it takes what came, with --continuous (%(default)s)",
    )
    parser.add_argument(
        "--offsets", type=positive, default=2_000_000, metavar="N", help="the most offsets of one commit (%(default)s)"
    )
    parser.add_argument(
        "--skip", action="append", default=[], metavar="ENTITY", help="leave out an entity's topic; may be repeated"
    )
    parser.add_argument("--accept-lost", action="store_true", help="go on where Kafka no longer has what is next")
    parser.add_argument(
        "--compact",
        nargs="?",
        const=CLOSED,
        choices=(CLOSED, ALL),
        help="then make one sorted file of the files of each closed day, or of all days; of a file log, take these",
    )
    parser.add_argument("--keep-days", type=positive, metavar="N", help="then drop all days but today and the N before")
    parser.add_argument(
        "--grace-hours",
        type=positive,
        default=24,
        metavar="N",
        help="how long readers may need files that were replaced (%(default)s)",
    )


def _plan(arguments: argparse.Namespace, config: Config) -> Mapping[str, object]:
    """What a run would read, compact and drop; of an archive that only a session reaches, where it is."""
    store = _store(arguments, config)
    if store is None:
        return {"reads": _origin(config), "writes": f"{arguments.archive}/{ARCHIVE}"}
    manifest, at = newest(store) or NOTHING, datetime.now(UTC)
    due: dict[str, object] = {"reads": _origin(config), "writes": f"{store.root}/{ARCHIVE}"}
    if isinstance(config.sink, KafkaConfig):
        spans = _unread(arguments, config, config.sink, manifest)
        due["offsets"] = {name: _count(spans, name) for name, _ in sorted(spans)}
    else:
        due["log_files"] = len(closed_sequences(config.sink.path, manifest.log.last, _taken(arguments)))
    if arguments.compact:
        due["compacts_files"] = sum(map(len, to_merge(manifest, _before(arguments, at))))
    if arguments.keep_days:
        due["drops_days"] = sorted(to_drop(manifest, at.date(), arguments.keep_days))
    return due


def _run(spark: "SparkSession", arguments: argparse.Namespace, config: Config) -> Mapping[str, object]:
    """Takes what there is, and then compacts, drops and clears away as it is told to."""
    from spark_jobs.archiving import clear, files  # noqa: PLC0415, --help and a dry run need no Spark
    from spark_jobs.archiving.write_files import ArchiveRun  # noqa: PLC0415

    store = _store(arguments, config, spark)
    assert store is not None
    reach = failpoints.parse(os.environ.get(failpoints.VARIABLE))
    run = ArchiveRun(spark=spark, store=store, at=datetime.now(UTC), reach=reach)
    log = config.sink.path if isinstance(config.sink, FilesConfig) else None
    summary: dict[str, object] = {"verdict": DONE, "archive": store.root}
    if isinstance(config.sink, KafkaConfig):
        if arguments.continuous:
            _follow(run, arguments, config, config.sink)
        summary["rows"] = _take(run, arguments, config, config.sink)
    else:
        summary |= _told("archived", files.archive_log(run, config.sink.path, _taken(arguments)))
    if arguments.compact:
        summary |= _told("compacted", files.compact(run, before=_before(arguments, run.at)))
    if arguments.keep_days:
        summary["dropped_days"] = clear.drop_days(run, keep_days=arguments.keep_days)
    if log is not None or arguments.compact or arguments.keep_days:
        summary["deleted_files"] = clear.clear(run, grace=timedelta(hours=arguments.grace_hours), log=log)
    return summary


def _told(what: str, merged: "Merged") -> dict[str, object]:
    return {
        f"{what}_files": merged.files,
        f"{what}_into": merged.into,
        f"{what}_rows": merged.rows,
        f"{what}_repeats": merged.repeats,
    }


def _before(arguments: argparse.Namespace, at: datetime) -> date:
    """The first day that is not compacted."""
    return date.max if arguments.compact == ALL else open_day(at)


def _taken(arguments: argparse.Namespace) -> date | None:
    """The first day of a file log that is not taken; None for the first that is not closed."""
    return date.max if arguments.compact == ALL else None


def _store(arguments: argparse.Namespace, config: Config, spark: "SparkSession | None" = None) -> Store | None:
    """The archive's store; None where it takes a session to reach it, and there is none."""
    if isinstance(config.sink, FilesConfig):
        for name in ("archive", "continuous", "skip", "accept_lost"):
            if getattr(arguments, name):
                raise ChangelogError(
                    Kind.USAGE,
                    f"--{name.replace('_', '-')} is for a changelog on Kafka",
                    hint="a file log has its archive in its own folder, made of the days that are closed",
                )
        store = store_of(config.sink.path)
        if not sequences(config.sink.path) and newest(store) is None:
            hint = "`changelog run` begins it; see [sink] path"
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
    """What is committed behind what the manifest has."""
    with extra_needed():
        from connectors.wiring import kafka  # noqa: PLC0415
        from spark_jobs.changelog import kafka_offsets  # noqa: PLC0415

        return kafka_offsets.unread(
            kafka.client(sink), config.prefix, manifest.offsets, skip=arguments.skip, lost=arguments.accept_lost
        )


def _count(spans: "Spans", topic: str) -> int:
    return sum(span.end - span.first for (name, _), span in spans.items() if name == topic)


def _take(run: "ArchiveRun", arguments: argparse.Namespace, config: Config, sink: KafkaConfig) -> int:
    """All that is committed now, in one commit or, where it is much, in several; gives the rows."""
    from spark_jobs.archiving.files import land  # noqa: PLC0415
    from spark_jobs.changelog import kafka_offsets  # noqa: PLC0415
    from spark_jobs.changelog.read_kafka import decoded, kafka_options  # noqa: PLC0415
    from spark_jobs.changelog.where import Kafka, where_of  # noqa: PLC0415

    where = where_of(config)
    assert isinstance(where, Kafka)
    landed = 0
    for spans in kafka_offsets.slices(_unread(arguments, config, sink, run.manifest()), arguments.offsets):
        options = {
            **kafka_options(where),
            **kafka_offsets.begin_options(spans),
            "endingOffsets": kafka_offsets.as_json(spans, "end"),
            "minPartitions": str(run.spark.sparkContext.defaultParallelism),
        }
        rows = decoded(run.spark.read.format("kafka").options(**options).load(), where)
        landed += land(run, rows, spans, prefix=config.prefix)
    return landed


def _follow(run: "ArchiveRun", arguments: argparse.Namespace, config: Config, sink: KafkaConfig) -> NoReturn:
    """What comes, by structured streaming, until stopped; topics that are new make it begin anew.

    Where to begin is the manifest's to say: Spark's own checkpoint lasts no longer than its query, and is asked for the
    offsets of a micro-batch alone. Its rows do not tell them: offsets have gaps.
    """
    from spark_jobs.changelog import kafka_offsets  # noqa: PLC0415
    from spark_jobs.changelog.read_kafka import decoded, kafka_options  # noqa: PLC0415
    from spark_jobs.changelog.where import Kafka, where_of  # noqa: PLC0415

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
            micro = _MicroBatches(run, Path(folder), spans, config.prefix)
            query = (
                decoded(run.spark.readStream.format("kafka").options(**options).load(), where)
                .writeStream.foreachBatch(micro.land)
                .option("checkpointLocation", f"file:{folder}")
                .trigger(processingTime=f"{arguments.every} seconds")
                .start()
            )
            try:
                while not query.awaitTermination(LOOKS_S):
                    if _unread(arguments, config, sink, run.manifest()).keys() != spans.keys():
                        break
            except Exception:
                if micro.failure is not None:
                    raise micro.failure from None
                raise
            finally:
                query.stop()


class _MicroBatches:
    """Lands the micro-batches of a query, whose checkpoint is in `folder`, from the beginning of `spans` on."""

    def __init__(self, run: "ArchiveRun", folder: Path, spans: "Spans", prefix: str) -> None:
        self._run, self._folder, self._prefix = run, folder, prefix
        self._spans = spans
        self.failure: ChangelogError | None = None

    def land(self, rows: "DataFrame", number: int) -> None:
        """One of them; `failure` keeps why it could not be, which Spark would tell as a Java stack trace."""
        from spark_jobs.archiving.files import land  # noqa: PLC0415
        from spark_jobs.changelog.kafka_offsets import ending  # noqa: PLC0415

        try:
            spans = ending(self._spans, self._ends(number))
            land(replace(self._run, at=datetime.now(UTC)), rows, spans, prefix=self._prefix)
        except ChangelogError as error:
            self.failure = error
            raise
        self._spans = {part: replace(span, first=span.end, after=span.end) for part, span in spans.items()}

    def _ends(self, number: int) -> Mapping[str, Mapping[str, int]]:
        """Up to which offsets a micro-batch was read: the last line of what Spark stores before it begins one."""
        text = (self._folder / "offsets" / str(number)).read_text("utf-8")
        ends: Mapping[str, Mapping[str, int]] = json.loads(text.rstrip().rpartition("\n")[2])
        return ends


JOB = Job(
    name="archive",
    description=__doc__ or "",
    add_arguments=_arguments,
    plan=_plan,
    run=_run,
)

if __name__ == "__main__":
    sys.exit(main(JOB))
