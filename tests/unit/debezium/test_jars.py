"""Tests where the service looks for Debezium's jars, which errors it raises if jars are missing, and which jars Maven
must fetch.
"""

import json
import stat
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from changelog.connectors.cli import main
from changelog.connectors.debezium import jars, launch
from changelog.connectors.debezium.launch import Launch
from changelog.debezium import DebeziumEngine, FileStore
from changelog.envelope.errors import ChangelogError, Kind

Properties = dict[str, str | int | float | bool]

POSTGRES = jars.CONNECTORS["postgres"]

MAVEN = """#!/bin/sh
for argument; do case "$argument" in
  -DoutputDirectory=*) folder=${argument#*=} ;;
esac; done
[ -z "$FAILS" ] || { echo "[ERROR] Failed to execute goal on project x: Could not find it -> [Help 1]"; exit 1; }
mkdir "$folder"
for jar in $JARS; do echo "$jar" >"$folder/$jar"; done
"""
"""A script that takes the place of Maven. It puts jars into the folder, and needs no network. The integration tests use
Maven itself.
"""

SET = "debezium-embedded-3.6.1.Final.jar debezium-connector-postgres-3.6.1.Final.jar slf4j-jdk14-1.7.36.jar"


@pytest.fixture
def maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "mvn"
    program.parent.mkdir()
    program.write_text(MAVEN, "utf-8")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setenv("JARS", SET)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def run(*arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = main(["debezium", *arguments])
    output = capsys.readouterr()
    return code, output.out, output.err


@pytest.mark.usefixtures("maven")
def test_a_connector_is_installed_and_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "data" / "changelog" / "debezium" / "3.6.1.Final" / "postgres"
    assert run("install", "postgres", capsys=capsys)[1] == f"3 jars of postgres 3.6.1.Final are in {folder}\n"
    environment = {"XDG_DATA_HOME": str(tmp_path / "data")}
    assert jars.find(POSTGRES.java_class, None, environment) == folder
    assert {name: (folder / name).stat().st_size for name in SET.split()} == json.loads(
        (folder / jars.MANIFEST).read_text("utf-8")
    )["jars"]
    assert run("list", capsys=capsys)[1].splitlines()[0].endswith(str(folder))
    assert run("install", "postgres", capsys=capsys)[0] == 0
    (folder / SET.split()[2]).unlink()
    with pytest.raises(ChangelogError, match=r"slf4j-jdk14-1\.7\.36\.jar is missing or damaged"):
        jars.find(POSTGRES.java_class, None, environment)
    assert not [path for path in folder.parent.iterdir() if path != folder]


@pytest.mark.usefixtures("maven")
def test_the_error_says_why_jars_cannot_be_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter").write_text("", "utf-8")
    code, _, error = run("install", "postgres", "--to", str(tmp_path / "home"), capsys=capsys)
    assert (code, "holds files that this command did not put there" in error) == (3, True)
    monkeypatch.setenv("JARS", SET + " debezium-api-3.5.0.Final.jar")
    assert "do not fit together: debezium-api-3.5.0.Final.jar" in run("install", "postgres", capsys=capsys)[2]
    monkeypatch.setenv("FAILS", "1")
    error = run("install", "mysql", "--version", "1.0", capsys=capsys)[2]
    assert error.startswith("changelog: Maven cannot fetch mysql 1.0: Could not find it; check the network")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "Maven is missing; install it" in run("install", "postgres", capsys=capsys)[2]
    assert not (tmp_path / "data" / "changelog" / "debezium" / "3.6.1.Final" / "postgres").exists()


def test_a_pom_names_the_same_version_for_all_jars_of_debezium(capsys: pytest.CaptureFixture[str]) -> None:
    project = ET.fromstring(run("pom", "db2", capsys=capsys)[1])
    place = "{http://maven.apache.org/POM/4.0.0}"
    dependencies = [[tag.text for tag in dependency] for dependency in project.iter(f"{place}dependency")]
    assert dependencies == [
        ["io.debezium", "debezium-embedded", "3.6.1.Final"],
        ["io.debezium", "debezium-connector-db2", "3.6.1.Final"],
        ["org.slf4j", "slf4j-jdk14", "1.7.36"],
        ["com.ibm.db2", "jcc", "11.5.9.0"],
    ]


def failed(
    tmp_path: Path, properties: dict[str, str | int | float | bool], folder: Path | None = None
) -> ChangelogError:
    engine = DebeziumEngine(properties, store=FileStore(tmp_path / "state"), jars=folder)
    with pytest.raises(ChangelogError) as error:
        engine.run(lambda _events: None)
    assert "\n" not in str(error.value)
    return error.value


def test_the_error_names_what_is_missing_to_run_debezium(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    error = failed(tmp_path, {"connector.class": POSTGRES.java_class})
    folder = tmp_path / "changelog" / "debezium" / "3.6.1.Final" / "postgres"
    assert str(error) == (
        f"Debezium's jars are not in {folder}; `changelog debezium install postgres` fetches them (it needs Maven);"
        " `changelog debezium pom postgres` prints a pom.xml for"
        f" `mvn dependency:copy-dependencies -DoutputDirectory={folder}`"
    )
    assert f"install CONNECTOR --to {tmp_path}`" in str(failed(tmp_path, {"connector.class": "x.Y"}, tmp_path))
    assert "it is not known where the jars of x.Y are" in str(failed(tmp_path, {"connector.class": "x.Y"}))
    (tmp_path / "debezium-embedded-3.6.1.Final.jar").write_text("", "utf-8")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr(launch, "OWN_JAR", tmp_path / "debezium-embedded-3.6.1.Final.jar")
    error = failed(tmp_path, {"connector.class": "x.Y"}, tmp_path)
    assert error.kind is Kind.PRECONDITION
    assert str(error).startswith(f"there is no java in {tmp_path}; install Java 17")


@pytest.mark.parametrize(
    ("properties", "text"),
    [
        ({}, "connector.class is missing"),
        ({"connector.class": "x.Y", "offset.storage.file.filename": "f"}, "offset.storage.file.filename is managed by"),
        ({"connector.class": "x.Y", "errors.max.retries": 3}, "errors.max.retries is managed by the engine"),
    ],
)
def test_properties_that_the_service_manages_are_refused(tmp_path: Path, properties: Properties, text: str) -> None:
    error = failed(tmp_path, properties)
    assert (error.kind, text in error.message) == (Kind.USAGE, True)


def test_a_property_without_a_value_is_refused(tmp_path: Path) -> None:
    missing: Any = None
    with pytest.raises(ChangelogError, match=r"database\.password must be a string, a number"):
        DebeziumEngine({"database.password": missing}, store=FileStore(tmp_path))


def test_a_class_path_has_one_logging_binding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "OWN_JAR", tmp_path / "own" / "own.jar")
    with pytest.raises(ChangelogError, match=r"own\.jar is not in this installation; `make engine`"):
        Launch(properties={}, jars=tmp_path).command("java")
    (tmp_path / "own").mkdir()
    for name in ("own/own.jar", "a.jar", "log4j-slf4j-impl-2.24.3.jar", "slf4j-jdk14-1.7.36.jar", "notes.txt"):
        (tmp_path / name).write_text("", "utf-8")
    command = Launch(properties={}, jars=tmp_path, heap_mib=100).command("java")
    names = [Path(jar).name for jar in command[command.index("-cp") + 1].split(":")]
    assert names == ["own.jar", "a.jar", "slf4j-jdk14-1.7.36.jar"]
    assert "-Xmx100m" in command
    # If slf4j's binding for java.util.logging is missing, its binding for log4j stays on the class path. Then log4j
    # writes to standard error.
    (tmp_path / "slf4j-jdk14-1.7.36.jar").unlink()
    assert "log4j-slf4j-impl-2.24.3.jar" in Launch(properties={}, jars=tmp_path).command("java")[-2]
