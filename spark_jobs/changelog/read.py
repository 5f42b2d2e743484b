"""Reads a changelog into Spark, wherever it is: the file log, an archive, Kafka; the rows and columns are the same.

The columns are those of `envelope.batch.SCHEMA` (docs/reference/file-log.md). Rows have no order; order
them by `position`.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField, StructType

from connectors.config import Config, FilesConfig
from connectors.sinks.files.layout import Manifest, find_recovery, log_file, read_checkpoint_of, read_manifest
from connectors.sinks.files.log import counts
from envelope.batch import SCHEMA
from envelope.checkpoint import Checkpoint
from envelope.entity import DEAD, OF_CHANGELOG, RESERVED
from envelope.errors import ChangelogError, Kind
from envelope.position import Position
from spark_jobs.changelog.decode_kafka import DECODED, OFFSET, PARTITION, decoder
from spark_jobs.changelog.executor_registry import ExecutorRegistry
from spark_jobs.changelog.java_client import java_options
from spark_jobs.storage import manifest as manifests

ANSWER_MS: Final = "15000"
"""How long Kafka may take to answer one question."""

_ASIDE: Final = sorted({*OF_CHANGELOG, DEAD})
"""Entities that are read only where they are asked for by name."""

_LOOKUP_MAX: Final = "spark.sql.sources.parallelPartitionDiscovery.threshold"

_VERIFIED: Final = {"parquet.page.verify-checksum.enabled": "true"}
"""What a failing disk altered is an error, not a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """The file log in the folder `path`, with what of it stands in its archive."""

    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """The archive that `spark_jobs/archive.py` keeps at `path`, a path or a URI of any of Spark's file systems."""

    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Kafka:
    """The topics of `prefix`; `name` is that of the source, and `options` and `registry_client` are as in `[sink]`."""

    bootstrap_servers: str
    prefix: str
    name: str | None = None
    codec: str = "json"
    registry: str | None = field(default=None, repr=False)
    registry_client: Mapping[str, Any] = field(default_factory=dict, repr=False)
    options: Mapping[str, str] = field(default_factory=dict, repr=False)


Where = Files | Archive | Kafka


def where_of(config: Config) -> Files | Kafka:
    """Where the service publishes to."""
    sink = config.sink
    if isinstance(sink, FilesConfig):
        return Files(path=sink.path)
    return Kafka(
        bootstrap_servers=sink.bootstrap_servers,
        prefix=config.prefix,
        name=config.name,
        codec=sink.codec,
        registry=sink.registry,
        registry_client=sink.registry_client,
        options=sink.client,
    )


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
            rows = _read_parquet(spark, _files(where, names, after))
        case Archive():
            rows = _read_parquet(spark, _archived(spark, where, names, after))
        case Kafka():
            rows = _read_kafka(spark, where, names)
    chosen = F.col("entity").isin(names) if names is not None else ~F.col("entity").isin(_ASIDE)
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
        _refuse_missing(where, names)
    source_options = {
        "startingOffsets": "earliest",
        **kafka_options(where),
        **_subscription(where, names),
        **(options or {}),
    }
    return decoded(spark.readStream.format("kafka").options(**source_options).load(), where)


def kafka_options(where: Kafka) -> dict[str, str]:
    """What Spark's Kafka source and its sink are told to reach the cluster; a reader sees only what is committed."""
    return {
        "kafka.bootstrap.servers": where.bootstrap_servers,
        "kafka.isolation.level": "read_committed",
        "kafka.default.api.timeout.ms": ANSWER_MS,
        "kafka.request.timeout.ms": ANSWER_MS,
        "includeHeaders": "true",
        "failOnDataLoss": "true",
        **{f"kafka.{name}": value for name, value in java_options(where.options).items()},
    }


