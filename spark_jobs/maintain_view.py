"""`spark-submit spark_jobs/maintain_view.py`: keeps a view up to date in another store: a table of PostgreSQL or of
Delta Lake, hashes of Redis, or a target that a package adds.

The job follows the changelog until it is stopped. With --available-now, it stops when it has reached the changelog's
present end. It applies a change only if it is newer than the view's row, so neither a repeated nor a late change does
any harm. Each run continues where the last one ended. The options --keep-service, --drop-service and --api-version
choose which changes count; all other changes are ignored as if they had never been made. If the view throttles a
service, changes by this service are applied at a limited rate, so a run with --available-now may take longer.
"""

import argparse
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from changelog.connectors import failpoints
from changelog.connectors.config import Config, FilesConfig, ThrottleConfig, ViewConfig, secret_of
from changelog.connectors.wiring.sinks import kafka_needed
from changelog.envelope.errors import ChangelogError, Kind
from changelog.schemas.spark import struct
from changelog.spark_jobs.maintaining import target as targets
from changelog.spark_jobs.maintaining.parts import ViewPart, parts_of
from changelog.spark_jobs.maintaining.progress import ViewProgress, parse, refuse_other, with_topics
from changelog.spark_jobs.maintaining.target import TARGETS, TargetSettings, ViewTarget
from changelog.spark_jobs.runner.arguments import (
    add_choice_options,
    choice_of,
    path_or_uri,
    positive,
    seconds,
    view_of,
)
from changelog.spark_jobs.runner.job import DONE, Job, main
from changelog.spark_jobs.runner.stopping import stopping_signal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from changelog.spark_jobs.maintaining.apply_changes import MaintainedView
    from changelog.spark_jobs.maintaining.following.change_ranges import ChangeRanges
    from changelog.spark_jobs.reading.where import Kafka
    from changelog.spark_jobs.views.transforms import Chosen

SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--view", required=True, metavar="NAME", help="the view to keep: [views.NAME] of the configuration"
    )
    parser.add_argument(
        "--output",
        required=True,
        metavar="TARGET",
        help=f"the kind of store: {', '.join(TARGETS)}, or a target that a package adds",
    )
    parser.add_argument(
        "--to",
        type=path_or_uri,
        required=True,
        metavar="PLACE",
        help="where the store is: [SCHEMA.]TABLE for postgres, a folder or URI for delta, a prefix of names for redis",
    )
    parser.add_argument(
        "--dsn", metavar="env:NAME|file:PATH", help="where to find the connection string or URL, for postgres and redis"
    )
    parser.add_argument(
        "--available-now", action="store_true", help="end at the changelog's present end, not only when stopped"
    )
    parser.add_argument(
        "--every",
        type=seconds,
        default=1.0,
        metavar="SECONDS",
        help="how often to look for changes (%(default)s); has no effect with --available-now",
    )
    parser.add_argument(
        "--offsets",
        type=positive,
        default=1_000_000,
        metavar="N",
        help="the most offsets in one batch, for a changelog on Kafka (%(default)s)",
    )
    parser.add_argument(
        "--keep-deleted",
        type=positive,
        default=7,
        metavar="DAYS",
        help="how long to remember the positions of deleted keys (%(default)s)",
    )
    parser.add_argument(
        "--rebuild", action="store_true", help="remove all rows, and build the view again from the beginning"
    )
    add_choice_options(parser)


def _view(arguments: argparse.Namespace, config: Config) -> ViewConfig:
    """Returns the configuration of the view. Raises ChangelogError (USAGE) if this job cannot keep such a view up to
    date.
    """
    view = view_of(arguments.view, config)
    choice_of(arguments)
    if any(part.where is not None for part in view.parts()):
        hint = "use a view without it, and apply the condition when you read the view"
        raise ChangelogError(Kind.USAGE, f"the view {arguments.view} has a `where`", hint=hint)
    if view.throttle is not None:
        _refuse_ignored(view.throttle.service, arguments)
    if view.nested and arguments.output != "postgres":
        hint = "use --output postgres, keep a view of each entity, or rebuild the documents with rebuild_view"
        raise ChangelogError(Kind.USAGE, f"--output {arguments.output} keeps no nested arrays", hint=hint)
    if view.totals is not None and arguments.output != "postgres":
        hint = "use --output postgres, or a view without totals"
        raise ChangelogError(Kind.USAGE, f"--output {arguments.output} keeps no totals", hint=hint)
    return view


