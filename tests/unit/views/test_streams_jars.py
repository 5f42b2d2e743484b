"""Tests which jars Maven must fetch for Kafka Streams, and the error if a jar is missing."""

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from changelog.connectors.cli import main
from changelog.connectors.java import jars as sets
from changelog.connectors.views.streams import jars
from changelog.envelope.errors import ChangelogError


def test_a_pom_names_kafka_streams_and_its_logger(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["views", "pom"]) == 0
    place = "{http://maven.apache.org/POM/4.0.0}"
    dependencies = ET.fromstring(capsys.readouterr().out).iter(f"{place}dependency")
    assert [[tag.text for tag in dependency] for dependency in dependencies] == [
        ["org.apache.kafka", "kafka-streams", "4.1.1"],
        ["org.slf4j", "slf4j-jdk14", "1.7.36"],
    ]


def test_a_missing_jar_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "changelog" / "kafka-streams" / "4.1.1"
    environment = {"XDG_DATA_HOME": str(tmp_path)}
    with pytest.raises(ChangelogError) as caught:
        jars.find(None, environment)
    assert str(caught.value) == (
        f"the jars of Kafka Streams are not in {folder}; `changelog views install` fetches them (it needs Maven);"
        f" `changelog views pom` prints a pom.xml for `mvn dependency:copy-dependencies -DoutputDirectory={folder}`"
    )
    folder.mkdir(parents=True)
    (folder / "kafka-streams-4.1.1.jar").write_text("jar", "utf-8")
    assert jars.find(None, environment) == jars.find(folder, {}) == folder
    (folder / sets.MANIFEST).write_text('{"jars": {"kafka-streams-4.1.1.jar": 3, "rocksdbjni-9.7.3.jar": 9}}', "utf-8")
    with pytest.raises(
        ChangelogError, match=r"rocksdbjni-9\.7\.3\.jar is missing or damaged; `changelog views install"
    ):
        jars.find(folder, {})
