"""Compares the changelog with any source that Spark can read.

The two sides cannot be read at the same moment. So keys that differ are compared again after a while, when recent
writes should have arrived on both sides. The result is not exact. If a key differs in both comparisons, but was changed
after the run began, it is not reported. If a change reaches the changelog only after the second comparison, its key is
reported as drift.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

from changelog.connectors.wiring.sinks import open_log
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.versions import Version
from changelog.schemas.types import Primitive
from changelog.spark_jobs.drift.compare import Comparison, Counts, Sides, compare, read_versions, restricted
from changelog.spark_jobs.drift.foreign_source import Masks, rows_of
from changelog.spark_jobs.drift.judge_task import joined
from changelog.spark_jobs.drift.key_ranges import bounds
from changelog.spark_jobs.drift.key_states import EVERYTHING
from changelog.spark_jobs.drift.report_json import Request, RunStart, entity_json, report_json
from changelog.spark_jobs.drift.row_diff import ColumnHistory
from changelog.spark_jobs.drift.run import say, written
from changelog.spark_jobs.drift.summary import Tally
from changelog.spark_jobs.reading.read import read_changelog
from changelog.spark_jobs.reading.where import Kafka

JSON = dict[str, Any]

_DRIVER = "org.postgresql.Driver"  # It must be named, because Java does not look for drivers in spark-submit's jars.

WHY = "the source has no snapshot to compare the changelog with: keys that differed were compared again after {:g} s"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignSource:
    """A source of one entity's rows: a Spark format, and its options, which may contain passwords. After `settle_s`
    seconds, keys that differ are compared again.
    """

    format: str
    options: Mapping[str, str] = field(repr=False)
    settle_s: float

    @property
    def table(self) -> str:
        """Returns what reports call the source: the name of its table, or its path, or its format."""
        return self.options.get("dbtable") or self.options.get("table") or self.options.get("path") or self.format

    def read(self, spark: SparkSession) -> DataFrame:
        """Returns the rows that the source has now."""
        driver_option = {"driver": _DRIVER} if self.options.get("url", "").startswith("jdbc:postgresql:") else {}
        return spark.read.format(self.format).options(**(driver_option | dict(self.options))).load()


def detect(spark: SparkSession, request: Request, foreign_source: ForeignSource, start: RunStart) -> JSON:
    """Compares one entity, and writes the file of drifted keys. Returns the report, before any policy is applied to it.

    Raises ChangelogError (PRECONDITION) if the changelog has no columns for this entity.
    """
    [name] = request.names
    versions = read_versions(open_log(request.config), [name])[name]
    if not versions:
        raise ChangelogError(
            Kind.PRECONDITION, f"the changelog does not say which columns {name} has", hint="check the entity's name"
        )
    version = versions[-1][1]
    first_comparison = compare(_sides(spark, request, foreign_source, version, None), request.scope)
    comparison = first_comparison
    drifted_keys = first_comparison.drifted()
    if drifted_keys is not None and drifted_keys.head() is not None:
        say(f"keys differ; they are compared again after {foreign_source.settle_s:g} s")
        time.sleep(foreign_source.settle_s)
        second_comparison = compare(
            _sides(spark, request, foreign_source, version, drifted_keys.select("entity", "key")), request.scope
        )
        comparison = Comparison(counts=first_comparison.counts, judged=_settled(second_comparison.judged, start.at))
    tallies = written(request.folder / start.id, [comparison])
    seconds = round(time.monotonic() - start.clock, 3)
    about = {"table": foreign_source.table, "key": list(version.key)}
    counts = first_comparison.counts.get(name, Counts())
    entity = entity_json(about, counts, tallies.get(name, Tally()), request.scope, seconds)
    source = {"kind": foreign_source.format, "database": None, "server": None, "name": request.config.name}
    return report_json(request, start, {name: entity}, source) | {
        "exact": False,
        "why": WHY.format(foreign_source.settle_s),
    }


def _settled(judged: DataFrame | None, before: datetime) -> DataFrame | None:
    """Returns the judged keys whose last change was committed before `before`, or at an unknown time."""
    if judged is None:
        return None
    return judged.where(F.col("committed_at").isNull() | (F.col("committed_at") < F.lit(before.astimezone(UTC))))


def _sides(
    spark: SparkSession, request: Request, foreign_source: ForeignSource, version: Version, only: DataFrame | None
) -> Sides:
    columns = version.columns.fields
    floats = {name for name, type_ in columns if type_ in (Primitive.FLOAT, Primitive.DOUBLE)}
    shape = ColumnHistory(columns=tuple(name for name, _ in columns), floats=frozenset(floats))
    key = [(name, dict(columns)[name]) for name in version.key]
    entity_config = request.config.entities.get(version.entity)
    masks = Masks(kinds=entity_config.mask if entity_config else {}, hmac_key=request.config.hmac_key)
    keys = None if request.scope.keys is None else bounds(request.scope.keys, version.entity, key)
    changelog = read_changelog(spark, request.where, entities=[version.entity], after=request.scope.since)
    return Sides(
        source=restricted(rows_of(foreign_source.read(spark), version, masks), only),
        changelog=restricted(changelog, only, truncates=True),
        cut=EVERYTHING,
        shapes={version.entity: shape},
        json=any(type_ is Primitive.JSON for _, type_ in columns),
        cached=isinstance(request.where, Kafka),
        fetch=joined,
        joined=True,
        bounds=keys,
    )