def decoded(messages: DataFrame, where: Kafka) -> DataFrame:
    """Rows of what Spark's Kafka source gives, read with `kafka_options`: with `kafka_partition` and `offset`.

    Tombstones are left out, which say nothing that their delete did not say, and so are the parts of messages that were
    too large for their topic: `changelog tail dead` puts them together.
    """
    registry = None if where.registry is None else ExecutorRegistry.of_options(where.registry, where.registry_client)
    moves = F.filter("headers", lambda header: header["key"].isin("movedTo", "movedFrom"))
    part = F.exists(F.coalesce("headers", F.array()), lambda header: header["key"] == "deadPart")
    whole = messages.where(F.col("value").isNotNull() & ~part)
    inputs = whole.select("topic", "partition", "offset", "key", "value", moves.alias("moves"))
    return inputs.mapInArrow(decoder(where.prefix, registry), _nullable(DECODED))


def end_of(spark: SparkSession, where: Where) -> Position | None:
    """The position up to which the changelog holds everything; None while it is empty."""
    match where:
        case Files():
            return _reached(find_recovery(where.path).checkpoint)
        case Archive():
            last = max((file.last for file in _manifest(spark, where).files), default=None)
            return None if last is None else Position.parse(last)
        case Kafka():
            return _reached(_kafka_log(where).checkpoint())


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
    manifest = manifests.newest(manifests.store_of(path, spark))
    changes = () if manifest is None else (file for file in manifest.files if file.entity not in OF_CHANGELOG)
    earliest = min((file.first for file in changes), default=None)
    if earliest is not None and earliest > str(reached):
        raise ChangelogError(
            Kind.GAP,
            f"history lost: {what} {reached}, and {path} begins at {earliest}",
            hint="begin anew, in an empty one",
        )


def name_of(where: Where) -> str:
    """The changelog, as errors and plans name it."""
    match where:
        case Files():
            return f"the changelog in {where.path}"
        case Archive():
            return f"the archive in {where.path}"
        case Kafka():
            return f"the changelog {where.prefix} at {where.bootstrap_servers}"


def _reached(checkpoint: Checkpoint | None) -> Position | None:
    """Every transaction that committed before `through_lsn` is there."""
    if checkpoint is None:
        return None
    whole = Position(checkpoint.epoch, checkpoint.through_lsn, 0)
    return whole if checkpoint.position is None else max(checkpoint.position, whole)


# Files


def _files(where: Files, entities: Sequence[str] | None, after: Position | None) -> list[str]:
    """The archive's files, then those of the log behind it; a newest file that is not whole counts for nothing."""
    recovery = find_recovery(where.path)
    manifest = read_manifest(where.path)
    if recovery.checkpoint is None and manifest is None:
        hint = "`changelog run` begins it; see [sink] path"
        raise ChangelogError(Kind.PRECONDITION, f"there is no changelog in {where.path}", hint=hint)
    known = {*(recovery.checkpoint.settings if recovery.checkpoint else ()), *_entities(manifest)}
    if entities is not None and not known.issuperset(entities):
        _refuse_unknown(where, entities, {*known, *counts(where.path)})
    sequences = range((manifest.log.last if manifest else 0) + 1, recovery.sequence + 1)
    if after is not None:
        sequences = sequences[bisect_right(sequences, after, key=lambda sequence: _last(where.path, sequence)) :]
    archived = [str((where.path / path).absolute()) for path in _listed(manifest, entities, after)]
    return [f"file:{path}" for path in [*archived, *(str(log_file(where.path, n).absolute()) for n in sequences)]]


def _last(path: Path, sequence: int) -> Position:
    position = read_checkpoint_of(log_file(path, sequence)).position
    assert position is not None  # a log file holds rows
    return position


def _archived(spark: SparkSession, where: Archive, entities: Sequence[str] | None, after: Position | None) -> list[str]:
    manifest = _manifest(spark, where)
    _refuse_unknown(where, entities or (), _entities(manifest))
    root = manifests.store_of(where.path, spark).root
    return [f"{root}/{path}" for path in _listed(manifest, entities, after)]


def _manifest(spark: SparkSession, where: Archive) -> Manifest:
    manifest = manifests.newest(manifests.store_of(where.path, spark))
    if manifest is None:
        hint = "spark_jobs/archive.py makes it; is this its path?"
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


