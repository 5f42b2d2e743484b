"""Joins the two sides by key, and finds the keys that are the same on both and those that must be judged.

Every function here maps frames to frames, without reading, writing or counting. Rows are compared by a 64-bit hash and
the length of their text. Equal rows need no more; all others are compared column by column.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_, or_
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

from changelog.connectors.sources.fences import Shown
from changelog.envelope.entity import TRUNCATE_KEY
from changelog.envelope.model import Op
from changelog.spark_jobs.drift.key_ranges import Bounds
from changelog.spark_jobs.drift.row_diff import CHANGED, EXTRA, GONE, MISSING, PENDING, SAME
from changelog.spark_jobs.reading.provenance import source_text

CLASSIFIED: Final = ("entity", "state", "key", "position", "leaf", "locator", "rows")
"""The columns of `classify`: a row for each key that must be judged; `rows` counts all other keys by state."""

SAMPLE_PARTS: Final = 1_000_000
"""Keys are divided into this many equal parts by their CRC-32; a sample takes some of the parts."""

_SOURCE, _VISIBLE, _INVISIBLE = 0, 1, 2
_NARROW = ("hash", "key", "entity", "side", "rank", "op", "print", "length", "leaf", "locator")
_DIGITS, _INVERTED = "0123456789ABCDEF", "FEDCBA9876543210"
_TRAILING_NULLS = r'^\}(?:llun:"[^"]*+",)++'
"""Matches null columns at a row's end, in its reversed text; fails within a few characters, without backtracking."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """What a fence shows of the changelog: the rows of the transactions in `shown`, which are of the epoch `epoch`.

    Rows of epochs before that are all shown: their history is complete.
    """

    shown: Shown
    epoch: int

    def shows(self) -> Column:
        """The condition that a row's transaction is visible."""
        xid = F.col("transaction").cast("long")
        seen = xid < F.lit(self.shown.end)
        if self.shown.hidden:
            seen &= ~xid.isin(*self.shown.hidden)
        return (F.col("position") < F.lit(f"{self.epoch:08X}/")) | seen


EVERYTHING: Final[Cut | None] = None
"""The cut without a fence: all rows of the changelog count."""


def chosen(rows: DataFrame, share: float | None, bounds: Bounds | None) -> DataFrame:
    """The rows of this share of the keys, always the same keys, and of the keys in this range; truncates concern all
    keys and are always included.
    """
    key, conditions = F.col("key"), []
    if share is not None:
        part = F.crc32(key.cast("binary")) % F.lit(SAMPLE_PARTS)
        conditions.append(part < F.lit(round(share * SAMPLE_PARTS)))
    if bounds is not None:
        conditions.append(bounds.holds(key))
    return rows.where((key == F.lit(TRUNCATE_KEY)) | reduce(and_, conditions)) if conditions else rows


def of_source(rows: DataFrame, grown: Sequence[str] = ()) -> DataFrame:
    """The narrow form of the source's rows; `grown` are entities whose stored rows may lack trailing null columns."""
    return rows.select(
        _hash(),
        "key",
        "entity",
        F.lit(_SOURCE).cast("byte").alias("side"),
        F.lit(None).cast("string").alias("rank"),
        F.lit(None).cast("string").alias("op"),
        *_print(F.col("json_null"), grown),
        "leaf",
        "locator",
    )


def of_changelog(rows: DataFrame, cut: Cut | None, *, json: bool, grown: Sequence[str] = ()) -> DataFrame:
    """The narrow form of the changelog's rows; `json` says whether a table has a json column.

    Of a key's visible rows the last has the highest rank; of its invisible rows, the first.
    """
    shows = F.lit(True) if cut is None else cut.shows()
    rank = F.when(shows, F.col("position")).otherwise(_inverted(F.col("position")))
    source = source_text()
    json_null = F.regexp_extract(source, r'"jsonNull":(\[[^\]]*\])', 1)
    json_nulls = F.when(source.contains('"jsonNull":'), json_null) if json else F.lit(None).cast("string")
    return rows.select(
        _hash(),
        "key",
        "entity",
        F.when(shows, _VISIBLE).otherwise(_INVISIBLE).cast("byte").alias("side"),
        rank.alias("rank"),
        "op",
        *_print(json_nulls, grown),
        F.lit(None).cast("int").alias("leaf"),
        F.lit(None).cast("string").alias("locator"),
    )


def _hash() -> Column:
    """The hash by which rows are sorted first, which costs less than sorting by text."""
    return F.xxhash64("key").alias("hash")


