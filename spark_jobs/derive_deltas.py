"""`spark-submit spark_jobs/derive_deltas.py`: derives a delta, a JSON Patch, from each change of a row.

If the changelog is on Kafka, deltas go to the topics PREFIX.ENTITY.delta, with the same keys and partitions as the
changes. If it is a file log or an archive, they go to --output as files. Each run continues where the last one ended.
The id of a delta is the position of its change; by this id, readers detect repeated deltas.
"""

import argparse
import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from changelog.connectors import failpoints
from changelog.connectors.config import Config, KafkaConfig
from changelog.connectors.wiring.sinks import kafka_needed
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.position import Position
from changelog.spark_jobs.runner.arguments import path_or_uri, positive, seconds
from changelog.spark_jobs.runner.job import DONE, Job, main
from changelog.spark_jobs.runner.stopping import stopping_signal
from changelog.spark_jobs.storage.open_store import is_local, store_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from changelog.spark_jobs.deltas.files import DeltaRuns
    from changelog.spark_jobs.deltas.topics import DeltaTopics
    from changelog.spark_jobs.reading.where import Archive, Files


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--entity", action="append", metavar="ENTITY", help="use only this entity's changes; may be repeated"
    )
    files = parser.add_argument_group("for a file log or an archive")
    files.add_argument(
        "--archive",
        type=path_or_uri,
        metavar="PATH",
        help="read the archive at PATH instead of the configured changelog",
    )
    files.add_argument(
        "--output",
        type=path_or_uri,
        metavar="PATH",
        help="where to write deltas: any folder or URI that Spark can write to",
    )
    files.add_argument("--format", choices=("parquet", "jsonl"), help="the format of a new output (parquet)")
    files.add_argument(
        "--from", dest="first", type=_position, metavar="POSITION", help="begin a new output at this position"
    )
    files.add_argument("--to", dest="last", type=_position, metavar="POSITION", help="end at this position, inclusive")
    kafka = parser.add_argument_group("for a changelog on Kafka")
    kafka.add_argument("--checkpoint", type=path_or_uri, metavar="PATH", help="where Spark notes the job's progress")
    kafka.add_argument("--continuous", action="store_true", help="run until stopped, instead of up to the present end")
    kafka.add_argument(
        "--every",
        type=seconds,
        default=1.0,
        metavar="SECONDS",
        help="with --continuous, how often to look for changes (%(default)s)",
    )
    kafka.add_argument(
        "--offsets", type=positive, default=1_000_000, metavar="N", help="the most offsets in one batch (%(default)s)"
    )
    kafka.add_argument(
        "--accept-lost", action="store_true", help="continue although Kafka no longer has the next messages"
    )


def _position(text: str) -> Position:
    try:
        return Position.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _plan(arguments: argparse.Namespace, config: Config) -> Mapping[str, object]:
    _refuse_mixed(arguments, config)
    if _of_files(arguments, config):
        output = arguments.output
        plan: dict[str, object] = {
            "reads": arguments.archive or str(_path(config)),
            "writes": output,
            "from": arguments.first,
            "to": arguments.last,
        }
        if is_local(output):
            from changelog.spark_jobs.deltas.files import newest  # noqa: PLC0415

            plan["behind"] = newest(store_of(output)).last
        return plan
    with kafka_needed():
        from changelog.connectors.sinks.kafka.admin.names import delta_topic, entity_of  # noqa: PLC0415
        from changelog.spark_jobs.deltas.topics import committed  # noqa: PLC0415

        topics = _topics(arguments, config)
        names = topics.changelog().keys()
        reads = sorted({entity_of(topics.prefix, name) for name in names})
        plan = {"reads": reads, "writes": sorted(map(delta_topic, names))}
        if is_local(arguments.checkpoint):
            topics.refuse_lost(committed(store_of(arguments.checkpoint)))
        return plan


def _run(spark: "SparkSession", arguments: argparse.Namespace, config: Config) -> Mapping[str, object]:
    _refuse_mixed(arguments, config)
    if _of_files(arguments, config):
        return _run_files(spark, arguments, config)
    with kafka_needed():
        return _run_kafka(spark, arguments, config)


def _reach() -> failpoints.Reach:
    return failpoints.parse(os.environ.get(failpoints.VARIABLE))


def _of_files(arguments: argparse.Namespace, config: Config) -> bool:
    return arguments.archive is not None or not isinstance(config.sink, KafkaConfig)


