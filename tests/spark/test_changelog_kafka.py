"""Tests that Spark reads the same rows from Kafka topics as from files, after one workload was published to both."""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession

from changelog.connectors import config
from changelog.connectors.kafka import client
from changelog.connectors.servers.kafka import Broker
from changelog.connectors.service.service import Service
from changelog.connectors.sinks.kafka.reading import complete_ends
from changelog.connectors.sinks.kafka.sink import KafkaSettings
from changelog.connectors.wiring.sinks import open_log
from changelog.envelope import canonical
from changelog.envelope.entity import SCHEMAS
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.position import Position
from changelog.spark_jobs.reading.as_of import resolve
from changelog.spark_jobs.reading.decode_kafka import OFFSET, PARTITION
from changelog.spark_jobs.reading.read import end_of, read_changelog, stream_changelog
from changelog.spark_jobs.reading.read_kafka import kafka_options
from changelog.spark_jobs.reading.where import Kafka, Where, where_of
from changelog.spark_jobs.runner.spark_errors import explain
from changelog.spark_jobs.views import plan
from tests.integration.kafka.topics import opened, settled, store
from tests.integration.kafka.unfinished import SOURCE, change, send, store_checkpoint, transaction
from tests.integration.site import Running
from tests.patience import PATIENCE_S, PROGRAM_S
from tests.servers import fetched
from tests.servers.registry import Registry

TABLES = """
CREATE TABLE guest (id int PRIMARY KEY, name text, tags text[], doc json);
CREATE TABLE orders (id bigint PRIMARY KEY, guest_id int NOT NULL, amount numeric(10,2), at timestamptz, note text);
ALTER TABLE orders REPLICA IDENTITY FULL
"""

ENTITIES = """
[entities.guest]
table = "public.guest"
partitions = 2
on_truncate = "publish"
[entities.order]
table = "public.orders"
partition_by = ["guest_id"]
partitions = 2
"""

WORKLOAD = """
INSERT INTO guest SELECT n, 'g' || n, ARRAY['a', null, 'é'], '{"x": 1.50, "y": [1e+2]}' FROM generate_series(1, 9) n;
INSERT INTO orders SELECT n, n % 9 + 1, n * 1.5, '2026-11-21 03:10:02.5+00', repeat('x', n)
    FROM generate_series(1, 60) n;
UPDATE guest SET name = null WHERE id < 4;
UPDATE guest SET id = id + 100 WHERE id IN (5, 6);
UPDATE orders SET guest_id = guest_id % 9 + 1, amount = 'NaN' WHERE id < 20;
DELETE FROM orders WHERE id % 7 = 0;
INSERT INTO orders VALUES (7, 1, 0, 'infinity', 'again');
BEGIN; SELECT pg_logical_emit_message(true, 'provenance',
    '{"apiVersion": "v2", "serviceName": "order-api", "identifier": "req-é",
     "context": {"n": 1.50, "source": {"position": "x"}}}');
UPDATE orders SET note = 'stamped'; COMMIT;
TRUNCATE guest;
INSERT INTO guest VALUES (1, 'last', null, null)
"""


def load(dsn: str, folder: Path, suffix: str, sink: str) -> config.Config:
    """Returns the configuration of a service that publishes the database to this sink."""
    name = f"{psycopg.conninfo.conninfo_to_dict(dsn)['dbname']}_{suffix}"
    file = folder / f"{suffix}.toml"
    source = f'source = {{ kind = "postgres", dsn = {json.dumps(dsn)} }}'
    head = f'name = "{name}"\n{source}\nservice = {{ listen = "127.0.0.1:0" }}\nsink = {{ {sink} }}\n'
    file.write_text(head + ENTITIES, "utf-8")
    return config.load(file, os.environ)


@pytest.fixture
def configs(spark: SparkSession, database: str, broker: Broker, tmp_path: Path) -> list[config.Config]:
    """The configurations of two services. One publishes into files, the other to Kafka in JSON."""
    fetched("jars")
    at = f'kind = "kafka", bootstrap_servers = "{broker.bootstrap_servers}"'
    return [
        load(database, tmp_path, "files", 'path = "log", commit_seconds = 0.05'),
        load(database, tmp_path, "json", at),
    ]