def _refuse_ignored(service: str, arguments: argparse.Namespace) -> None:
    """Raises ChangelogError (USAGE) if the changes of the throttled service do not count at all."""
    is_kept = not arguments.keep_service or service in arguments.keep_service
    if service in arguments.drop_service or not is_kept:
        message = f"the view {arguments.view} throttles the service {service}, whose changes do not count"
        raise ChangelogError(Kind.USAGE, message, hint="leave out `throttle`, or change --keep-service, --drop-service")


def _plan(arguments: argparse.Namespace, config: Config) -> Mapping[str, object]:
    return {
        "reads": str(config.sink.path) if isinstance(config.sink, FilesConfig) else config.prefix,
        "writes": arguments.to,
        "output": arguments.output,
        "entities": list(_view(arguments, config).entities()),
        **choice_of(arguments),
    }


def _run(spark: "SparkSession", arguments: argparse.Namespace, config: Config) -> Mapping[str, object]:
    exchange_in_few_partitions(spark)
    view = _view(arguments, config)
    read_parts = _parts_reader(spark, arguments, config, view)
    parts = read_parts()
    settings = TargetSettings(
        to=arguments.to,
        dsn=None if arguments.dsn is None else secret_of(arguments.dsn, Path(), os.environ),
        totals=view.totals,
        arrays=parts[1:],
        reach=failpoints.parse(os.environ.get(failpoints.VARIABLE)),
    )
    with targets.opened(arguments.output, settings) as target, stopping_signal() as stopping:
        maintained = _maintained(arguments, config, target, read_parts, parts, settings)
        _follow(spark, arguments, config, maintained, view.throttle, stopping)
    waiting = maintained.progress.waiting
    return {
        "verdict": DONE,
        "view": arguments.to,
        "rows": maintained.rows,
        "deleted": maintained.deleted,
        "batches": maintained.batches,
        "waiting": 0 if waiting is None else waiting.changes,
    }


def _follow(
    spark: "SparkSession",
    arguments: argparse.Namespace,
    config: Config,
    view: "MaintainedView",
    throttle_config: ThrottleConfig | None,
    stopping: threading.Event,
) -> None:
    """Follows the changelog until `stopping` is set, or with --available-now up to its present end."""
    from changelog.spark_jobs.maintaining.following.throttle import apply_earlier, opened_throttle  # noqa: PLC0415
    from changelog.spark_jobs.reading.where import Files, where_of  # noqa: PLC0415

    where, every_s = where_of(config), None if arguments.available_now else arguments.every
    if isinstance(where, Files):
        from changelog.spark_jobs.maintaining.following import follow_files  # noqa: PLC0415
        from changelog.spark_jobs.maintaining.following.file_ranges import FileRanges  # noqa: PLC0415

        ranges: ChangeRanges = FileRanges(where=where, entities=view.entities)
        follow = partial(follow_files.follow, spark, where, view)
    else:
        with kafka_needed():
            from changelog.spark_jobs.maintaining.following import follow_topics  # noqa: PLC0415
            from changelog.spark_jobs.maintaining.following.topic_ranges import TopicRanges  # noqa: PLC0415
        ranges = TopicRanges(where=where, entities=view.entities)
        follow = partial(follow_topics.follow, spark, where, view, offsets_max=arguments.offsets)
    apply_earlier(spark, view, ranges, throttle_config, stopping)
    if not stopping.is_set():
        with opened_throttle(spark, view, ranges, throttle_config) as throttle:
            follow(throttle=throttle, every_s=every_s, stopping=stopping)


def exchange_in_few_partitions(spark: "SparkSession") -> None:
    """Makes Spark exchange the rows of a batch in two partitions for each core, unless its configuration sets a number.

    Spark's default is 200 partitions, and a batch that is persisted keeps them. Each partition is a task, and after
    each task PySpark collects the garbage of its Python worker. So even a batch of a few rows would take many seconds.
    """
    if not spark.sparkContext.getConf().contains(SHUFFLE_PARTITIONS):
        spark.conf.set(SHUFFLE_PARTITIONS, str(2 * spark.sparkContext.defaultParallelism))


