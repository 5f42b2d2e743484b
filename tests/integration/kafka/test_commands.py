"""Tests the commands of `changelog` on a changelog in Kafka, from its first row until its topics are dropped."""

import json
import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from changelog.connectors import cli, config
from changelog.connectors.kafka import client
from changelog.connectors.kafka.client import Client
from changelog.connectors.servers.kafka import Broker, temporary_broker
from changelog.connectors.service.service import Service
from changelog.connectors.sinks.kafka.admin.topics import Topic, delta_topics_of, ensure, read
from changelog.connectors.sinks.kafka.encoding.messages import JSON
from changelog.connectors.sinks.kafka.sink import KafkaSettings, KafkaSink
from changelog.connectors.wiring.sinks import open_log
from changelog.envelope.errors import Kind
from tests.integration.site import Running
from tests.patience import until
from tests.servers import kafka_lib
from tests.servers.registry import Registry
from tests.unit.records import checkpoint

TABLES = """
CREATE TABLE guest (id int PRIMARY KEY, name text NOT NULL);
CREATE TABLE orders (id int PRIMARY KEY, status text);
ALTER TABLE orders REPLICA IDENTITY FULL;
INSERT INTO guest VALUES (1, 'Ada');
"""


ANY_RULE = AclBindingFilter(
    ResourceType.ANY,
    None,  # type: ignore[arg-type]
    ResourcePatternType.ANY,
    None,  # type: ignore[arg-type]  # None matches any value
    None,  # type: ignore[arg-type]
    AclOperation.ANY,
    AclPermissionType.ANY,
)


