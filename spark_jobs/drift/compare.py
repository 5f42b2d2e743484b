"""Compares the tables of a source with its changelog, both as of one snapshot of the database. We call the snapshot the
*fence*.

First, the hashes of the rows are compared (`changelog.spark_jobs.drift.key_states`): most keys turn out to have the
same row on both sides. Every other key is *judged*: its two rows are compared column by column. For some keys, the
changelog does not show the state at the fence, because all its changes of the key are newer than the fence, and the
original of the first one is unknown. Such a key is *undecided*, and is compared again under a later fence.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.storagelevel import StorageLevel

from changelog.connectors.sinks import Log
from changelog.connectors.sources.fences import Fence
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.entity import SCHEMAS, TRUNCATE_KEY
from changelog.envelope.position import Position
from changelog.envelope.versions import Version
from changelog.schemas.types import Struct
from changelog.spark_jobs.drift import key_states
from changelog.spark_jobs.drift.fenced.scan_tasks import source_rows, tasks_for
from changelog.spark_jobs.drift.judge_task import JUDGED, Fetch, fetcher, judge
from changelog.spark_jobs.drift.key_ranges import Bounds, KeyRange, bounds
from changelog.spark_jobs.drift.key_states import ChangelogCut
from changelog.spark_jobs.drift.row_diff import CHANGED, EXTRA, GONE, SAME, ColumnHistory, steps_of
from changelog.spark_jobs.reading.read import read_changelog
from changelog.spark_jobs.reading.where import Kafka, Where

FEW = 200_000
"""If at most this many keys must be judged, Spark sends these keys to every task to join them with their changes. If
there are more, it joins them by a shuffle.
"""

_JUDGED_AT_ONCE = 5_000
_UNDECIDED, _PENDING, _UNKNOWN, _CHANGED = "?", "p", "u:", "s:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Limits which keys are compared. A limit that is None does not apply.

    With `since`, only keys that changed after this position are compared; with `share`, only this share (from 0 to 1)
    of all keys; with `keys`, only a range of one entity's keys. `tasks` says how many tasks read the source; None means
    the default.
    """

    since: Position | None = None
    share: float | None = None
    keys: KeyRange | None = None
    tasks: int | None = None


