"""Reads the changelog from Kafka's topics."""

import re
from collections.abc import Sequence
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

from changelog.connectors.kafka.java_client import java_options
from changelog.envelope.entity import RESERVED
from changelog.envelope.errors import ChangelogError, Kind
from changelog.spark_jobs.reading.decode_kafka import DECODED, OFFSET, PARTITION, decoder
from changelog.spark_jobs.reading.executor_registry import ExecutorRegistry
from changelog.spark_jobs.reading.read_files import ASIDE, ROWS, nullable, refuse_unknown
from changelog.spark_jobs.reading.where import Kafka, name_of

ANSWER_MS: Final = "15000"
"""How long Kafka may take to answer a request, in milliseconds."""


def kafka_options(where: Kafka) -> dict[str, str]:
    """Returns the options with which Spark's Kafka source and sink reach the cluster.

    With these options, Spark reads only committed messages.
    """
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
    """Decodes messages that Spark's Kafka source read with `kafka_options`: returns rows of `DECODED`.

    Tombstones are left out, because each of them follows a delete that says the same. If a message was too large for
    its topic, it was stored in parts. These parts are left out, too; `changelog tail dead` joins and shows them.
    """
    registry = None if where.registry is None else ExecutorRegistry.of_options(where.registry, where.registry_client)
    moves = F.filter("headers", lambda header: header["key"].isin("movedTo", "movedFrom"))
    part = F.exists(F.coalesce("headers", F.array()), lambda header: header["key"] == "deadPart")
    complete_messages = messages.where(F.col("value").isNotNull() & ~part)
    inputs = complete_messages.select("topic", "partition", "offset", "key", "value", moves.alias("moves"))
    return inputs.mapInArrow(decoder(where.prefix, registry), nullable(DECODED))


def read_topics(spark: SparkSession, where: Kafka, entities: Sequence[str] | None) -> DataFrame:
    """Returns the rows (`ROWS`) in the topics of these entities, or in all topics of the changelog if `entities` is
    None.

    The result includes all rows up to the changelog's present checkpoint.
    """
    parts = _parts(where)
    refuse_unknown(where, entities or (), parts)
    names = [name for name in sorted(parts if entities is None else entities) if name in parts]
    if not names:  # Only reserved entities are named, and they have no topic yet.
        return spark.createDataFrame([], ROWS)
    # This waits until the topics have all rows up to the checkpoint. Spark asks for the topics' ends later, and ends
    # never decrease, so Spark reads all these rows.
    kafka_log(where).complete_ends(names)
    options = kafka_options(where) | {
        "subscribe": ",".join(dict.fromkeys(topic for name in names for topic, _ in parts[name])),
        "startingOffsets": "earliest",
        "endingOffsets": "latest",
        "minPartitions": str(spark.sparkContext.defaultParallelism),
    }
    rows = decoded(spark.read.format("kafka").options(**options).load(), where)
    return rows.drop(PARTITION, OFFSET)


def subscription(where: Kafka, entities: Sequence[str] | None) -> dict[str, str]:
    """Returns the option that subscribes to the topics of these entities, or of all entities if `entities` is None.

    The option is a pattern. It also matches the topics that these entities get if they are repartitioned later, but not
    topics of deltas. It begins with ^ and ends with $, because Spark accepts a match anywhere in a topic's name.
    """
    reserved = "|".join(sorted(RESERVED))
    names = rf"(?!(?:{reserved})$)[a-z0-9_-]+" if entities is None else f"(?:{'|'.join(entities)})"
    return {"subscribePattern": rf"^{re.escape(where.prefix)}\.{names}(?:\.G[0-9]+)?$"}


def _parts(where: Kafka) -> dict[str, list[tuple[str, int]]]:
    """Returns the partitions of each entity that has a topic. Raises ChangelogError (PRECONDITION) if there is none."""
    from changelog.connectors.sinks.kafka.admin import topics  # noqa: PLC0415

    existing = topics.entities(_client(where).admin(), where.prefix)
    parts = {entity: existing[entity] for entity in sorted(existing) if entity not in RESERVED - {*ASIDE}}
    if not parts.keys() - {*ASIDE}:
        hint = "`changelog run` creates it; check [sink] prefix"
        raise ChangelogError(Kind.PRECONDITION, f"there is no topic of {name_of(where)}", hint=hint)
    return parts


def refuse_missing(where: Kafka, entities: Sequence[str]) -> None:
    """Raises ChangelogError (USAGE) for an entity that has no topic."""
    refuse_unknown(where, entities, _parts(where))


def _client(where: Kafka) -> Any:
    from changelog.connectors.kafka.client import Client  # noqa: PLC0415 - jobs over files need no Kafka client

    return Client(bootstrap_servers=where.bootstrap_servers, options=where.options)


def kafka_log(where: Kafka) -> Any:
    """Returns a reader that reads the changelog from Kafka in plain Python, without Spark."""
    from changelog.connectors.sinks.kafka.encoding.messages import JSON  # noqa: PLC0415
    from changelog.connectors.sinks.kafka.reading.log import KafkaLog  # noqa: PLC0415

    return KafkaLog(_client(where), JSON, prefix=where.prefix, name=where.name or where.prefix)
