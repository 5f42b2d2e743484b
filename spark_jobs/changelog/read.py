"""Reads a changelog into Spark, wherever it is: the file log, an archive, Kafka; the rows and columns are the same.

The columns are those of `envelope.batch.SCHEMA` (docs/reference/file-log.md). Rows have no order; order
them by `position`.
"""

from collections.abc import Iterable, Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

from connectors.sinks.files.layout import find_recovery
from envelope.checkpoint import Checkpoint
from envelope.entity import OF_CHANGELOG
from envelope.errors import ChangelogError, Kind
from envelope.position import Position
from spark_jobs.changelog.read_files import ASIDE, manifest_of, paths_of_archive, paths_of_log, read_parquet
from spark_jobs.changelog.read_kafka import decoded, kafka_log, kafka_options, read_topics, refuse_missing, subscription
from spark_jobs.changelog.where import Archive, Files, Kafka, Where, name_of
from spark_jobs.storage.manifest import newest
from spark_jobs.storage.open_store import store_of


def read_changelog(
    spark: SparkSession, where: Where, *, entities: Iterable[str] | None = None, after: Position | None = None
) -> DataFrame:
    """What the changelog holds now: of `entities`, by default all, and behind `after`, where given.

    The versions of columns and what was set aside (`schemas`, `dead`) are entities only where named. Raises
    ChangelogError: PRECONDITION when there is no changelog, USAGE for an unknown entity or a position beyond its end.
    """
    names = None if entities is None else sorted(set(entities))
    if after is not None:
        refuse_beyond(spark, where, after)
    match where:
        case Files():
            rows = read_parquet(spark, paths_of_log(where, names, after))
        case Archive():
            rows = read_parquet(spark, paths_of_archive(spark, where, names, after))
        case Kafka():
            rows = read_topics(spark, where, names)
    chosen = F.col("entity").isin(names) if names is not None else ~F.col("entity").isin(ASIDE)
    rows = rows.where(chosen)
    return rows if after is None else rows.where(F.col("position") > str(after))


def stream_changelog(
    spark: SparkSession,
    where: Kafka,
    *,
    entities: Iterable[str] | None = None,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """What the changelog holds, and what comes, as a stream: with the columns `kafka_partition` and `offset`, too.

    `options` are those of Spark's Kafka source, over ours: `startingOffsets`, `maxOffsetsPerTrigger`. Entities that
    appear later are read from their beginning, unless `entities` are named.
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


def end_of(spark: SparkSession, where: Where) -> Position | None:
    """The position up to which the changelog holds everything; None while it is empty."""
    match where:
        case Files():
            return _reached(find_recovery(where.path).checkpoint)
        case Archive():
            last = max((file.last for file in manifest_of(spark, where).files), default=None)
            return None if last is None else Position.parse(last)
        case Kafka():
            return _reached(kafka_log(where).checkpoint())


def refuse_beyond(spark: SparkSession, where: Where, position: Position) -> None:
    """Raises ChangelogError (USAGE) when the changelog does not reach up to `position`."""
    end = end_of(spark, where)
    if end is None or position > end:
        reach = "is empty" if end is None else f"ends at {end}"
        raise ChangelogError(Kind.USAGE, f"{position} is beyond the end: {name_of(where)} {reach}")


def refuse_dropped(spark: SparkSession, where: Files | Archive, reached: Position, what: str) -> None:
    """Raises ChangelogError (GAP) when retention dropped what stood behind `reached`, up to which `what` goes.

    Days are dropped oldest first: while something is left of what was read, nothing is missing behind it. Rows of the
    changelog itself are never dropped.
    """
    path = where.path
    manifest = newest(store_of(path, spark))
    changes = () if manifest is None else (file for file in manifest.files if file.entity not in OF_CHANGELOG)
    earliest = min((file.first for file in changes), default=None)
    if earliest is not None and earliest > str(reached):
        raise ChangelogError(
            Kind.GAP,
            f"history lost: {what} {reached}, and {path} begins at {earliest}",
            hint="begin anew, in an empty one",
        )


def _reached(checkpoint: Checkpoint | None) -> Position | None:
    """Every transaction that committed before `through_lsn` is there."""
    if checkpoint is None:
        return None
    whole = Position(checkpoint.epoch, checkpoint.through_lsn, 0)
    return whole if checkpoint.position is None else max(checkpoint.position, whole)


# Files


# Kafka