def publish(dsn: str, configs: list[config.Config]) -> None:
    """Runs the workload, and waits until each service has published all of it."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(TABLES.encode())
        services: list[Running] = []
        try:
            for service_config in configs:  # one at a time: `said` shows only the log of the last service
                services.append(running := Running(Service(service_config)))
                running.until(lambda running=running: _streams(running))  # type: ignore[misc]
            for statement in WORKLOAD.split(";\n"):
                connection.execute(statement.encode())
            for service, service_config in zip(services, configs, strict=True):
                log = open_log(service_config)
                service.until(lambda log=log: _is_complete(log))  # type: ignore[misc]
        finally:
            for service in services:
                service.stop()
        for service in services:
            service.check()
    for where in map(where_of, configs):
        if isinstance(where, Kafka):
            parts = [(f"{where.prefix}.{name}", number) for name in ("guest", "order") for number in range(2)]
            settled(client.Client(bootstrap_servers=where.bootstrap_servers), parts)


def _streams(service: Running) -> bool:
    return service.said("service started") and service.phase == "streaming"


def _is_complete(log: Any) -> bool:
    return any(
        '"last"' in (row or "") for rows in log.read(entity="guest") for row in rows.column("current").to_pylist()
    )


def rows_of(changes: DataFrame) -> list[dict[str, Any]]:
    """Returns the rows sorted by position. Leaves out the service's name, because it differs between the changelogs."""
    rows = [row.asDict() for row in changes.drop(PARTITION, OFFSET).collect()]
    rows.sort(key=lambda row: (row["position"], row["partition"]))
    for row in rows:
        provenance = json.loads(row["provenance"])
        del provenance["source"]["name"]
        row["provenance"] = provenance
    return rows


