"""Tests that `changelog check` and `changelog run` report each mistake in the use of Debezium in one line."""

import json
from pathlib import Path

import pytest

from changelog.connectors.servers.kafka import Broker
from changelog.connectors.sources.debezium.decode.events import SourceRecord
from tests.integration.debezium.in_process import InProcess, over_postgres
from tests.integration.kafka.test_debezium_topics import ENTITY, Reader, creation
from tests.integration.kafka.topics import grow
from tests.servers.registry import Registry
from tests.unit.debezium.change_events import event


@pytest.fixture
def site(database: str, tmp_path: Path) -> InProcess:
    site = over_postgres(database, tmp_path)
    site.sql("CREATE TABLE orders (id int PRIMARY KEY, status text)")
    return site


class Check:
    """Runs `changelog check`, and returns the findings that would stop the service."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def failures(self, site: InProcess | Reader) -> list[str]:
        self._capsys.readouterr()
        code, lines = site.call("check", "--json")
        assert (code, lines) == (1, [])
        findings = json.loads(self._capsys.readouterr().out)
        failures = [finding for finding in findings if finding["status"] == "fail"]
        return [f"{finding['name']}: {finding['message']} -> {finding['hint']}" for finding in failures]


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str]) -> Check:
    return Check(capsys)


def test_java_that_is_missing_or_old_is_reported(
    site: InProcess, check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "java"
    (home / "bin").mkdir(parents=True)
    monkeypatch.setenv("JAVA_HOME", str(home))
    hint = "install Java 17 or newer (Debian: apt-get install openjdk-17-jdk-headless)"
    assert check.failures(site) == [f"java: there is no java in {home} -> {hint}"]
    assert site.refused() == f"there is no java in {home}; {hint}"
    old_java = home / "bin" / "java"
    old_java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n", "utf-8")
    old_java.chmod(0o755)
    assert check.failures(site) == [f"java: {old_java} is Java 11 -> {hint}"]
    assert site.refused() == f"{old_java} is Java 11; {hint}"


def test_jars_that_are_missing_are_reported(site: InProcess, check: Check, tmp_path: Path) -> None:
    text = site.config.read_text("utf-8")
    site.config.write_text(text.replace("jars = ", 'jars = "nowhere" # '), "utf-8")
    [failure] = check.failures(site)
    assert failure.startswith(
        f"debezium: Debezium's jars are not in {tmp_path / 'nowhere'} -> `changelog debezium install"
    )
    assert "(it needs Maven); `changelog debezium pom postgres` prints a pom.xml for `mvn" in failure
    assert site.refused() == failure.removeprefix("debezium: ").replace(" -> ", "; ")


@pytest.mark.parametrize(
    ("property_", "value", "code", "error"),
    [
        ("snapshot.mode", "sometimes", 2, "Debezium: The 'snapshot.mode' value is invalid: Value must be one of "),
        ("slot.name", "Not-A-Slot", 2, "Debezium: The 'slot.name' value is invalid: Valid replication slot name must "),
        ("database.port", "many", 2, "database.port is not a number: many; correct it in [source.properties]"),
    ],
)
def test_a_property_that_debezium_refuses_is_reported(
    site: InProcess, property_: str, value: str, code: int, error: str
) -> None:
    lines = site.config.read_text("utf-8").splitlines()
    lines = [line for line in lines if not line.startswith(json.dumps(property_))]
    lines.insert(lines.index("[source.properties]") + 1, f"{json.dumps(property_)} = {json.dumps(value)}")
    site.config.write_text("\n".join(lines) + "\n", "utf-8")
    assert site.refused("run", code=code).startswith(error)


@pytest.fixture
def reader(broker: Broker, own_name: str, tmp_path: Path) -> Reader:
    reader = Reader(broker, tmp_path, own_name)
    reader.set_up(ENTITY)
    reader.create("public.item")
    return reader


def without_schemas(message: SourceRecord) -> SourceRecord:
    """Returns the message without the schemas of its key and value."""
    key, value = (json.dumps(json.loads(part or b"null")["payload"]).encode() for part in (message.key, message.value))
    return SourceRecord(topic=message.topic, key=key, value=value)


NO_EVENT = (
    "entities: configuration: entities.item.table: there is no event of the table public.item yet that can be read; "
)


def test_events_without_a_schema_or_types_are_reported(reader: Reader, check: Check) -> None:
    reader.produce(without_schemas(creation(1)))
    topic = f"{reader.prefix}.public.item"
    topic_failure, entity_failure = check.failures(reader)
    assert topic_failure == (
        f"{topic}: column id of the table public.item has no declared type, and messages carry no schema -> "
        'add id = "…" to [entities.X.types], where X is the entity of public.item'
    )
    assert entity_failure.startswith(NO_EVENT)
    assert reader.refused("run", code=2).startswith(NO_EVENT.removeprefix("entities: "))
    reader.set_up(f'{ENTITY}key = ["id"]\n')
    line = reader.refused()
    assert line.startswith(
        f"{topic}/0, before 1: column id of the table public.item has no declared type, and messages carry"
    )
    assert '; add id = "…" to [entities.X.types]' in line


def test_an_id_that_the_registry_does_not_know_is_reported(
    broker: Broker, registry: Registry, own_name: str, tmp_path: Path, check: Check
) -> None:
    reader = Reader(broker, tmp_path, own_name)
    topic = reader.create("public.item")
    reader.produce(SourceRecord(topic="app.public.item", key=None, value=b"\0" + (987_654).to_bytes(4) + b"\x02"))
    entity = f'{ENTITY}key = ["id"]\n'
    reader.set_up(entity, topics='registry = "http://127.0.0.1:1"\n')
    [failure] = check.failures(reader)
    assert failure.startswith(f"{topic}: asking for schema 987654 at the registry http://127.0.0.1:1: ")
    assert failure.endswith(" -> start the registry, or correct [source.topics] registry")
    reader.set_up(entity, topics=f'registry = "{registry.url}"\n')
    [failure] = check.failures(reader)
    line = f"asking for schema 987654 at the registry {registry.url}: "
    assert failure.startswith(f"{topic}: {line}")
    assert line in reader.refused()
    reader.set_up(entity)
    [failure] = check.failures(reader)
    assert failure.startswith(f"{topic}: ")
    line = "a message seems to be in Avro with schema 987654, and no registry is configured"
    assert failure == f"{topic}: {line} -> name the registry in [source.topics] registry"
    assert line in reader.refused()


def test_a_message_that_is_not_a_change_event_is_reported(reader: Reader, check: Check) -> None:
    reader.set_up(f'{ENTITY}key = ["id"]\n')
    reader.produce(SourceRecord(topic="app.public.item", key=None, value=b"hello"))
    [failure] = check.failures(reader)
    topic = f"{reader.prefix}.public.item"
    line = f"a message of topic {topic} is not a change event: Debezium writes no messages of this form"
    assert line in failure
    assert line in reader.refused()


def test_an_event_of_an_unconfigured_table_is_counted(reader: Reader) -> None:
    reader.create("public.other")
    reader.produce(event("c", ("public", "other"), None, {"id": 1, "status": "s"}), creation(1))
    with reader.running() as service:
        service.until(reader.has_messages(1))
        service.until(lambda: service.said("events of tables that are not configured"))


def test_a_changed_number_of_partitions_is_reported(reader: Reader, check: Check) -> None:
    reader.produce(creation(1))
    reader.publish(1)
    topic = f"{reader.prefix}.public.item"
    grow(reader.client, topic, 3)
    line = f"topic {topic} has 3 partitions, and had 1 when its events were published, so the order of a"
    [failure] = check.failures(reader)
    assert failure.startswith(f"offsets: {line}")
    assert reader.refused().startswith(line)
