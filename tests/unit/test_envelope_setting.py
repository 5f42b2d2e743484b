"""Tests the setting `[sink] envelope`: which sinks accept it, and which settings of entities it excludes.

Also tests which readers refuse a changelog whose envelope is not our own. Each error is one line.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from changelog.connectors import cli, config
from changelog.connectors.sources import TableInfo
from changelog.connectors.wiring.entities import resolve
from changelog.envelope.errors import ChangelogError
from changelog.spark_jobs.runner.job import Job, main

HEAD = """
name = "booking"
source = { kind = "postgres", dsn = "dbname=app" }
tables = { include = ["*"] }
"""
KAFKA = """
[sink]
kind = "kafka"
bootstrap_servers = "127.0.0.1:1"
"""
AVRO = 'codec = "avro"\nregistry = "http://127.0.0.1:1"\n'
REMEDY = 'also run a second service with envelope = "changelog", and with another name and prefix'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "changelog.toml"


@pytest.mark.parametrize(
    ("text", "codec"),
    [
        ("", "json"),
        (AVRO, "avro"),
        ('envelope = "changelog"', "json"),
        ('envelope = "debezium"', "debezium-json"),
        (f'envelope = "flat"\n{AVRO}', "flat-avro"),
    ],
)
def test_the_settings_of_the_changelog_name_the_envelope(file: Path, text: str, codec: str) -> None:
    file.write_text(f"{HEAD}{KAFKA}{text}", "utf-8")
    assert config.load(file, {}).codec == codec


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            'sink = { path = "log", envelope = "flat" }',
            'sink.envelope: applies only to kind = "kafka"; set that kind, or leave this key out',
        ),
        (f'{KAFKA}envelope = "avro"', "sink.envelope: should be 'changelog', 'debezium' or 'flat'"),
    ],
)
def test_an_invalid_envelope_is_refused_in_one_line(file: Path, text: str, line: str) -> None:
    file.write_text(HEAD + text, "utf-8")
    with pytest.raises(ChangelogError) as caught:
        config.load(file, {})
    assert str(caught.value) == f"{file}: {line}"


TABLE = cast(
    TableInfo,
    SimpleNamespace(
        schema="public",
        name="orders",
        columns=[SimpleNamespace(name=name, not_null=True) for name in ("id", "region", "guest_id")],
        primary_key=("id", "region"),
        key_problem=lambda key: None,
    ),
)


@pytest.mark.parametrize(
    ("sink", "settings", "problem"),
    [
        ("", 'partitions = 3\npartition_by = ["guest_id"]\non_truncate = "publish"', None),
        ('envelope = "flat"', "partitions = 3", None),
        ('envelope = "flat"', 'partitions = 3\npartition_by = ["region"]', None),
        ('envelope = "flat"', 'partition_by = ["guest_id"]', None),
        ('envelope = "debezium"', 'on_truncate = "publish"', None),
        (
            'envelope = "debezium"',
            'partitions = 3\npartition_by = ["region", "guest_id"]',
            (
                'partition_by: [sink] envelope = "debezium" needs all changes of a key in one partition; name only '
                "columns of the key"
            ),
        ),
        (
            'envelope = "flat"',
            'on_truncate = "publish"',
            'on_truncate: [sink] envelope = "flat" cannot publish truncates; set on_truncate = "stop"',
        ),
        (
            f'envelope = "debezium"\n{AVRO}',
            'on_truncate = "publish"',
            'on_truncate: [sink] envelope = "debezium" cannot publish truncates in Avro; set on_truncate = "stop"',
        ),
        (
            'envelope = "debezium"',
            'partitions = 2\non_truncate = "publish"',
            (
                'on_truncate: [sink] envelope = "debezium" cannot publish truncates to several partitions; set '
                'on_truncate = "stop"'
            ),
        ),
    ],
)
def test_an_envelope_excludes_settings_of_entities(file: Path, sink: str, settings: str, problem: str | None) -> None:
    file.write_text(f"{HEAD}{KAFKA}{sink}\n[entities.orders]\n{settings}", "utf-8")
    loaded = config.load(file, {})
    if problem is None:
        assert [entity.name for entity in resolve(loaded, [TABLE])] == ["orders"]
        return
    with pytest.raises(ChangelogError) as caught:
        resolve(loaded, [TABLE])
    assert str(caught.value) == f"configuration: entities.orders.{problem}"


@pytest.mark.parametrize(
    ("words", "reader"),
    [
        (["tail"], "`changelog tail`"),
        (["tail", "orders"], "`changelog tail`"),
        (["tail", "dead"], "`changelog tail`"),
        (["history", "orders", "42"], "`changelog history`"),
    ],
)
def test_the_error_for_another_envelope_names_the_reader(
    file: Path, capsys: pytest.CaptureFixture[str], words: list[str], reader: str
) -> None:
    file.write_text(f'{HEAD}{KAFKA}envelope = "flat"', "utf-8")
    assert cli.main([words[0], "--config", str(file), *words[1:]]) == 2
    assert capsys.readouterr().err == (
        f'changelog: {reader} reads only envelope = "changelog", but [sink] envelope is "flat"; {REMEDY}\n'
    )


def test_schema_files_are_not_compared_with_another_envelope(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(f'{HEAD}{KAFKA}envelope = "debezium"\n{AVRO}', "utf-8")
    (file.parent / "order.avsc").write_text("{}", "utf-8")
    words = ["schemas", "--config", str(file), "check", "--against", "registry:", str(file.parent / "order.avsc")]
    assert cli.main(words) == 2
    assert (
        '--against registry:` reads only envelope = "changelog", but [sink] envelope is "debezium"'
        in capsys.readouterr().err
    )


def test_the_error_for_another_envelope_names_the_job(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def unreached(*arguments: Any) -> Any:
        raise AssertionError("the job must not begin")

    job = Job(name="archive", description="", add_arguments=lambda parser: None, plan=unreached, run=unreached)
    file.write_text(f'{HEAD}{KAFKA}envelope = "debezium"', "utf-8")
    for words in ([], ["--dry-run"]):
        assert main(job, ["--config", str(file), *words]) == 2
        line = f'archive: archive reads only envelope = "changelog", but [sink] envelope is "debezium"; {REMEDY}\n'
        assert capsys.readouterr().err == line