@dataclass(slots=True, kw_only=True)
class Counts:
    """The counts of one entity: its rows on each side, and its undecided keys.

    A column can differ for a reason that is not drift. `unknown` and `schema_changed` are two such reasons
    (`changelog.spark_jobs.drift.row_diff`). For each reason, the keys are counted by the columns that differ.
    """

    source_rows: int = 0
    changelog_rows: int = 0
    undecided: int = 0
    unknown: Counter[str] = field(default_factory=Counter)
    schema_changed: Counter[str] = field(default_factory=Counter)

    def add(self, other: "Counts") -> None:
        """Adds the counts of a later comparison, which must have compared only the keys that were undecided here.

        Its source rows are not added, because `source_rows` already includes the undecided keys.
        """
        self.changelog_rows += other.changelog_rows
        self.undecided = other.undecided
        self.unknown += other.unknown
        self.schema_changed += other.schema_changed


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The result of a comparison: the counts by entity, and a DataFrame (`JUDGED`) of the keys that were judged. If no
    key was judged, `judged` is None.
    """

    counts: Mapping[str, Counts]
    judged: DataFrame | None

    def undecided(self) -> DataFrame | None:
        """Returns the entity and key of each undecided key; None if no key is undecided."""
        if self.judged is None or not any(count.undecided for count in self.counts.values()):
            return None
        return self.judged.where("undecided").select("entity", "key")

    def drifted(self) -> DataFrame | None:
        """Returns the judged keys that drifted; None if no key was judged."""
        return None if self.judged is None else self.judged.where("kind IS NOT NULL")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """The two sides of a comparison: the source's rows (`changelog.connectors.sources.fences.ROWS`), and the
    changelog's rows.

    `cut` says which of the changelog's rows are compared; None means all. `shapes` has the columns of each entity, with
    their history. `json` says whether any table has a json column. `cached` says that the changelog is expensive to
    read, and should be cached. `fetch` returns the whole source rows of the keys that must be judged. Normally, it
    reads them from the table again, at the places that their locators name. If `joined` is set, there are no locators:
    Spark joins the source's rows to the keys, and `fetch` takes them from there. `bounds` limit the keys.
    """

    source: DataFrame
    changelog: DataFrame
    cut: ChangelogCut | None
    shapes: Mapping[str, ColumnHistory]
    json: bool
    cached: bool
    fetch: Fetch
    joined: bool = False
    bounds: Bounds | None = None


def under_fence(
    spark: SparkSession,
    fence: Fence,
    where: Where,
    log: Log,
    checkpoint: Checkpoint,
    scope: Scope,
    only: DataFrame | None = None,
) -> Comparison:
    """Compares the tables of a fence with the changelog.

    The changelog must have caught up with the fence; `checkpoint` is the checkpoint that shows this. `where` is the
    changelog that is compared. The versions of columns are read from `log`, even if `where` is an archive. `only` is a
    DataFrame of entities and keys: if it is not None, only these keys are compared.
    """
    keys = None if scope.keys is None else _bounds(scope.keys, fence)
    source = source_rows(spark, fence.scan, fence.tables, scope.tasks or tasks_for(spark, fence.tables), keys)
    changelog = read_changelog(spark, where, entities=fence.tables, after=scope.since)
    versions = read_versions(log, list(fence.tables))
    sides = Sides(
        source=restricted(source, only),
        changelog=restricted(changelog, only, truncates=True),
        cut=ChangelogCut(shown=fence.shown, epoch=checkpoint.epoch),
        shapes={
            entity: shape_of(table.binding.shape, versions[entity], checkpoint.windows.get(entity) or {})
            for entity, table in fence.tables.items()
        },
        json=any(field.json for table in fence.tables.values() for field in table.binding.fields),
        cached=isinstance(where, Kafka),
        fetch=fetcher(fence.scan),
        bounds=keys,
    )
    return compare(sides, scope)


def _bounds(key_range: KeyRange, fence: Fence) -> Bounds:
    [table] = fence.tables.values()
    columns = [(field.name, field.codec.column_type) for field in table.binding.key]
    return bounds(key_range, table.entity.name, columns)


def restricted(rows: DataFrame, only: DataFrame | None, *, truncates: bool = False) -> DataFrame:
    """Returns the rows whose entity and key are in `only`; all rows if `only` is None. With `truncates`, also returns
    all truncates.
    """
    if only is None:
        return rows
    selected = rows.join(F.broadcast(only), ["entity", "key"], "left_semi")
    return selected.unionByName(rows.where(F.col("key") == F.lit(TRUNCATE_KEY))) if truncates else selected


def compare(sides: Sides, scope: Scope) -> Comparison:
    """Compares two sides: counts their rows, and judges the keys that are not clearly the same."""
    grown = [entity for entity, shape in sides.shapes.items() if shape.grew]
    rows = key_states.chosen(sides.changelog, scope.share, sides.bounds)
    narrow = key_states.of_changelog(rows, sides.cut, json=sides.json, grown=grown)
    if sides.cached:  # The changelog is read twice, which is cheap for files, but not for Kafka.
        narrow = narrow.persist(StorageLevel.MEMORY_AND_DISK)
    truncated = {row["entity"]: row["rank"] for row in key_states.truncates(narrow).collect()}
    source = key_states.of_source(key_states.chosen(sides.source, scope.share, sides.bounds), grown)
    since = None if scope.since is None else str(scope.since)
    states = key_states.classify(source, key_states.without_truncated(narrow, truncated), since).persist(
        StorageLevel.MEMORY_AND_DISK
    )
    try:
        counts, suspects = _counted(states)
        if not suspects:
            return Comparison(counts=counts, judged=None)
        suspect_keys = states.where(F.col("key").isNotNull())
        full = key_states.with_changes(suspect_keys, sides.changelog, few=suspects <= FEW)
        if sides.joined:
            full = key_states.with_source(full, sides.source)
        judging = partial(judge, shapes=sides.shapes, fetch=sides.fetch)
        tasks = min(1 + suspects // _JUDGED_AT_ONCE, scope.tasks or 1 << 10)
        judged = full.repartition(tasks).mapInArrow(judging, from_arrow_schema(JUDGED))
        judged = judged.persist(StorageLevel.DISK_ONLY)
        _add_marks(counts, judged)
        return Comparison(counts=counts, judged=judged)
    finally:
        states.unpersist()
        if sides.cached:
            narrow.unpersist()


def _counted(states: DataFrame) -> tuple[dict[str, Counts], int]:
    """Returns each entity's counts of rows, and how many keys must be judged. `_add_marks` completes the counts."""
    in_source = F.col("leaf").isNotNull().alias("in_source")
    rows = states.groupBy("entity", "state", in_source).agg(F.sum("rows").alias("rows")).collect()
    counts: dict[str, Counts] = defaultdict(Counts)
    suspects = 0
    for row in rows:
        entity, state, row_count = counts[row["entity"]], row["state"], row["rows"]
        if state == SAME or row["in_source"]:
            entity.source_rows += row_count
        if state in (SAME, CHANGED, EXTRA):
            entity.changelog_rows += row_count
        suspects += row_count if state not in (SAME, GONE) else 0
    return counts, suspects


