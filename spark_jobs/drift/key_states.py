"""Joins the two sides of a comparison by key, and finds the keys that must be judged (compared column by column).

Rows are compared by a 64-bit hash of their text and by the length of their text. If both are equal, the key has the
same row on both sides. Nearly all other keys must be judged. To sort and join cheaply, rows are first reduced to a
*narrow* form, which has the hash and the length in place of the text. A *fence* is a snapshot of the database. It shows
some of the transactions that the changelog has, and hides the others; rows of the shown transactions are *visible*. The
functions here only make DataFrames and columns; they read, write and count no rows.
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
from changelog.envelope.position import commit_text
from changelog.spark_jobs.drift.key_ranges import Bounds
from changelog.spark_jobs.drift.row_diff import CHANGED, EXTRA, GONE, MISSING, PENDING, SAME
from changelog.spark_jobs.reading.provenance import source_text

CLASSIFIED: Final = ("entity", "state", "key", "position", "leaf", "locator", "rows")
"""The columns of the result of `classify`. Each key that must be judged has its own row. All other keys are only
counted: for each entity and state, there is one row without a key, and its `rows` says how many keys there are.
"""

SAMPLE_PARTS: Final = 1_000_000
"""Keys are divided into this many parts of about equal size, by their CRC-32. A sample has the keys of some parts."""

_SOURCE, _VISIBLE, _INVISIBLE = 0, 1, 2
_NARROW = ("hash", "key", "entity", "side", "rank", "op", "print", "length", "leaf", "locator")
_DIGITS, _INVERTED = "0123456789ABCDEF", "FEDCBA9876543210"
_TRAILING_NULLS = r'^\}(?:llun:"[^"]*+",)++'
"""Matches the null columns at the end of a row. The row's text must first be reversed, so that the pattern finds the
row's end at the beginning. If the row does not end with null columns, the pattern fails after a few characters, because
it does not backtrack.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangelogCut:
    """Says which rows of the changelog a fence shows. Of the rows of `epoch`, it shows those of the transactions in
    `shown`. It shows all rows of earlier epochs, because their transactions had ended before the fence.
    """

    shown: Shown
    epoch: int

    def shows(self) -> Column:
        """Returns the condition that the fence shows a row."""
        if self.shown.ids == "commits":
            id_, end, hidden = _commit(), commit_text(self.shown.end), [*map(commit_text, self.shown.hidden)]
            is_shown = (id_ < F.lit(end)) & ~id_.isin(*hidden)
        else:
            id_ = F.col("transaction").cast("long")
            is_shown = (id_ < F.lit(self.shown.end)) & ~id_.isin(*self.shown.hidden)
        return (F.col("position") < F.lit(f"{self.epoch:08X}/")) | is_shown


EVERYTHING: Final[ChangelogCut | None] = None
"""The cut of a comparison without a fence: all rows of the changelog are visible."""


def chosen(rows: DataFrame, share: float | None, bounds: Bounds | None) -> DataFrame:
    """Returns the rows whose keys are in this share of all keys, and also in this range. None means all keys.

    The same share always has the same keys. Truncates are always included, because they concern all keys.
    """
    key, conditions = F.col("key"), []
    if share is not None:
        part = F.crc32(key.cast("binary")) % F.lit(SAMPLE_PARTS)
        conditions.append(part < F.lit(round(share * SAMPLE_PARTS)))
    if bounds is not None:
        conditions.append(bounds.holds(key))
    return rows.where((key == F.lit(TRUNCATE_KEY)) | reduce(and_, conditions)) if conditions else rows


def of_source(rows: DataFrame, grown: Sequence[str] = ()) -> DataFrame:
    """Returns the narrow form of the source's rows.

    `grown` are entities to whose tables columns were added, after all others. Older rows of the changelog lack these
    columns, but the table has nulls there. So for these entities, nulls at the end of a row are not compared.
    """
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


def of_changelog(rows: DataFrame, cut: ChangelogCut | None, *, json: bool, grown: Sequence[str] = ()) -> DataFrame:
    """Returns the narrow form of the changelog's rows.

    Each row gets a rank: among the visible rows of a key, the last has the highest rank; among its invisible rows, the
    first has the highest rank. `json` says whether a table has a json column. `grown` means the same as in `of_source`.
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
    """Returns the hash of the key. Rows are first sorted by this hash, because numbers are compared fast."""
    return F.xxhash64("key").alias("hash")


def _print(json_null: Column, grown: Sequence[str]) -> tuple[Column, Column]:
    text = F.col("current")
    if grown:
        without = F.regexp_replace(F.reverse(text), _TRAILING_NULLS, "}")
        text = F.when(F.col("entity").isin(*grown), without).otherwise(text)
    return F.xxhash64(text, json_null).alias("print"), F.octet_length(text).alias("length")


def _commit() -> Column:
    """Returns the commit in a row's position, as `commit_text` writes it. In this form, commits can be compared."""
    return F.split_part(F.col("position"), F.lit("/"), F.lit(2))


def _inverted(position: Column) -> Column:
    return F.translate(position, _DIGITS, _INVERTED)


def truncates(narrow: DataFrame) -> DataFrame:
    """Returns the rank of the last visible truncate of each entity."""
    rows = narrow.where((F.col("key") == TRUNCATE_KEY) & (F.col("side") == _VISIBLE))
    return rows.groupBy("entity").agg(F.max("rank").alias("rank"))


def without_truncated(narrow: DataFrame, truncated: Mapping[str, str]) -> DataFrame:
    """Returns the changelog's rows without truncates, and without visible rows from before the entity's last visible
    truncate.

    `truncated` has the rank of the last visible truncate of each entity.
    """
    rows = narrow.where(F.col("key") != TRUNCATE_KEY)
    if not truncated:
        return rows
    hidden = reduce(or_, ((F.col("entity") == entity) & (F.col("rank") < rank) for entity, rank in truncated.items()))
    return rows.where(~((F.col("side") == _VISIBLE) & hidden))


def classify(source: DataFrame, changelog: DataFrame, since: str | None = None) -> DataFrame:
    """Joins the two sides, both in narrow form. Returns the keys that must be judged, and how many other keys there are
    (`CLASSIFIED`).

    The `position` of a key is that of its last visible row in the changelog, or of its first row if no row is visible.
    With `since`, only keys with a later `position` are returned and counted; keys that the changelog lacks have none,
    so they are left out.
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
    """Returns the keys that must be judged, each with the whole row that the changelog has at the key's position. `few`
    says that there are few keys, so that Spark can send them to every task.
    """
    positions = suspects.where(F.col("position").isNotNull()).select("entity", "key", "position")
    columns = ("op", "current", "original", "provenance", "committed_at", "service_name", "api_version")
    rows = changes.select("entity", "key", "position", *columns)
    joined_rows = rows.join(F.broadcast(positions) if few else positions, ["entity", "key", "position"], "inner")
    one_row_per_key = joined_rows.dropDuplicates(["entity", "key"]).drop("position")
    return suspects.join(one_row_per_key, ["entity", "key"], "left")


def with_source(suspects: DataFrame, source: DataFrame) -> DataFrame:
    """Returns the keys that must be judged, each with its row in the source. This is for sources whose rows have no
    locators, so that single rows cannot be read again.
    """
    rows = source.select(
        "entity", "key", F.col("current").alias("source_current"), F.col("json_null").alias("source_json_null")
    )
    return suspects.join(rows, ["entity", "key"], "left")