def _print(json_null: Column, grown: Sequence[str]) -> tuple[Column, Column]:
    text = F.col("current")
    if grown:
        without = F.regexp_replace(F.reverse(text), _TRAILING_NULLS, "}")
        text = F.when(F.col("entity").isin(*grown), without).otherwise(text)
    return F.xxhash64(text, json_null).alias("print"), F.octet_length(text).alias("length")


def _inverted(position: Column) -> Column:
    return F.translate(position, _DIGITS, _INVERTED)


def truncates(narrow: DataFrame) -> DataFrame:
    """The rank of the last visible truncate of each entity."""
    rows = narrow.where((F.col("key") == TRUNCATE_KEY) & (F.col("side") == _VISIBLE))
    return rows.groupBy("entity").agg(F.max("rank").alias("rank"))


def without_truncated(narrow: DataFrame, truncated: Mapping[str, str]) -> DataFrame:
    """The changelog's rows without truncates and without the rows that they removed."""
    rows = narrow.where(F.col("key") != TRUNCATE_KEY)
    if not truncated:
        return rows
    hidden = reduce(or_, ((F.col("entity") == entity) & (F.col("rank") < rank) for entity, rank in truncated.items()))
    return rows.where(~((F.col("side") == _VISIBLE) & hidden))


def classify(source: DataFrame, changelog: DataFrame, since: str | None = None) -> DataFrame:
    """The keys of both sides (narrow) that must be judged, and the numbers of the others (`CLASSIFIED`).

    `position` is that of the key's last visible row in the changelog, or of its first row if none is visible. `since`
    leaves out keys whose last change is not past that position, and keys that the changelog lacks.
    """
    by_key = Window.partitionBy("hash", "key", "entity").orderBy("side", F.desc("rank"))
    row_state = F.struct("side", "rank", "op", "print", "length")
    numbered_rows = (
        source.select(*_NARROW)
        .union(changelog.select(*_NARROW))
        .select(*_NARROW, F.row_number().over(by_key).alias("number"), F.lead(row_state).over(by_key).alias("next"))
    )
    keys = numbered_rows.where(F.col("number") == 1)
    in_source = F.col("side") == _SOURCE
    keys = keys.withColumn("last", F.when(in_source, F.col("next")).otherwise(row_state))
    pending = F.col("last.side") == _INVISIBLE
    position = F.when(pending, _inverted(F.col("last.rank"))).otherwise(F.col("last.rank"))
    keys = keys.withColumn("position", position).withColumn("state", _state(in_source, pending))
    if since is not None:
        keys = keys.where(F.col("position") > since)
    is_suspect = ~F.col("state").isin(SAME, GONE)
    suspect_columns = [F.when(is_suspect, F.col(name)).alias(name) for name in ("key", "position", "leaf", "locator")]
    return (
        keys.select("entity", "state", *suspect_columns).groupBy(*CLASSIFIED[:-1]).agg(F.count(F.lit(1)).alias("rows"))
    )


def _state(in_source: Column, pending: Column) -> Column:
    deleted = F.col("last.op") == Op.DELETE.value
    is_newer = pending & ~in_source & (F.col("last.op") == Op.CREATE.value)
    is_equal = (F.col("print") == F.col("last.print")) & F.col("length").eqNullSafe(F.col("last.length"))
    return (
        F.when(F.col("last").isNull() | (in_source & ~pending & deleted), MISSING)
        .when(is_newer, GONE)
        .when(pending, PENDING)
        .when(in_source & is_equal, SAME)
        .when(in_source, CHANGED)
        .when(deleted, GONE)
        .otherwise(EXTRA)
    )


def with_changes(suspects: DataFrame, changes: DataFrame, *, few: bool) -> DataFrame:
    """The keys to judge, each with the whole row of the changelog at its position."""
    positions = suspects.where(F.col("position").isNotNull()).select("entity", "key", "position")
    columns = ("op", "current", "original", "provenance", "committed_at", "service_name", "api_version")
    rows = changes.select("entity", "key", "position", *columns)
    joined_rows = rows.join(F.broadcast(positions) if few else positions, ["entity", "key", "position"], "inner")
    one_row_per_key = joined_rows.dropDuplicates(["entity", "key"]).drop("position")
    return suspects.join(one_row_per_key, ["entity", "key"], "left")


def with_source(suspects: DataFrame, source: DataFrame) -> DataFrame:
    """The keys to judge with their rows in the source, for a source whose rows have no locators."""
    rows = source.select(
        "entity", "key", F.col("current").alias("source_current"), F.col("json_null").alias("source_json_null")
    )
    return suspects.join(rows, ["entity", "key"], "left")
