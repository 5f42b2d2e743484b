"""`spark-submit spark_jobs/blame.py`: finds the change that set each attribute of each row, and writes the result.

The job writes two tables. The table `attributes` has the attributes of the rows of all entities, as the rows are now,
or as they were at a position or a time. Values inside nested json are attributes, too. For each attribute, the table
has the service that set it, the service's version and request, and the value before. A move of a row to another key
does not count as setting its attributes. The table `coverage` counts the changes of each day, and the attributes that
they set, by service and by who stamped the changes. docs/how-to/audit.md has queries.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from changelog.connectors.config import Config, FilesConfig
from changelog.connectors.wiring.entities import default_stamp, default_stamps
from changelog.spark_jobs.runner.arguments import add_state_options, path_or_uri
from changelog.spark_jobs.runner.job import DONE, Job, main
from changelog.spark_jobs.storage.open_store import store_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from changelog.envelope.position import Position
    from changelog.spark_jobs.blaming.stamp_kinds import DefaultStamps
    from changelog.spark_jobs.reading.where import Where


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--to", type=path_or_uri, required=True, metavar="PATH", help="where to write the tables: any folder or URI"
    )
    parser.add_argument(
        "--entity", action="append", metavar="ENTITY", help="write only the rows of this entity; may be repeated"
    )
    add_state_options(parser)


def _plan(arguments: argparse.Namespace, config: Config) -> Mapping[str, object]:
    return {
        "reads": arguments.archive
        or (str(config.sink.path) if isinstance(config.sink, FilesConfig) else config.prefix),
        "writes": arguments.to,
        "entities": sorted(set(arguments.entity)) if arguments.entity else "all",
        "as_of": str(arguments.as_of or "now"),
    }


def _run(spark: "SparkSession", arguments: argparse.Namespace, config: Config) -> Mapping[str, object]:
    from changelog.spark_jobs.blaming import tables, write_tables  # noqa: PLC0415
    from changelog.spark_jobs.reading.as_of import resolve  # noqa: PLC0415
    from changelog.spark_jobs.reading.read import read_changelog  # noqa: PLC0415
    from changelog.spark_jobs.reading.where import Archive, where_of  # noqa: PLC0415

    changelog = Archive(path=arguments.archive) if arguments.archive else where_of(config)
    names = sorted(set(arguments.entity)) if arguments.entity else None
    all_changes = read_changelog(spark, changelog, entities=names)
    position = resolve(spark, changelog, arguments.as_of, names or _archived(spark, changelog))
    defaults, store = _defaults(config), store_of(arguments.to, spark)
    run = write_tables.BlameRun(position=str(position), entities=None if names is None else tuple(names))
    with _until(all_changes, position, changelog) as changes:
        rows = tables.attributes(spark, changes, tables.truncates_of(changes), defaults)
        written = write_tables.write(store, rows, changes, run, defaults, at=datetime.now(UTC))
    return {
        "verdict": DONE,
        "position": written.position,
        "tables": f"{store.root}/{written.path}",
        **_counts("attributes", written.attributes),
        **_counts("changes", written.changes),
    }


def _archived(spark: "SparkSession", changelog: "Where") -> Iterable[str] | None:
    """Returns the names of an archive's entities; None for any other changelog.

    In an archive, each entity can be complete up to a different position, so a time must be resolved for all of them.
    In any other changelog, all entities are complete up to the same position.
    """
    from changelog.spark_jobs.reading.read_files import ASIDE, manifest_of  # noqa: PLC0415
    from changelog.spark_jobs.reading.where import Archive  # noqa: PLC0415

    if not isinstance(changelog, Archive):
        return None
    return {file.entity for file in manifest_of(spark, changelog).files}.difference(ASIDE)


@contextmanager
def _until(all_changes: "DataFrame", position: "Position", changelog: "Where") -> Iterator["DataFrame"]:
    """Yields the changes up to and including `position`. Changes from Kafka are cached, because the job reads them
    several times; files are cheap to read again.
    """
    from pyspark.sql import functions as F  # noqa: PLC0415, N812

    from changelog.spark_jobs.reading.where import Kafka  # noqa: PLC0415

    changes = all_changes.where(F.col("position") <= str(position))
    if not isinstance(changelog, Kafka):
        yield changes
        return
    changes.persist()
    try:
        yield changes
    finally:
        changes.unpersist()


def _defaults(config: Config) -> "DefaultStamps":
    from changelog.spark_jobs.blaming.stamp_kinds import DefaultStamps  # noqa: PLC0415

    return DefaultStamps(general=default_stamp(config.provenance), by_entity=default_stamps(config, config.entities))


def _counts(name: str, counts: Mapping[str, int]) -> dict[str, int]:
    return {name: sum(counts.values()), **{f"{name}_{stamp}": count for stamp, count in counts.items()}}


JOB = Job(name="blame", description=__doc__ or "", add_arguments=_arguments, plan=_plan, run=_run)

if __name__ == "__main__":
    sys.exit(main(JOB))
