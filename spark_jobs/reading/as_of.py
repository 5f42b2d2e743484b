"""Finds the position up to which a job reads the changelog. The user gave a time, a position, or neither."""

from collections.abc import Iterable
from datetime import datetime

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.position import Position
from changelog.spark_jobs.reading.read import end_of, read_changelog, refuse_beyond
from changelog.spark_jobs.reading.where import Where, name_of


def resolve(
    spark: SparkSession,
    changelog: Where,
    as_of: Position | datetime | None,
    entities: Iterable[str] | None = None,
) -> Position:
    """Converts `as_of` to the position of the last change to read.

    If `as_of` is a position, it is returned unchanged. If it is None, the result is the end of the changelog for these
    entities (`end_of`). If it is a time, the first transaction that committed after this time counts: the result is the
    position of the last change before this transaction. If there is no such transaction, the result is the end of the
    changelog.

    Raises ChangelogError: USAGE if a position is beyond the end of the changelog, or a time before its beginning;
    PRECONDITION if the changelog is empty.
    """
    if isinstance(as_of, Position):
        refuse_beyond(spark, changelog, as_of, entities)
        return as_of
    end = end_of(spark, changelog, entities)
    if end is None:
        raise ChangelogError(Kind.PRECONDITION, f"{name_of(changelog)} is empty", hint="`changelog run` fills it")
    return end if as_of is None else _resolve_time(read_changelog(spark, changelog), as_of, end, name_of(changelog))


def _resolve_time(changes: DataFrame, at: datetime, end: Position, name: str) -> Position:
    complete = changes.where(F.col("position") <= str(end))
    first_later_text = complete.where(F.col("committed_at") > F.lit(at)).agg(F.min("position")).collect()[0][0]
    if first_later_text is None:
        return end
    first_later = Position.parse(first_later_text)
    before = complete.where(F.col("position") < str(Position(first_later.epoch, first_later.commit, 0)))
    last = before.agg(F.max("position")).collect()[0][0]
    if last is None:
        raise ChangelogError(Kind.USAGE, f"{at.isoformat()} is before the first transaction of {name}")
    return Position.parse(last)
