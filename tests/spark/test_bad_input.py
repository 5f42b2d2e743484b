"""Tests that a job with bad input prints one line, ends with the right exit code, and writes nothing that a reader
would see.

A *manifest* lists the files of an archive or of a job's output. Readers see only these files.
"""

import json
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from changelog import schemas
from changelog.connectors.kafka import client
from changelog.connectors.servers.kafka import Broker
from changelog.connectors.sinks.files.layout import log_file
from changelog.connectors.sinks.files.sink import FileSink
from changelog.connectors.sinks.kafka.reading.consume import consumed
from changelog.connectors.sinks.kafka.sink import KafkaSettings
from changelog.envelope.position import Position
from changelog.spark_jobs import archive, blame, derive_deltas, rebuild_view
from changelog.spark_jobs.runner.job import Job, main
from tests.integration.kafka.test_log import change, entity, raw, store, writing
from tests.servers import fetched
from tests.servers.registry import Registry
from tests.unit.sinks import material

CONFIG = """
name = "app"
source = {{ kind = "postgres", dsn = "postgresql://nowhere" }}
sink = {{ {sink} }}
tables = {{ include = ["*"] }}
"""

SCHEMAS = str(Path(schemas.__file__).parent)
VIEW = ["--to", "{out}", "--schemas", SCHEMAS, "--entity"]
FILES = {
    "archive": (archive.JOB, []),
    "blame": (blame.JOB, ["--to", "{out}"]),
    "derive_deltas": (derive_deltas.JOB, ["--output", "{out}"]),
    "rebuild_view": (rebuild_view.JOB, [*VIEW, "order"]),
}
KAFKA = {
    "archive": (archive.JOB, ["--archive", "{out}"]),
    "blame": (blame.JOB, ["--to", "{out}"]),
    "derive_deltas": (derive_deltas.JOB, ["--checkpoint", "{out}"]),
    "rebuild_view": (rebuild_view.JOB, [*VIEW, "order"]),
}
"""The jobs for a changelog on Kafka, each with the arguments that it needs. `FILES` has the jobs for a changelog in
files.
"""

BEYOND = "00000009/0000000000000001/00000000"
SCHEMA_ID = 1048575

Jobs = dict[str, tuple[Job, list[str]]]
ErrorOf = Callable[..., str]


@pytest.fixture
def error_of(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> ErrorOf:
    def error_of(jobs: Jobs, name: str, sink: str, *more: str, code: int) -> str:
        """Returns the one line that a failing job prints. Checks that the job wrote no manifest."""
        file = tmp_path / "changelog.toml"
        file.write_text(CONFIG.format(sink=sink), "utf-8")
        job, needed = jobs[name]
        arguments = [word.format(out=tmp_path / "out") for word in (*needed, *more)]
        exit_code = main(job, ["--config", str(file), *arguments])
        output = capsys.readouterr()
        assert exit_code == code, output.err
        assert json.loads(output.out.splitlines()[-1])["verdict"] == "failed"
        assert (output.err.count("\n"), output.err.startswith(f"{name}: ")) == (1, True)
        assert not list(tmp_path.rglob("manifest/*.json"))
        return output.err

    return error_of


# Changelogs in files


def publish(path: Path) -> None:
    """Writes a log with one file for each day. The first two days are closed, so an archive may contain them."""
    sink = FileSink(path)
    sink.recover()
    for n in range(1, 5):
        at = material.START + timedelta(days=n)
        row = material.row(Position(1, n, 0), key="1", current='{"id":1}', committed_at=at)
        material.store(sink, [material.batch([row])], material.checkpoint(n, 1, settings={"order": {}}))
    sink.close()


def damaged(log: Path) -> None:
    content = bytearray(log_file(log, 2).read_bytes())
    content[60] ^= 0xFF
    log_file(log, 2).write_bytes(content)


def without_manifest(log: Path) -> None:
    """Deletes the first two files, so that the log looks as if an archive had replaced them and lost its manifest."""
    for number in (1, 2):
        log_file(log, number).unlink()


def empty(log: Path) -> None:
    for number in (1, 2, 3, 4):
        log_file(log, number).unlink()


@pytest.mark.parametrize("job", FILES)
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (damaged, "00000000000000000002.parquet is damaged; restore it from a copy"),
        (without_manifest, "lacks sequence 1"),
        (empty, "there is no changelog in |the changelog in .* is empty"),
    ],
)
def test_a_log_that_cannot_be_read_is_reported(
    error_of: ErrorOf, tmp_path: Path, job: str, spoil: Callable[[Path], None], message: str
) -> None:
    publish(tmp_path / "log")
    spoil(tmp_path / "log")
    error_line = error_of(FILES, job, 'path = "log"', code=3)
    assert re.search(message, error_line), error_line
    assert not list(tmp_path.rglob("archive/*/*/*.parquet"))