def _add_marks(counts: dict[str, Counts], judged: DataFrame) -> None:
    """Adds to `counts` what is known only after keys were judged: how many keys are undecided or pending (see
    `JUDGED`), and how often a column differs for a reason that is not drift.
    """
    marks = F.concat(
        F.transform("unknown", lambda name: F.concat(F.lit(_UNKNOWN), name)),
        F.transform("schema_changed", lambda name: F.concat(F.lit(_CHANGED), name)),
        F.when(F.col("undecided"), F.array(F.lit(_UNDECIDED))).otherwise(F.array().cast("array<string>")),
        F.when(F.col("pending"), F.array(F.lit(_PENDING))).otherwise(F.array().cast("array<string>")),
    )
    for row in judged.select("entity", F.explode(marks).alias("mark")).groupBy("entity", "mark").count().collect():
        entity, mark, key_count = counts[row["entity"]], row["mark"], row["count"]
        match mark[:2]:
            case "?":
                entity.undecided += key_count
            case "p":
                entity.changelog_rows += key_count
            case "u:":
                entity.unknown[mark[2:]] += key_count
            case _:
                entity.schema_changed[mark[2:]] += key_count


def shape_of(columns: Struct, versions: Sequence[tuple[str, Version]], windows: Mapping[str, object]) -> ColumnHistory:
    """Returns an entity's columns and their history.

    `versions` are the versions of the entity's columns, each with its position. `windows` is the checkpoint's entry
    about reads of the entity's table. It names the stale columns.
    """
    stale = windows.get("stale")
    return ColumnHistory(
        columns=tuple(name for name, _ in columns.fields),
        steps=steps_of(versions, columns),
        stale=frozenset(stale if isinstance(stale, list | tuple) else ()),
    )


def read_versions(log: Log, entities: Sequence[str]) -> dict[str, list[tuple[str, Version]]]:
    """Returns the versions of each entity's columns, oldest first, each with its position."""
    rows = {
        (position, key): current
        for batch in log.read(entity=SCHEMAS)
        for key, position, current in zip(
            *(batch.column(name).to_pylist() for name in ("key", "position", "current")), strict=True
        )
        if key in entities
    }
    versions: dict[str, list[tuple[str, Version]]] = {entity: [] for entity in entities}
    for (position, key), current in sorted(rows.items()):
        version = Version.parse(current.encode())
        if version.number == 1:  # The changelog was begun anew, and its topics still hold the former changelog.
            versions[key] = []
        versions[key].append((position, version))
    return versions
