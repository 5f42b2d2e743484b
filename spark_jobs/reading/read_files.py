"""Reads the changelog from the Parquet files of a file log or an archive."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField, StructType

from changelog.connectors.sinks.files.layout import find_recovery, log_file, read_checkpoint_of
from changelog.connectors.sinks.files.log import counts
from changelog.connectors.sinks.files.manifest import Manifest, read_manifest
from changelog.envelope.columnar.batch import SCHEMA
from changelog.envelope.entity import DEAD, OF_CHANGELOG
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.position import Position
from changelog.spark_jobs.reading.where import Archive, Files, Where, name_of
from changelog.spark_jobs.storage.manifest import newest
from changelog.spark_jobs.storage.open_store import store_of

ASIDE: Final = sorted({*OF_CHANGELOG, DEAD})
"""Reserved entities that are read only if a caller names them."""


_LOOKUP_MAX: Final = "spark.sql.sources.parallelPartitionDiscovery.threshold"


_VERIFIED: Final = {"parquet.page.verify-checksum.enabled": "true"}
"""The option with which Spark verifies checksums. If a failing disk has altered data, this causes an error instead of
wrong rows."""


def paths_of_log(where: Files, entities: Sequence[str] | None, after: Position | None) -> list[str]:
    """Returns the paths of the archive's files, and then of those files of the log that are not archived yet.

    The newest file of the log is left out if it is incomplete. With `entities`, files of the archive are left out if
    they have no rows of these entities. With `after`, files are left out if they end at or before this position. Raises
    ChangelogError: PRECONDITION if there is no changelog, USAGE for an unknown entity.
    """
    recovery = find_recovery(where.path)
    manifest = read_manifest(where.path)
    if recovery.checkpoint is None and manifest is None:
        hint = "`changelog run` creates it; check [sink] path"
        raise ChangelogError(Kind.PRECONDITION, f"there is no changelog in {where.path}", hint=hint)
    entities_of_log = {*(recovery.checkpoint.settings if recovery.checkpoint else ()), *_entities(manifest)}
    if entities is not None and not entities_of_log.issuperset(entities):
        refuse_unknown(where, entities, {*entities_of_log, *counts(where.path)})
    sequences = range((manifest.log.last if manifest else 0) + 1, recovery.sequence + 1)
    if after is not None:
        sequences = sequences[bisect_right(sequences, after, key=lambda sequence: _last(where.path, sequence)) :]
    archived = [str((where.path / path).absolute()) for path in _listed(manifest, entities, after)]
    return [f"file:{path}" for path in [*archived, *(str(log_file(where.path, n).absolute()) for n in sequences)]]


def _last(path: Path, sequence: int) -> Position:
    position = read_checkpoint_of(log_file(path, sequence)).position
    assert position is not None  # a log file is never empty
    return position


def first_of_log(where: Files, manifest: Manifest) -> str | None:
    """Returns the last position in the oldest log file that is not archived; None if there is no such file."""
    sequence = manifest.log.last + 1
    return str(_last(where.path, sequence)) if log_file(where.path, sequence).exists() else None


def paths_of_archive(
    spark: SparkSession, where: Archive, entities: Sequence[str] | None, after: Position | None
) -> list[str]:
    """Returns the paths of the archive's files that can have rows of these entities after this position."""
    manifest = manifest_of(spark, where)
    refuse_unknown(where, entities or (), _entities(manifest))
    root = store_of(where.path, spark).root
    return [f"{root}/{path}" for path in _listed(manifest, entities, after)]


def manifest_of(spark: SparkSession, where: Archive) -> Manifest:
    """Returns the newest manifest of an archive. Raises ChangelogError (PRECONDITION) if the archive has none."""
    manifest = newest(store_of(where.path, spark))
    if manifest is None:
        hint = "spark_jobs/archive.py creates it; check the path"
        raise ChangelogError(Kind.PRECONDITION, f"{name_of(where)} has no manifest", hint=hint)
    return manifest


def _entities(manifest: Manifest | None) -> set[str]:
    return {file.entity for file in manifest.files} if manifest else set()


def _listed(manifest: Manifest | None, entities: Sequence[str] | None, after: Position | None) -> list[str]:
    return [
        file.path
        for file in (manifest.files if manifest else ())
        if (entities is None or file.entity in entities) and (after is None or file.last > str(after))
    ]


def refuse_unknown(where: Where, entities: Iterable[str], published_entities: Iterable[str]) -> None:
    """Raises ChangelogError (USAGE) for an entity that is neither in `published_entities` nor reserved."""
    unknown_names = sorted(set(entities) - {*published_entities, *ASIDE})
    if unknown_names:
        hint = f"it has: {', '.join(sorted(set(published_entities) - {*ASIDE})) or 'none yet'}"
        raise ChangelogError(Kind.USAGE, f"{name_of(where)} has no entity {unknown_names[0]}", hint=hint)


def read_parquet(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """Returns the rows of these Parquet files. `paths` may be empty; then there are no rows."""
    if not paths:
        return spark.createDataFrame([], ROWS)
    with _listing_in_driver(spark, paths):
        return spark.read.schema(ROWS).options(**_VERIFIED).parquet(*paths)


@contextmanager
def _listing_in_driver(spark: SparkSession, paths: Sequence[str]) -> Iterator[None]:
    """Makes the driver look up local files itself. For more than 32 paths, Spark would start tasks to do this."""
    if not paths[0].startswith("file:"):
        yield
        return
    old_max = str(spark.conf.get(_LOOKUP_MAX))
    spark.conf.set(_LOOKUP_MAX, max(len(paths), int(old_max)))
    try:
        yield
    finally:
        spark.conf.set(_LOOKUP_MAX, old_max)


def nullable(schema: Any) -> StructType:
    """Converts an Arrow schema to the Spark type of its rows. In the result, all columns are nullable."""
    return StructType([StructField(field.name, field.dataType) for field in from_arrow_schema(schema)])


ROWS: Final = nullable(SCHEMA)
"""The columns of a changelog, as a Spark type. They are nullable, because Spark makes all columns of files nullable."""