def _parts_reader(
    spark: "SparkSession", arguments: argparse.Namespace, config: Config, view: ViewConfig
) -> Callable[[], Sequence[ViewPart]]:
    """Returns a function that returns the view's parts, with the columns that the changelog has when it is called.

    The function raises ChangelogError (USAGE) if the view's configuration does not fit the changelog. If the changelog
    lacks an entity of the view, `_parts_reader` itself raises this error.
    """
    from changelog.spark_jobs.maintaining.derived.totals_columns import refuse_columns  # noqa: PLC0415
    from changelog.spark_jobs.reading.read import read_changelog  # noqa: PLC0415
    from changelog.spark_jobs.reading.where import where_of  # noqa: PLC0415
    from changelog.spark_jobs.views import plan  # noqa: PLC0415 - --help and a dry run need no Spark
    from changelog.spark_jobs.views.transforms import schema_of  # noqa: PLC0415

    where, entities = where_of(config), [*dict.fromkeys(view.entities())]
    read_changelog(spark, where, entities=entities)  # refuses unknown entities, with a better error than columns_of

    def read_parts() -> Sequence[ViewPart]:
        parts = parts_of(arguments.view, view, plan.columns_of(spark, where, entities, None, None))
        for part in parts:
            schema_of(part.columns)  # refuses names that clash
        if view.totals is not None:
            refuse_columns(view.totals, parts[0].columns, f"[views.{arguments.view}] totals")
        return parts

    return read_parts


def _maintained(
    arguments: argparse.Namespace,
    config: Config,
    target: ViewTarget,
    read_parts: Callable[[], Sequence[ViewPart]],
    parts: Sequence[ViewPart],
    settings: TargetSettings,
) -> "MaintainedView":
    """Returns the view that the target holds. If the target holds none, or with --rebuild, creates an empty view.

    Raises ChangelogError (USAGE) if the target holds a view with another definition, or something else.
    """
    from changelog.spark_jobs.maintaining.apply_changes import MaintainedView  # noqa: PLC0415
    from changelog.spark_jobs.views.transforms import Chosen  # noqa: PLC0415

    choice = Chosen(**{name: tuple(sorted(values)) for name, values in choice_of(arguments).items()})
    definition = _definition(config, parts, choice, settings)
    text = _stored(target, rebuilds=arguments.rebuild)
    progress = None if text is None else with_topics(parse(text, arguments.to), definition)
    if progress is None or arguments.rebuild:
        progress = ViewProgress(definition=definition)
        target.create(parts[0].columns, progress.to_json())
    refuse_other(progress, definition, arguments.to)
    return MaintainedView(
        parts=parts,
        choice=choice,
        target=target,
        progress=progress,
        read_parts=read_parts,
        keep_deleted=timedelta(days=arguments.keep_deleted),
        reach=settings.reach,
    )


def _definition(
    config: Config, parts: Sequence[ViewPart], choice: "Chosen", settings: TargetSettings
) -> dict[str, object]:
    """Returns the definition of the view, as the target stores it."""
    from changelog.spark_jobs.reading.where import Kafka, where_of  # noqa: PLC0415

    view, *arrays = parts
    definition: dict[str, object] = {
        "changelog": config.name,
        "entity": view.entity,
        "columns": struct(view.columns),
        "choice": asdict(choice),
    }
    if arrays:
        definition["nested"] = [array.definition() for array in arrays]
    if settings.totals is not None:
        definition["totals"] = settings.totals.model_dump(exclude_none=True)
    where = where_of(config)
    if isinstance(where, Kafka):
        definition["topics"] = _topic_ids(where, [part.entity for part in parts])
    return dict(msgspec.json.decode(msgspec.json.encode(definition)))


def _topic_ids(where: "Kafka", entities: Sequence[str]) -> Mapping[str, str]:
    """Returns the ids of the topics of these entities. They show whether a topic was deleted and created again."""
    from changelog.connectors.kafka.client import Client  # noqa: PLC0415 - its package may be missing
    from changelog.connectors.kafka.topic_ids import read_ids  # noqa: PLC0415
    from changelog.spark_jobs.reading import kafka_offsets  # noqa: PLC0415

    admin = Client(bootstrap_servers=where.bootstrap_servers, options=where.options).admin()
    names = {name for parts in kafka_offsets.entities(admin, where.prefix, entities).values() for name, _ in parts}
    ids = read_ids(admin, names)
    return {name: ids.get(name, "") for name in sorted(names)}


def _stored(target: ViewTarget, *, rebuilds: bool) -> str | None:
    """Returns the text of the progress that the target has stored.

    Returns None if the target has no view, or if its view is damaged and `rebuilds` is set.
    """
    try:
        return target.progress()
    except ChangelogError as error:
        if rebuilds and error.kind is Kind.PRECONDITION:
            return None
        raise


JOB = Job(name="maintain_view", description=__doc__ or "", add_arguments=_arguments, plan=_plan, run=_run)

if __name__ == "__main__":
    sys.exit(main(JOB))