def _refuse_unknown(where: Where, entities: Iterable[str], known: Iterable[str]) -> None:
    missing = sorted(set(entities) - {*known, *_ASIDE})
    if missing:
        hint = f"it has: {', '.join(sorted(set(known) - {*_ASIDE})) or 'none yet'}"
        raise ChangelogError(Kind.USAGE, f"{name_of(where)} has no entity {missing[0]}", hint=hint)


def _read_parquet(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    if not paths:
        return spark.createDataFrame([], ROWS)
    with _looked_up_here(spark, paths):
        return spark.read.schema(ROWS).options(**_VERIFIED).parquet(*paths)


@contextmanager
def _looked_up_here(spark: SparkSession, paths: Sequence[str]) -> Iterator[None]:
    """Has the driver look up files of its own machine; of more than 32, Spark makes a task each."""
    if not paths[0].startswith("file:"):
        yield
        return
    before = str(spark.conf.get(_LOOKUP_MAX))
    spark.conf.set(_LOOKUP_MAX, max(len(paths), int(before)))
    try:
        yield
    finally:
        spark.conf.set(_LOOKUP_MAX, before)


# Kafka


def _read_kafka(spark: SparkSession, where: Kafka, entities: Sequence[str] | None) -> DataFrame:
    known = _topics(where)
    _refuse_unknown(where, entities or (), known)
    names = [name for name in (known if entities is None else entities) if name in known]
    if not names:  # of the reserved ones
        return spark.createDataFrame([], ROWS)
    options = kafka_options(where) | {
        **_subscription(where, names),
        "startingOffsets": "earliest",
        "endingOffsets": "latest",
        "minPartitions": str(spark.sparkContext.defaultParallelism),
    }
    rows = decoded(spark.read.format("kafka").options(**options).load(), where)
    return rows.drop(PARTITION, OFFSET)


def _subscription(where: Kafka, entities: Sequence[str] | None) -> dict[str, str]:
    """Topics by name, or those of all entities; those of deltas have one more dot in their names.

    Spark is content with a pattern that is found somewhere in a name.
    """
    if entities is not None:
        return {"subscribe": ",".join(f"{where.prefix}.{entity}" for entity in entities)}
    reserved = "|".join(sorted(RESERVED))
    return {"subscribePattern": rf"^{re.escape(where.prefix)}\.(?!(?:{reserved})$)[a-z0-9_-]+$"}


def _topics(where: Kafka) -> list[str]:
    """The entities that have a topic. Raises PRECONDITION when there is none."""
    from connectors.sinks.kafka import topics  # noqa: PLC0415

    topic_entities = topics.entities(_client(where).admin(), where.prefix)
    names = [entity for entity in topic_entities if entity not in RESERVED - {*_ASIDE}]
    if not set(names) - {*_ASIDE}:
        hint = "`changelog run` makes it; see [sink] prefix"
        raise ChangelogError(Kind.PRECONDITION, f"there is no topic of {name_of(where)}", hint=hint)
    return sorted(names)


def _refuse_missing(where: Kafka, entities: Sequence[str]) -> None:
    _refuse_unknown(where, entities, _topics(where))


def _client(where: Kafka) -> Any:
    from connectors.sinks.kafka.client import Client  # noqa: PLC0415, jobs over files need no Kafka client

    return Client(bootstrap_servers=where.bootstrap_servers, options=where.options)


def _kafka_log(where: Kafka) -> Any:
    from connectors.sinks.kafka.log import KafkaLog  # noqa: PLC0415
    from connectors.sinks.kafka.messages import JSON  # noqa: PLC0415

    return KafkaLog(_client(where), JSON, prefix=where.prefix, name=where.name or where.prefix)


def _nullable(schema: Any) -> StructType:
    return StructType([StructField(field.name, field.dataType) for field in from_arrow_schema(schema)])


ROWS: Final = _nullable(SCHEMA)
"""The columns of a changelog, as Spark has them: what it reads from files may be null, it says."""
