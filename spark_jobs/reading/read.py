"""Reads a changelog into Spark, from a file log, an archive or Kafka. The rows and columns are the same for all three.

The columns are those of `changelog.envelope.columnar.batch.SCHEMA` (docs/reference/file-log.md). The rows are not
sorted: whoever needs an order must sort them by `position`.
"""

from collections.abc import Iterable, Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

from changelog.connectors.sinks.files.layout import find_recovery
from changelog.connectors.sinks.kafka.admin.names import first_topic
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.entity import OF_CHANGELOG
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.position import Position
from changelog.spark_jobs.reading.read_files import (
    ASIDE,
    first_of_log,
    manifest_of,
    paths_of_archive,
    paths_of_log,
    read_parquet,
)
from changelog.spark_jobs.reading.read_kafka import (
    decoded,
    kafka_log,
    kafka_options,
    read_topics,
    refuse_missing,
    subscription,
)
from changelog.spark_jobs.reading.where import Archive, Files, Kafka, Where, name_of
from changelog.spark_jobs.storage.manifest import Manifest, newest
from changelog.spark_jobs.storage.open_store import store_of


def read_changelog(
    spark: SparkSession, where: Where, *, entities: Iterable[str] | None = None, after: Position | None = None
) -> DataFrame:
    """Returns the rows that the changelog has now.

    With `entities`, returns only the rows of these entities; with `after`, only the rows after this position. Reserved
    entities, such as `schemas` and `dead`, are read only if `entities` names them. Raises ChangelogError: PRECONDITION
    if there is no changelog, USAGE for an unknown entity or a position beyond the changelog's end.
    """
    names = None if entities is None else sorted(set(entities))
    if after is not None:
        refuse_beyond(spark, where, after, names)
    match where:
        case Files():
            rows = read_parquet(spark, paths_of_log(where, names, after))
        case Archive():
            rows = read_parquet(spark, paths_of_archive(spark, where, names, after))
        case Kafka():
            rows = read_topics(spark, where, names)
    has_entity = F.col("entity").isin(names) if names is not None else ~F.col("entity").isin(ASIDE)
    rows = rows.where(has_entity)
    return rows if after is None else rows.where(F.col("position") > str(after))


def stream_changelog(
    spark: SparkSession,
    where: Kafka,
    *,
    entities: Iterable[str] | None = None,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Returns a stream of the changelog's present and future rows, with two more columns: `kafka_partition` and
    `offset`.

    `options` are options of Spark's Kafka source, such as `startingOffsets` or `maxOffsetsPerTrigger`; they override
    the options that are set here. With `entities`, only these entities are read. Without `entities`, entities that are
    added later are read, too, from their beginning.
    """
    names = None if entities is None else sorted(set(entities))
    if names is not None:
        refuse_missing(where, names)
    source_options = {
        "startingOffsets": "earliest",
        **kafka_options(where),
        **subscription(where, names),
        **(options or {}),
    }
    return decoded(spark.readStream.format("kafka").options(**source_options).load(), where)


def end_of(spark: SparkSession, where: Where, entities: Iterable[str] | None = None) -> Position | None:
    """Returns the position up to which the changelog is complete; None while the changelog is empty.

    An archive of Kafka's topics can be complete up to a different position for each entity. With `entities`, the result
    is the lowest of the positions of these entities; without `entities`, it is the highest position of any entity.
    """
    match where:
        case Files():
            return reached(find_recovery(where.path).checkpoint)
        case Archive():
            return _archived(where, manifest_of(spark, where), entities)
        case Kafka():
            return reached(kafka_log(where).checkpoint())


def _archived(where: Archive, manifest: Manifest, entities: Iterable[str] | None) -> Position | None:
    """Returns the position up to which an archive is complete, as `end_of` defines it.

    In an archive of Kafka's topics, an entity has no such position until the archive has all that was committed before
    some run began. Raises ChangelogError (PRECONDITION) if one of `entities` has none, or if no entity has one.
    """
    if not manifest.offsets:  # This is the archive of a file log: whole log files are added to it in their order.
        last_position = max((file.last for file in manifest.files), default=None)
        return None if last_position is None else Position.parse(last_position)
    complete = manifest.complete
    archived = {first_topic(topic).rpartition(".")[2] for topic in manifest.offsets}
    required = archived & {*entities} if entities is not None else set()
    if complete and complete.keys() >= required:
        return Position.parse(min(complete[entity] for entity in required) if required else max(complete.values()))
    raise ChangelogError(
        Kind.PRECONDITION,
        f"{name_of(where)} is not complete: no run has read all that was committed before the run began",
        hint="run spark_jobs/archive.py until it ends",
    )


def refuse_beyond(spark: SparkSession, where: Where, position: Position, entities: Iterable[str] | None = None) -> None:
    """Raises ChangelogError (USAGE) if `position` is after the end of the changelog, as `end_of` defines it."""
    end = end_of(spark, where, entities)
    if end is None or position > end:
        reach = "is empty" if end is None else f"ends at {end}"
        raise ChangelogError(Kind.USAGE, f"{position} is beyond the end: {name_of(where)} {reach}")


def refuse_dropped(spark: SparkSession, where: Files | Archive, end: Position, what: str) -> None:
    """Raises ChangelogError (GAP) if retention may have dropped rows after `end`.

    Retention drops the oldest days first. So if a row at or before `end` still exists, no row after `end` is missing.
    If no such row exists, the error may be a false alarm: if nothing was committed for days after `end`, retention may
    have dropped only rows up to `end`. The archive does not store how far retention has come.

    Rows of the entities `schemas` and `gaps` prove nothing, because retention never drops them. If an archive has only
    such rows, its changes were dropped. Then the last position in the oldest file of the log is compared with `end`.
    `what` comes before `end` in the error's text; an example is `the deltas go up to`.
    """
    path = where.path
    manifest = newest(store_of(path, spark))
    files = () if manifest is None else manifest.files
    earliest = min((file.first for file in files if file.entity not in OF_CHANGELOG), default=None)
    if earliest is None and manifest is not None and files and isinstance(where, Files):
        earliest = first_of_log(where, manifest)
    if earliest is not None and earliest > str(end):
        raise ChangelogError(
            Kind.GAP,
            f"history may be lost: {what} {end}, and {path} begins at {earliest}",
            hint="start again with an empty output",
        )


def reached(checkpoint: Checkpoint | None) -> Position | None:
    """Returns the last position that the changelog has reached; None if there is no checkpoint."""
    return None if checkpoint is None else checkpoint.reached