def _refuse_mixed(arguments: argparse.Namespace, config: Config) -> None:
    """Raises ChangelogError (USAGE) if an option does not fit the kind of changelog, is missing, or contradicts another
    one.
    """
    for_files = ["archive", "output", "format", "first", "last"]
    for_kafka = ["checkpoint", "continuous", "accept_lost"]
    names = {"first": "from", "last": "to", "accept_lost": "accept-lost"}
    of_files = _of_files(arguments, config)
    wrong, option = (for_kafka, "output") if of_files else (for_files, "checkpoint")
    where = "a file log or an archive" if of_files else "a changelog on Kafka"
    for name in wrong:
        if getattr(arguments, name):
            raise ChangelogError(Kind.USAGE, f"--{names.get(name, name)} is not for {where}", hint="see --help")
    if not getattr(arguments, option):
        raise ChangelogError(Kind.USAGE, f"--{option} is missing", hint=f"{where} needs it: --{option} PATH")
    if arguments.first and arguments.last and arguments.first > arguments.last:
        raise ChangelogError(Kind.USAGE, "--from is after --to", hint="exchange them")


# Files


def _run_files(spark: "SparkSession", arguments: argparse.Namespace, config: Config) -> Mapping[str, object]:
    from changelog.spark_jobs.deltas import files  # noqa: PLC0415 - --help and most of a dry run need no Spark
    from changelog.spark_jobs.reading.read import refuse_beyond  # noqa: PLC0415 - --help and most of a dry run need no Spark
    from changelog.spark_jobs.reading.where import Archive, Files  # noqa: PLC0415

    where: Files | Archive
    where = Archive(path=arguments.archive) if arguments.archive else Files(path=_path(config))
    store = store_of(arguments.output, spark)
    before = files.newest(store)
    _refuse_other(arguments, before, store.root)
    for bound in (arguments.first, arguments.last):
        if bound is not None:
            refuse_beyond(spark, where, bound)
    changes = _changes(spark, where, arguments, before)
    run = files.write(
        store,
        before,
        changes,
        form=arguments.format or before.form,
        ordered=isinstance(where, Files) and arguments.entity is None,
        at=datetime.now(UTC),
        reach=_reach(),
    )
    summary: dict[str, object] = {"verdict": DONE, "output": store.root, "deltas": run.rows if run else 0}
    if run is not None:
        summary |= {"path": run.path, "first": run.first, "last": run.last, **run.kinds}
    return summary


def _changes(
    spark: "SparkSession", where: "Files | Archive", arguments: argparse.Namespace, before: "DeltaRuns"
) -> "DataFrame":
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    from changelog.spark_jobs.reading.read import read_changelog, refuse_dropped  # noqa: PLC0415

    floor = None if before.floor is None else Position.parse(before.floor)
    if before.last is not None:
        refuse_dropped(spark, where, Position.parse(before.last), "the deltas go up to")
    changes = read_changelog(spark, where, entities=arguments.entity, after=floor)
    if arguments.first is not None:
        changes = changes.where(F.col("position") >= str(arguments.first))
    if arguments.last is not None:
        changes = changes.where(F.col("position") <= str(arguments.last))
    return changes


def _refuse_other(arguments: argparse.Namespace, before: "DeltaRuns", root: str) -> None:
    """Raises ChangelogError (USAGE) if options do not fit the deltas that the output already has."""
    if before.runs and arguments.first is not None:
        hint = "leave out --from, or use another --output"
        raise ChangelogError(Kind.USAGE, f"{root} has deltas already, up to {before.last}", hint=hint)
    if before.runs and arguments.format not in (None, before.form):
        hint = "leave out --format, or use another --output"
        raise ChangelogError(Kind.USAGE, f"{root} has deltas already, in the format {before.form}", hint=hint)


def _path(config: Config) -> Path:
    assert not isinstance(config.sink, KafkaConfig)
    return config.sink.path


# Kafka


def _topics(arguments: argparse.Namespace, config: Config) -> "DeltaTopics":
    from changelog.connectors.wiring import kafka  # noqa: PLC0415
    from changelog.spark_jobs.deltas.topics import DeltaTopics  # noqa: PLC0415

    sink = config.sink
    assert isinstance(sink, KafkaConfig)
    return DeltaTopics(
        client=kafka.client(sink),
        prefix=config.prefix,
        entities=arguments.entity,
        create=sink.create_topics,
        replication_factor=sink.replication_factor,
        lost=arguments.accept_lost,
    )


def _run_kafka(spark: "SparkSession", arguments: argparse.Namespace, config: Config) -> Mapping[str, object]:
    from changelog.spark_jobs.deltas.topics import committed, stream  # noqa: PLC0415

    topics = _topics(arguments, config)
    checkpoint = store_of(arguments.checkpoint, spark)
    topics.refuse_lost(committed(checkpoint))
    with stopping_signal() as stopping:
        counts = stream(
            spark,
            config,
            topics,
            checkpoint=checkpoint,
            offsets_max=arguments.offsets,
            every_s=arguments.every if arguments.continuous else None,
            stopping=stopping.is_set,
            reach=_reach(),
        )
    return {"verdict": DONE, "checkpoint": checkpoint.root, **counts}


JOB = Job(name="derive_deltas", description=__doc__ or "", add_arguments=_arguments, plan=_plan, run=_run)

if __name__ == "__main__":
    sys.exit(main(JOB))