class Site:
    """A database, a service that publishes it to a broker, and the commands of `changelog` on this service."""

    def __init__(self, dsn: str, broker: Broker, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.dsn, self._capsys = dsn, capsys
        self.name = str(psycopg.conninfo.conninfo_to_dict(dsn)["dbname"])
        self.file = folder / "changelog.toml"
        self.broker = broker
        self.configure("")

    def configure(self, sink: str, rest: str = "") -> None:
        self.file.write_text(f"""
            name = {json.dumps(self.name)}
            source = {{ kind = "postgres", dsn = {json.dumps(self.dsn)} }}
            service = {{ listen = "127.0.0.1:0" }}
            tables = {{ include = ["public.*"] }}
            [sink]
            kind = "kafka"
            bootstrap_servers = "{self.broker.bootstrap_servers}"
            {sink}
            {rest}
        """)

    def sql(self, *statements: str) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def call(self, *words: str) -> tuple[int, str, str]:
        """Runs a command. Returns its exit code, its output and its errors, without the lines of the log."""
        self._capsys.readouterr()
        code = cli.main([words[0], "--config", str(self.file), *words[1:]])
        output = self._capsys.readouterr()
        return code, output.out, "".join(line for line in output.err.splitlines() if not line.startswith("{"))

    def messages(self, *words: str) -> list[tuple[str, str, str]]:
        """Returns the entity, the key and the operation of each message that `tail` or `history` prints."""
        code, out, err = self.call(*words, "--json")
        assert (code, err) == (0, "")
        messages = [json.loads(line) for line in out.splitlines()]
        return [
            (message["entity"], message["key"], message["value"]["provenance"]["source"]["op"]) for message in messages
        ]

    def findings(self) -> dict[str, list[str]]:
        messages: dict[str, list[str]] = {"ok": [], "warn": [], "fail": []}
        _, out, err = self.call("check", "--json")
        assert err == ""
        for finding in json.loads(out):
            messages[finding["status"]].append(f"{finding['name']}: {finding['message']}")
        return messages

    def service(self) -> Running:
        return Running(Service(config.load(self.file, os.environ)))

    def publish(self, count: int) -> None:
        """Runs the service until the changelog has `count` rows."""
        log = open_log(config.load(self.file, os.environ))
        service = self.service()
        try:
            service.until(lambda: log.checkpoint() is not None)
            service.until(lambda: sum(rows.num_rows for rows in log.read()) >= count)
        finally:
            service.stop()
        service.check()


@pytest.fixture
def site(database: str, broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Site:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(TABLES.encode())
    return Site(database, broker, tmp_path, capsys)


def test_the_life_of_a_changelog_from_the_first_row_to_the_drop(site: Site) -> None:
    code, _, err = site.call("tail")
    assert code == 3
    assert f"there is no topic of the changelog {site.name} at " in err
    assert json.loads(site.call("status", "--json")[1])["entities"] == {}
    findings = site.findings()
    assert findings["fail"] == []
    transactions = f"transactions: the service's user may begin transactions as changelog.{site.name}.{site.name}"
    assert transactions in findings["ok"]

    site.publish(1)
    site.sql(
        "INSERT INTO orders VALUES (7, 'NEW'), (8, 'NEW')",
        "UPDATE orders SET status = 'PAID' WHERE id = 7",
        "DELETE FROM orders WHERE id = 7",
    )
    site.publish(5)
    changes_of_7 = [("orders", "7", op) for op in ("create", "update", "delete")]
    assert site.messages("tail", "--no-follow", "-n", "3") == [("orders", "8", "create"), *changes_of_7[1:]]
    assert site.messages("tail", "guest", "--no-follow") == [("guest", "1", "read")]
    assert site.messages("history", "orders", "7") == changes_of_7
    assert "orders 7  3 changes" in site.call("history", "orders", "7")[1]
    for command in (["tail", "ordrs"], ["history", "ordrs", "7"]):
        code, _, err = site.call(*command)
        assert code == 2
        assert err.endswith("has no entity ordrs; it has: dead, gaps, guest, orders")

    status = json.loads(site.call("status", "--json")[1])
    assert status["entities"]["orders"]["messages"] >= 4
    assert status["lag"]["bytes"] is not None
    assert status["position"] is not None
    assert "messages (at most)" in site.call("status")[1]
    assert "rights: the service's user may read and write all 6 topics" in site.findings()["ok"]

    _create_delta_topic(site, "orders")
    assert f"topic {site.name}.orders.delta: 1 partitions, set as configured" in site.findings()["ok"]
    code, out, _ = site.call("drop", "--topics", "--positions")
    assert code == 0
    assert f"topic        {site.name}.orders.delta: 0 messages" in out
    assert f"topic        {site.name}.orders: " in out
    assert f"positions    {site.name}: there\nnothing is dropped" in out
    code, out, _ = site.call("drop", "--topics", "--positions", "--slot", "--yes")
    assert code == 0
    dropped = [f"slot {site.name}", "3 topics", f"the checkpoint of the source {site.name}"]
    assert out.splitlines()[-3:] == [f"dropped {thing}" for thing in dropped]
    log = open_log(config.load(site.file, os.environ))
    assert log.checkpoint() is None
    assert log.counts().keys() == {"dead", "gaps"}
    assert f"{site.name}.orders.delta" not in Client(bootstrap_servers=site.broker.bootstrap_servers).admin().topics()


def _create_delta_topic(site: Site, entity: str) -> None:
    """Creates the topic of an entity's deltas, as the Spark job `derive_deltas.py` does."""
    client = Client(bootstrap_servers=site.broker.bootstrap_servers)
    name = f"{site.name}.{entity}"
    topics = read(client.admin(), [Topic(name=name, partitions=0, settings={})])
    ensure(client, delta_topics_of(topics), create=True, replication_factor=None)


def test_accept_gets_past_a_stop_and_commands_refuse_to_change_a_running_service(site: Site) -> None:
    site.publish(1)
    site.sql("TRUNCATE orders", "INSERT INTO orders VALUES (1, 'NEW')")
    error = site.service().ended()
    assert error.position is not None
    code, out, err = site.call("accept", str(error.position), "--as", "skip")
    assert (code, err) == (0, "")
    assert out.startswith(f"{error.position}: skip")
    site.publish(2)
    assert site.messages("tail", "orders", "--no-follow") == [("orders", "1", "create")]
    code, _, err = site.call("accept", str(error.position), "--as", "skip")
    assert code == 2
    assert "the changelog is past this position already" in err
    service = site.service()
    try:
        service.until(lambda: service.said("streaming"))
        for command in (
            ["accept", "00000009/0000000000000001/00000002", "--as", "skip"],
            ["drop", "--topics", "--yes"],
        ):
            code, _, err = site.call(*command)
            assert code == 3
            assert "in use by" in err or "is read by" in err
        assert all(
            not message.startswith("transactions") for messages in site.findings().values() for message in messages
        )
        site.sql("INSERT INTO orders VALUES (2, 'NEW')")
        log = open_log(config.load(site.file, os.environ))
        service.until(lambda: sum(rows.num_rows for rows in log.read(entity="orders")) == 2)
    finally:
        service.stop()
    service.check()


@pytest.mark.parametrize("decision", ["skip", "dead-letter"])
def test_accept_gets_past_a_stop_at_a_message_that_is_too_large(site: Site, decision: str) -> None:
    site.publish(1)
    large_row = "SELECT 1, string_agg(md5(n::text), '') FROM generate_series(1, 40000) AS n"
    site.sql(f"INSERT INTO orders {large_row}", "INSERT INTO orders VALUES (2, 'NEW')")
    error = site.service().ended()
    assert "a message to" in str(error)
    code, _, err = site.call("accept", str(error.position), "--as", "default")
    assert code == 2
    assert "--as default does not resolve this stop" in err
    [finding] = [message for message in site.findings()["fail"] if message.startswith("stop: ")]
    assert f"the service stopped at {error.position}" in finding
    assert site.call("accept", str(error.position), "--as", decision)[0] == 0
    assert not [message for message in site.findings()["fail"] if message.startswith("stop: ")]
    service, log = site.service(), open_log(config.load(site.file, os.environ))
    try:
        service.until(lambda: sum(rows.num_rows for rows in log.read(entity="orders")) == 1)
    finally:
        service.stop()
    service.check()
    dead = [("dead", str(error.position), "create")] if decision == "dead-letter" else []
    assert site.messages("tail", "--no-follow", "-n", "50")[-len(dead) - 1 :] == [*dead, ("orders", "2", "create")]


def test_accept_refuses_an_empty_changelog(site: Site) -> None:
    code, _, err = site.call("accept", "00000001/0000000000000004/00000002", "--as", "skip")
    assert code == 2
    assert "the changelog is empty" in err


def test_a_broker_that_cannot_be_reached_is_a_finding(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "TIMEOUT_S", 2.0)
    site.broker = Broker(site.broker.lib, site.file.parent / "none", port=1)
    site.configure('client = { "socket.connection.setup.timeout.ms" = "1000" }')
    failures = site.findings()["fail"]
    assert [message.partition(":")[0] for message in failures] == ["kafka"]
    code, out, err = site.call("drop", "--topics", "--yes")
    assert code == 3
    assert "topics       unknown: " in out
    assert len(err.splitlines()) == 1


def test_another_source_of_the_same_topics_is_a_finding(site: Site) -> None:
    site.publish(1)
    assert f"sources: no other source publishes to the topics of {site.name}" in site.findings()["ok"]
    client = Client(bootstrap_servers=site.broker.bootstrap_servers)
    with closing(KafkaSink(KafkaSettings(client=client, name="other", prefix=site.name), JSON)) as other:
        other.recover()
        other.commit(replace(checkpoint(1), settings={"orders": {}}))
    [finding] = site.findings()["fail"]
    both = f"the source other already publishes to the topic {site.name}.orders, and so would {site.name}: "
    assert finding.startswith(f"sources: {both}")
    assert site.service().ended().kind is Kind.PRECONDITION


def test_topics_cannot_be_dropped_from_a_file_log(site: Site) -> None:
    site.file.write_text(site.file.read_text().partition("[sink]")[0] + '[sink]\npath = "log"')
    code, _, err = site.call("drop", "--topics", "--yes")
    assert code == 2
    assert "--topics and --positions are for Kafka, but the sink is files" in err


def test_schemas_that_the_registry_lacks_are_findings(site: Site, registry: Registry) -> None:
    site.configure(f'codec = "avro"\nregistry = "{registry.url}"')
    subjects = [f"registry: {site.name}.{entity}-value" for entity in ("guest", "orders")]
    assert [failure.partition(" would")[0] for failure in site.findings()["fail"]] == subjects
    assert site.call("schemas", "register", "--yes")[0] == 0
    findings = site.findings()
    assert findings["fail"] == []
    assert {f"{subject} is registered" for subject in subjects} <= set(findings["ok"])
    site.publish(1)
    assert site.messages("history", "guest", "1") == [("guest", "1", "read")]
    site.configure('codec = "json"')
    code, _, err = site.call("history", "guest", "1")
    assert code == 3
    assert "a message is in Avro, not in JSON" in err


def test_rights_that_are_missing_are_findings(
    database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The broker allows every action for which it has no rule."""
    rules = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    with temporary_broker(kafka_lib(), settings=rules) as broker:
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute(TABLES.encode())
        site = Site(database, broker, tmp_path, capsys)
        site.publish(1)
        admin = Client(bootstrap_servers=broker.bootstrap_servers).admin()
        grants = [
            (ResourceType.TOPIC, f"{site.name}.orders", "User:*", AclOperation.READ),
            (ResourceType.TOPIC, f"{site.name}.orders", "User:other", AclOperation.WRITE),
            (ResourceType.TOPIC, f"{site.name}.orders", "User:*", AclOperation.DESCRIBE_CONFIGS),
            (ResourceType.TRANSACTIONAL_ID, f"changelog.{site.name}.{site.name}", "User:other", AclOperation.WRITE),
        ]
        bindings = [
            AclBinding(kind, name, ResourcePatternType.LITERAL, principal, "*", operation, AclPermissionType.ALLOW)
            for kind, name, principal, operation in grants
        ]
        for future in admin.create_acls(bindings).values():
            future.result()
        until(
            lambda: len(admin.describe_acls(ANY_RULE).result()) == len(bindings), "the broker does not show its rules"
        )
        failures: list[Any] = site.findings()["fail"]
        assert failures[0] == f"rights: topic {site.name}.orders: the service's user lacks WRITE"
        assert failures[1].startswith("transactions: beginning transactions as ")
        assert len(failures) == 2
