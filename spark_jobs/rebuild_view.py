"""`spark-submit spark_jobs/rebuild_view.py`: writes a view. A view has the last state of each key, either now or at a
given position or time.

The view has the columns and types that the entity had at that moment. The options --keep-service, --drop-service and
--api-version choose which changes count; all other changes are ignored as if they had never been made. If there is a
view with the same definition already, only the changes since that view are applied to it. With --view, the view has
documents, as the configuration declares them: rows of several entities, nested by their foreign keys.
"""

import argparse
import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from changelog.connectors.config import Config, FilesConfig, ViewConfig, secret_of
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.position import Position
from changelog.spark_jobs.runner.arguments import (
    add_choice_options,
    add_state_options,
    choice_of,
    folder,
    path_or_uri,
    view_of,
)
from changelog.spark_jobs.runner.job import DONE, Job, main
from changelog.spark_jobs.storage.open_store import store_of
from changelog.spark_jobs.views import to_postgres

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from changelog.spark_jobs.reading.where import Where
    from changelog.spark_jobs.views.plan import ViewPlan
    from changelog.spark_jobs.views.to_parquet import View


FILES, DELTA, POSTGRES = OUTPUTS = ("files", "delta", "postgres")


def _arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--entity", metavar="ENTITY", help="build a view of this entity")
    what.add_argument("--view", metavar="NAME", help="build the view [views.NAME] of the configuration")
    parser.add_argument(
        "--to",
        type=path_or_uri,
        required=True,
        metavar="PATH|TABLE",
        help="where to write the view: any folder or URI; with --output postgres, [SCHEMA.]TABLE",
    )
    parser.add_argument("--output", choices=OUTPUTS, default=FILES, help="the form of the view (%(default)s)")
    parser.add_argument(
        "--dsn", metavar="env:NAME|file:PATH", help="where to find the connection string for --output postgres"
    )
    add_state_options(parser)
    parser.add_argument("--schemas", type=folder, metavar="DIR", help="take the columns from DIR/ENTITY.avsc")
    parser.add_argument("--where", metavar="SQL", help="keep only rows that match this condition on the view's columns")
    parser.add_argument("--raw", action="store_true", help="write all columns as text, exactly as published")
    parser.add_argument("--full", action="store_true", help="build the whole view anew, even if there is one already")
    add_choice_options(parser)


def _plan(arguments: argparse.Namespace, config: Config) -> Mapping[str, object]:
    _refuse_mixed(arguments, config)
    return {
        "reads": arguments.archive
        or (str(config.sink.path) if isinstance(config.sink, FilesConfig) else config.prefix),
        "writes": arguments.to,
        "output": arguments.output,
        "entities": sorted(_entities(arguments, config)),
        "as_of": str(arguments.as_of or "now"),
        **choice_of(arguments),
    }


def _refuse_mixed(arguments: argparse.Namespace, config: Config) -> None:
    choice_of(arguments)
    if arguments.view is not None and arguments.where is not None:
        raise ChangelogError(
            Kind.USAGE, "--where does not work with --view", hint=f"see `where` in [views.{arguments.view}]"
        )
    if arguments.view is not None:
        view_of(arguments.view, config)
    _table(arguments)


def _table(arguments: argparse.Namespace) -> to_postgres.Target | None:
    """Returns the table to write; None if the output is not PostgreSQL.

    Raises ChangelogError (USAGE) if options do not fit together.
    """
    if (arguments.output == POSTGRES) != (arguments.dsn is not None):
        message = "--output postgres and --dsn go together"
        raise ChangelogError(
            Kind.USAGE, message, hint="--dsn env:NAME, or file:PATH: never the connection string itself"
        )
    if arguments.output != POSTGRES:
        return None
    schema, name = to_postgres.parse(arguments.to)
    return to_postgres.Target(dsn=secret_of(arguments.dsn, Path(), os.environ), schema=schema, name=name)


def _entities(arguments: argparse.Namespace, config: Config) -> set[str]:
    return {arguments.entity} if arguments.view is None else set(config.views[arguments.view].entities())


def _run(spark: "SparkSession", arguments: argparse.Namespace, config: Config) -> Mapping[str, object]:
    from changelog.spark_jobs.reading.as_of import resolve  # noqa: PLC0415
    from changelog.spark_jobs.reading.read import read_changelog  # noqa: PLC0415
    from changelog.spark_jobs.reading.where import Archive, where_of  # noqa: PLC0415
    from changelog.spark_jobs.views import plan  # noqa: PLC0415 - --help and a dry run need no Spark
    from changelog.spark_jobs.views.transforms import Chosen  # noqa: PLC0415

    _refuse_mixed(arguments, config)
    changelog = Archive(path=arguments.archive) if arguments.archive else where_of(config)
    entities = _entities(arguments, config)
    position = resolve(spark, changelog, arguments.as_of, entities)
    read_changelog(spark, changelog, entities=entities)  # refuses unknown entities, with a better error than columns_of
    view_plan = plan.ViewPlan(
        view=ViewConfig(entity=arguments.entity, where=arguments.where)
        if arguments.entity
        else config.views[arguments.view],
        choice=Chosen(**{name: tuple(sorted(values)) for name, values in choice_of(arguments).items()}),
        raw=arguments.raw,
        columns=plan.columns_of(spark, changelog, entities, position, arguments.schemas),
    )
    return {"verdict": DONE, "position": str(position), **_written(spark, changelog, view_plan, position, arguments)}


def _written(
    spark: "SparkSession", changelog: "Where", view_plan: "ViewPlan", position: Position, arguments: argparse.Namespace
) -> Mapping[str, object]:
    from changelog.spark_jobs.views import plan, to_delta_lake, to_parquet  # noqa: PLC0415

    view = to_parquet.View(definition=view_plan.definition(changelog), position=str(position))
    table = _table(arguments)
    if table is not None:
        with plan.build(spark, changelog, view_plan, position) as rows:
            new_view = to_postgres.write(rows, plan.shape_of(view_plan), view, table)
        return {"view": arguments.to, "after": None, **_counts(new_view)}
    store = store_of(arguments.to, spark)
    is_delta = arguments.output == DELTA
    present = to_delta_lake.newest(spark, store.root) if is_delta else to_parquet.newest(store)
    if is_delta and not arguments.full and present is not None and to_delta_lake.same(present, view):
        return {
            "view": store.root,
            "after": present.position,
            **_counts(to_delta_lake.counts(spark, present, store.root)),
        }
    base = None if arguments.full else plan.base_of(present, changelog, view_plan, position)
    base_rows = None
    if base is not None:
        base_rows = to_delta_lake.read(spark, store.root) if is_delta else to_parquet.read(spark, store, base), base
    with plan.build(spark, changelog, view_plan, position, on=base_rows) as rows:
        new_view = (
            to_delta_lake.write(rows, view, store.root)
            if is_delta
            else to_parquet.write(store, rows, view, at=datetime.now(UTC))
        )
    path = store.root if is_delta else f"{store.root}/{new_view.path}"
    return {"view": path, "after": base.position if base else None, **_counts(new_view)}


def _counts(view: "View") -> dict[str, int]:
    return {name: getattr(view, name) for name in ("rows", "out_of_range", "unavailable")}


JOB = Job(name="rebuild_view", description=__doc__ or "", add_arguments=_arguments, plan=_plan, run=_run)

if __name__ == "__main__":
    sys.exit(main(JOB))