def plain(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Replaces each state by its canonical text, because Avro does not keep a value's original text."""
    return [
        {**row, **{side: row[side] and canonical.text(row[side]) for side in ("current", "original")}} for row in rows
    ]


def test_files_and_topics_hold_the_same_rows(
    spark: SparkSession, database: str, configs: list[config.Config], broker: Broker, registry: Registry, tmp_path: Path
) -> None:
    avro = f'kind = "kafka", bootstrap_servers = "{broker.bootstrap_servers}", codec = "avro"'
    configs.append(load(database, tmp_path, "avro", f'{avro}, registry = "{registry.url}", auto_register = true'))
    publish(database, configs)
    files, topics, avro_topics = map(where_of, configs)
    expected = rows_of(read_changelog(spark, files))
    assert {row["op"] for row in expected} == {"create", "update", "delete", "truncate"}
    assert any(row["moved"] for row in expected)
    assert rows_of(read_changelog(spark, topics)) == expected
    assert plain(rows_of(read_changelog(spark, avro_topics))) == plain(expected)
    for where in (files, topics):
        guests = [row for row in expected if row["entity"] == "guest"]
        assert rows_of(read_changelog(spark, where, entities=["guest"])) == guests
        middle = Position.parse(expected[len(expected) // 2]["position"])
        assert rows_of(read_changelog(spark, where, after=middle)) == [
            row for row in expected if row["position"] > str(middle)
        ]
        end = end_of(spark, where)
        assert end is not None
        assert str(end) > expected[-1]["position"]
        with pytest.raises(ChangelogError, match="is beyond the end"):
            read_changelog(spark, where, after=replace(end, commit=end.commit + (1 << 30)))
    versions = rows_of(read_changelog(spark, topics, entities=[SCHEMAS]))
    assert versions == rows_of(read_changelog(spark, files, entities=[SCHEMAS]))
    assert {row["key"] for row in versions} <= {"guest", "order"}
    _check_stream(spark, avro_topics, expected, tmp_path)
    _check_views(spark, [files, topics, avro_topics])
    _check_unknown_schema(spark, avro_topics, broker)
    _check_aborted_message(spark, topics, broker, expected)


def _check_stream(spark: SparkSession, where: Any, expected: list[dict[str, Any]], folder: Path) -> None:
    """Checks that a stream of the changelog's changes has the expected rows."""
    out, at = folder / f"{where.prefix}.parquet", folder / f"{where.prefix}.checkpoint"
    changes = stream_changelog(spark, where, options={"maxOffsetsPerTrigger": "200"})
    query = changes.writeStream.format("parquet").option("checkpointLocation", str(at)).trigger(availableNow=True)
    query.start(str(out)).awaitTermination()
    streamed = spark.read.parquet(str(out))
    assert streamed.where("partition != kafka_partition").count() == 0
    assert streamed.select("entity", PARTITION, OFFSET).distinct().count() == len(expected)
    assert plain(rows_of(streamed)) == plain(expected)


def _check_views(spark: SparkSession, changelogs: Sequence[Where]) -> None:
    """Checks that the same view of each changelog has the same rows."""
    orders = config.NestedConfig(entity="order", on={"guest_id": "id"})
    views = []
    before = _persistent(spark)
    for where in changelogs:
        position = resolve(spark, where, None)
        columns = plan.columns_of(spark, where, ["guest", "order"], position, None)
        view_plan = plan.ViewPlan(view=config.ViewConfig(entity="guest", nested={"orders": orders}), columns=columns)
        with plan.build(spark, where, view_plan, position) as rows:
            views.append(rows.collect())
    assert views[1:] == [views[0], views[0]]
    ((guest,),) = [views[0]]
    assert guest["name"] == "last"
    assert len(guest["orders"]) > 1
    assert _persistent(spark) <= before


def _persistent(spark: SparkSession) -> set[int]:
    """Returns the ids of the session's cached RDDs. There can be some from earlier tests, because Delta Lake caches the
    state of the tables that they wrote.
    """
    return set(spark.sparkContext._jsc.getPersistentRDDs())


def _check_unknown_schema(spark: SparkSession, where: Any, broker: Broker) -> None:
    """Checks that a message with an unknown schema is reported in one line."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce(f"{where.prefix}.guest", b"\0\0\x0f\xff\xff\0", b"1", 1)
    assert producer.flush(PATIENCE_S) == 0
    with pytest.raises(Exception) as caught:  # noqa: PT011  # an exception of Spark's own
        read_changelog(spark, where, entities=["guest"]).collect()
    message = str(explain(caught.value))
    assert "schema 1048575 is unknown to the registry" in message
    assert f"{where.prefix}.guest, partition 1, offset " in message
    assert "\n" not in message
    assert read_changelog(spark, where, entities=["order"]).count() > 0


def _check_aborted_message(spark: SparkSession, where: Any, broker: Broker, expected: list[dict[str, Any]]) -> None:
    """Checks that a message of an open or aborted transaction is not read."""
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "transactional.id": f"{where.prefix}-test",
            "transaction.timeout.ms": int(PROGRAM_S * 1000),  # the transaction stays open while Spark reads
        }
    )
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce(f"{where.prefix}.guest", b"{}", b"1", 1)
    assert producer.flush(PATIENCE_S) == 0
    assert rows_of(read_changelog(spark, where)) == expected
    producer.abort_transaction(PATIENCE_S)
    assert rows_of(read_changelog(spark, where)) == expected


def test_a_changelog_is_read_up_to_its_checkpoint_or_not_at_all(
    spark: SparkSession, broker: Broker, own_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched("jars")
    monkeypatch.setattr(complete_ends, "WAIT_S", 1.0)
    where = Kafka(bootstrap_servers=broker.bootstrap_servers, prefix=own_name, name=SOURCE)
    broker_client = client.Client(bootstrap_servers=broker.bootstrap_servers)
    settings = KafkaSettings(client=broker_client, name=SOURCE, prefix=own_name)
    with opened(settings) as sink:
        store(sink, 1, change(1))
    with transaction(settings, "rows") as rows:
        send(rows, settings, [change(2)])
        store_checkpoint(settings, 2)
        assert resolve(spark, where, None).commit == 2
        with pytest.raises(
            ChangelogError, match=rf"^reading topic {own_name}\.order, partition 0: a transaction has been"
        ):
            read_changelog(spark, where)
        rows.commit_transaction(PATIENCE_S)
    keys = read_changelog(spark, where).select("key").collect()
    assert sorted(row["key"] for row in keys) == ["1", "2"]


def test_a_missing_topic_is_reported_in_one_line(spark: SparkSession, broker: Broker) -> None:
    fetched("jars")
    where = Kafka(bootstrap_servers=broker.bootstrap_servers, prefix="nothing")
    with pytest.raises(ChangelogError, match="there is no topic of the changelog nothing at") as caught:
        read_changelog(spark, where)
    assert caught.value.kind is Kind.PRECONDITION
    with pytest.raises(ChangelogError, match="there is no topic of the changelog nothing at"):
        stream_changelog(spark, where, entities=["order"])
    options = {**kafka_options(where), "subscribe": "nothing.order"}
    with pytest.raises(Exception) as from_spark:  # noqa: PT011  # an exception of Spark's own
        spark.read.format("kafka").options(**options).load().collect()
    assert str(explain(from_spark.value)).startswith("Kafka has no such topic; ")


def test_a_broker_that_does_not_answer_is_reported_in_one_line(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched("jars")
    monkeypatch.setattr(client, "TIMEOUT_S", 1.0)
    where = Kafka(bootstrap_servers="127.0.0.1:1", prefix="nothing")
    with pytest.raises(ChangelogError, match="asking Kafka for its topics") as caught:
        read_changelog(spark, where)
    assert caught.value.kind is Kind.CONNECTION
    options = {
        **kafka_options(where),
        "kafka.default.api.timeout.ms": "1000",
        "kafka.request.timeout.ms": "1000",
        "subscribe": "nothing.order",
        "fetchOffset.numRetries": "1",
    }
    with pytest.raises(Exception) as from_spark:  # noqa: PT011  # an exception of Spark's own
        spark.read.format("kafka").options(**options).load().collect()
    error = explain(from_spark.value)
    assert (error.kind, error.message) == (Kind.CONNECTION, "Kafka does not answer")
