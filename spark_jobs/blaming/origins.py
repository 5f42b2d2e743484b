"""Finds the changes of each row, even if the row moved from key to key.

Two rows can have the same key, one after the other: a row moves away, and later another row gets its old key. So a key
alone does not say to which row a change belongs. A row is identified by its *origin*: the first key that the row had,
and the position at which an earlier row moved away from this key. The position is empty if no earlier row did so.

Moves to another key are rare. So the driver reads all moves, goes through them in order, and notes which row had each
key, and from which position on.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

from changelog.envelope.columnar.batch import moved_from
from changelog.envelope.errors import ChangelogError, Kind
from changelog.spark_jobs.blaming.attribute_rows import ORIGIN

MOVES_MAX: Final = 1_000_000
"""The most moves to another key that a run can handle. A million moves take about a gigabyte of the driver's memory."""

_BROADCAST_MAX: Final = 100_000
"""Up to this number of key spans (see `KeySpan`), the join sends all of them to every executor. With more spans, Spark
itself decides how to join, and may have to sort all changes by key.
"""

_SPANS: Final = (
    "span_entity string, span_key string, since string, until string, origin_key string, origin_position string"
)


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class Move:
    """The change, at `position`, by which a row moved from the key `old` to the key `new`."""

    position: str
    entity: str
    old: str
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySpan:
    """Says which changes of a key belong to one row: those at the position `since` or later, and before `until`.

    `since` is empty for the first row that had the key. `until` is None for the last row that had it. `origin` is the
    row's origin: a key and a position.
    """

    entity: str
    key: str
    since: str
    until: str | None
    origin: tuple[str, str]


def moves_of(changes: DataFrame, moves_max: int = MOVES_MAX) -> list[Move]:
    """Reads all moves to another key. Moves that only change the partition are left out: the row keeps its key.

    Raises ChangelogError (LIMIT) if there are more than `moves_max`.
    """
    arrivals = changes.where(F.col("moved").contains('"movedFrom"')).select("entity", "key", "position", "moved")
    keeps_key = F.get_json_object("moved", "$.movedFrom.key") == F.col("key")
    rows = arrivals.where(~F.coalesce(keeps_key, F.lit(False))).limit(moves_max + 1).collect()
    if len(rows) > moves_max:
        raise ChangelogError(
            Kind.LIMIT,
            f"more than {moves_max} changes move a row to another key",
            hint="name fewer entities: --entity ENTITY",
        )
    places = [moved_from(row["moved"]) for row in rows]
    return [
        Move(position=row["position"], entity=row["entity"], old=place.key, new=row["key"])
        for row, place in zip(rows, places, strict=True)
        if place is not None
    ]


def spans_of(moves: Iterable[Move]) -> list[KeySpan]:
    """Returns the spans of all keys that a row moved to or away from. A repeated move counts once."""
    current_spans: dict[tuple[str, str], tuple[str, tuple[str, str]]] = {}
    spans: list[KeySpan] = []

    def end(entity: str, key: str, until: str | None) -> tuple[str, str]:
        since, origin = current_spans.pop((entity, key), ("", (key, "")))
        spans.append(KeySpan(entity=entity, key=key, since=since, until=until, origin=origin))
        return origin

    for move in sorted(set(moves)):
        origin = end(move.entity, move.old, move.position)
        end(move.entity, move.new, move.position)
        current_spans[move.entity, move.new] = move.position, origin
        current_spans[move.entity, move.old] = move.position, (move.old, move.position)
    for entity, key in list(current_spans):
        end(entity, key, None)
    return spans


def with_origins(changes: DataFrame, spans: Iterable[KeySpan], spark: SparkSession) -> DataFrame:
    """Adds the columns of `ORIGIN` to changes. All changes with the same entity and origin belong to the same row."""
    rows = [(span.entity, span.key, span.since, span.until, *span.origin) for span in spans]
    if not rows:
        return changes.withColumns(dict(zip(ORIGIN, (F.col("key"), F.lit("")), strict=True)))
    of_span = (
        (F.col("entity") == F.col("span_entity"))
        & (F.col("key") == F.col("span_key"))
        & (F.col("position") >= F.col("since"))
        & (F.col("until").isNull() | (F.col("position") < F.col("until")))
    )
    frame = spark.createDataFrame(rows, _SPANS)
    joined = changes.join(F.broadcast(frame) if len(rows) <= _BROADCAST_MAX else frame, of_span, "left_outer")
    origins = F.coalesce("origin_key", "key"), F.coalesce("origin_position", F.lit(""))
    return joined.select(*changes.columns, *(origin.alias(name) for origin, name in zip(origins, ORIGIN, strict=True)))