@pytest.mark.parametrize("job", ["blame", "derive_deltas", "rebuild_view"])
def test_an_output_that_is_a_file_is_not_overwritten(error_of: ErrorOf, tmp_path: Path, job: str) -> None:
    publish(tmp_path / "log")
    (tmp_path / "out").write_text("somebody's")
    error_line = error_of(FILES, job, 'path = "log"', code=3)
    assert error_line == f"{job}: {tmp_path / 'out'} is a file; name a folder\n"
    assert (tmp_path / "out").read_text() == "somebody's"


def test_a_change_that_cannot_be_read_is_named_by_its_position(error_of: ErrorOf, tmp_path: Path) -> None:
    publish(tmp_path / "log")  # a provenance in this log has only one member; `blame` needs more
    error_line = error_of(FILES, "blame", 'path = "log"', code=3)
    position = r"00000001/000000000000000[1-4]/00000000"
    assert re.fullmatch(
        f"blame: entity order, position {position}: a message's provenance cannot be read\n", error_line
    )


# Changelogs on Kafka


@pytest.fixture(scope="module")
def settings(broker: Broker) -> KafkaSettings:
    """The settings of a sink. Its topic `order` contains a message whose schema is in no registry."""
    fetched("jars")
    broker_client = client.Client(bootstrap_servers=broker.bootstrap_servers)
    settings = KafkaSettings(client=broker_client, name="app", prefix="bad-schema")
    with writing(settings, entity(partitions=1)) as sink:
        store(sink, 1)
    value = b"\0" + SCHEMA_ID.to_bytes(4, "big") + b"\0"
    raw(settings, "order", [change(1, "1", at=0)], commit=True, values=[value])
    return settings


def topics(settings: KafkaSettings, codec: str = 'codec = "json"') -> str:
    servers, prefix = settings.client.bootstrap_servers, settings.prefix
    return f'kind = "kafka", bootstrap_servers = "{servers}", prefix = "{prefix}", {codec}'


@pytest.mark.parametrize("job", KAFKA)
def test_a_schema_that_the_registry_does_not_have_is_reported(
    error_of: ErrorOf, settings: KafkaSettings, registry: Registry, job: str
) -> None:
    sink = topics(settings, f'codec = "avro", registry = "{registry.url}", auto_register = true')
    error_line = error_of(KAFKA, job, sink, code=3)
    assert f"schema {SCHEMA_ID} is unknown to the registry" in error_line
    assert f"{settings.prefix}.order, partition 0, offset 0" in error_line
    if job == "derive_deltas":
        assert not list(consumed(settings.client, f"{settings.prefix}.order.delta"))


@pytest.mark.parametrize(
    ("job", "arguments", "message"),
    [
        ("archive", ["--skip", "ordre"], "entity ordre has no topic; there are topics of: gaps, order, schemas"),
        (
            "derive_deltas",
            ["--entity", "ordre"],
            "entity ordre has no topic; there are topics of: gaps, order, schemas",
        ),
        ("blame", ["--entity", "ordre"], "has no entity ordre; it has: order"),
        ("rebuild_view", ["--entity", "ordre"], "has no entity ordre; it has: order"),
        ("rebuild_view", ["--as-of", BEYOND], f"{BEYOND} is beyond the end"),
    ],
)
def test_an_entity_or_position_that_the_changelog_does_not_have_is_refused(
    error_of: ErrorOf, settings: KafkaSettings, tmp_path: Path, job: str, arguments: list[str], message: str
) -> None:
    assert message in error_of(KAFKA, job, topics(settings), *arguments, code=2)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("job", KAFKA)
def test_a_broker_that_does_not_answer_is_reported(
    error_of: ErrorOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: str
) -> None:
    monkeypatch.setattr(client, "TIMEOUT_S", 1.0)
    error_line = error_of(KAFKA, job, 'kind = "kafka", bootstrap_servers = "127.0.0.1:1"', code=3)
    assert "Kafka" in error_line
    assert not (tmp_path / "out").exists()
