"""The frame of every job: exit codes, one line for an error, one line of JSON for a person's or a machine's eye."""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from connectors.config import Config
from envelope.errors import ChangelogError, Kind
from spark_jobs import archive, derive_deltas, detect_drift, failures, rebuild_view
from spark_jobs.job import Job, main, session

CONFIG = """
name = "booking"
source = { kind = "postgres", dsn = "postgresql://nowhere" }
sink = { path = "log" }
tables = { include = ["*"] }
"""


def job_of(spark_does: str = "rows") -> Job:
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--rows", type=int, default=3)

    def run(spark: SparkSession, arguments: argparse.Namespace, config: Config) -> Mapping[str, object]:
        if spark_does == "ours":
            raise ChangelogError(Kind.USAGE, "there is no entity x", hint="name another")
        if spark_does == "a bug":
            raise ValueError("a row's value")
        if spark_does == "on an executor":
            spark.range(4).mapInArrow(_refuse, "id long").collect()
        if spark_does == "in Java":
            spark.sql("SELECT CAST('a secret' AS INT)").collect()
        if spark_does == "no file":
            spark.read.parquet("/nowhere/at.parquet").collect()
        return {"verdict": "done", "rows": spark.range(arguments.rows).count()}

    return Job(name="try", description="Tries.", add_arguments=add_arguments, plan=_plan, run=run)


def _plan(arguments: argparse.Namespace, config: Config) -> Mapping[str, object]:
    return {"rows": arguments.rows, "reads": config.name}


def _refuse(batches: Iterable[Any]) -> Iterable[Any]:
    raise ChangelogError(Kind.MALFORMED, "schema 7 is unknown", hint="look into the registry")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "changelog.toml"
    file.write_text(CONFIG, "utf-8")
    return file


def test_a_job_ends_with_its_summary(spark: SparkSession, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metrics = config.parent / "try.prom"
    assert main(job_of(), ["--config", str(config), "--rows", "5", "--metrics", str(metrics)]) == 0
    told = capsys.readouterr()
    summary = json.loads(told.out.splitlines()[-1])
    assert {**summary, "seconds": 0} == {"job": "try", "verdict": "done", "rows": 5, "seconds": 0}
    assert not told.err
    assert 'changelog_job_rows{job="try"} 5.0' in metrics.read_text()
    assert 'changelog_job_success{job="try"} 1.0' in metrics.read_text()
    assert spark.range(1).count() == 1  # the session was not the job's to stop


def test_a_dry_run_needs_no_session(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(job_of("a bug"), ["--config", str(config), "--dry-run"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["verdict"], summary["rows"], summary["reads"]) == ("planned", 3, "booking")


@pytest.mark.parametrize(
    ("spark_does", "code", "said"),
    [
        ("ours", 2, "there is no entity x; name another"),
        ("a bug", 3, "internal error (ValueError); repeat with --verbose and report the traceback"),
        ("on an executor", 3, "schema 7 is unknown; look into the registry"),
        ("in Java", 3, "Spark failed (CAST_INVALID_INPUT); repeat with --verbose to see its own words"),
        ("no file", 2, "/nowhere/at.parquet does not exist; see `path`"),
    ],
)
def test_an_error_is_one_line_without_values(
    spark: SparkSession, config: Path, capsys: pytest.CaptureFixture[str], spark_does: str, code: int, said: str
) -> None:
    assert main(job_of(spark_does), ["--config", str(config)]) == code
    told = capsys.readouterr()
    assert told.err == f"try: {said}\n"
    summary = json.loads(told.out)
    assert (summary["verdict"], summary["error"]) == ("failed", said)
    main(job_of(spark_does), ["--config", str(config), "--verbose"])
    assert "Traceback" in capsys.readouterr().err


def test_bad_usage_is_one_line(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(job_of(), ["--nonsense"])
    assert capsys.readouterr().err == "try: unrecognized arguments: --nonsense; see `try --help`\n"
    assert main(job_of(), ["--config", "nowhere.toml"]) == 2
    assert capsys.readouterr().err.startswith("try: nowhere.toml: no such file; ")


@pytest.mark.parametrize(
    ("job", "options"),
    [
        (archive.JOB, ["--archive"]),
        (derive_deltas.JOB, ["--archive", "--output", "--checkpoint"]),
        (rebuild_view.JOB, ["--archive", "--to"]),
        (detect_drift.JOB, ["--archive", "--out"]),
    ],
    ids=lambda each: each.name if isinstance(each, Job) else "",
)
def test_an_empty_place_is_refused(job: Job, options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """As of a variable of a script that is not set: it would be the working directory."""
    for option in options:
        with pytest.raises(SystemExit, match="2"):
            main(job, [option, ""])
        said = f"{job.name}: argument {option}: is empty; name a folder or a URI; see `{job.name} --help`\n"
        assert capsys.readouterr().err == said


def test_a_session_in_use_is_used(spark: SparkSession) -> None:
    with session("another") as found:
        assert found is spark
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("x.TimeoutException: Timed out waiting for a node assignment", Kind.MALFORMED, "Spark failed (Py4JError)"),
        (
            "Caused by: org.apache.kafka.common.errors.TimeoutException: Timed out",
            Kind.CONNECTION,
            "Kafka does not answer",
        ),
        ("Failed to find data source: kafka.", Kind.USAGE, "Spark has no kafka"),
        (
            "[FAILED_READ_FILE.NO_HINT] … file:///a%20log/1.parquet. SQLSTATE",
            Kind.MALFORMED,
            "/a log/1.parquet is damaged; ",
        ),
        (
            "RuntimeException: ClassNotFoundException: Class org.apache.hadoop.fs.s3a.S3AFileSystem not found",
            Kind.USAGE,
            "Spark lacks the file system s3a; add to spark-submit: --packages org.apache.hadoop:hadoop-aws:",
        ),
        (
            'org.apache.hadoop.fs.UnsupportedFileSystemException: No FileSystem for scheme "c"',
            Kind.USAGE,
            "Spark knows no file system c:",
        ),
        (
            'IOException: Cannot run program "./environment/bin/python": error=2, No such file or directory',
            Kind.USAGE,
            "Spark cannot run ./environment/bin/python; PYSPARK_PYTHON names",
        ),
        (
            "IOException: Mkdirs failed to create file:/mnt/views/1/_temporary/0/_temporary/attempt_1 (exists=false)",
            Kind.STORAGE,
            "/mnt/views/1 cannot be made; may the job's user write there?",
        ),
        (
            "IOException: Failed to create a temp directory (under artifacts) after 10 attempts!",
            Kind.STORAGE,
            "run the job from a folder that its user may write to",
        ),
        ("FSError: java.io.IOException: No space left on device", Kind.STORAGE, "no space left on a device; free some"),
        (
            "java.nio.file.AccessDeniedException: s3a://lake/views/a.parquet: PUT 0-byte object: 403",
            Kind.ACCESS,
            "s3a://lake/views/a.parquet is not for the job's user",
        ),
        (
            'AccessControlException: Permission denied: user=a, access=WRITE, inode="/lake":hdfs:hdfs:drwxr-xr-x',
            Kind.ACCESS,
            "/lake is not for the job's user",
        ),
        (
            "FileNotFoundException: /log/1.parquet (Permission denied)",
            Kind.ACCESS,
            "/log/1.parquet is not for the job's user",
        ),
    ],
)
def test_what_java_says_is_told_in_our_words(text: str, kind: Kind, said: str) -> None:
    told = failures.explain(Py4JError(text))
    assert told.kind is kind
    assert said in str(told)
    assert "\n" not in str(told)


@pytest.mark.parametrize("module", ["archive", "derive_deltas", "rebuild_view", "detect_drift", "demo"])
def test_help_needs_no_spark(module: str) -> None:
    """Nor does a dry run, nor the demo, which says what is missing."""
    code = f"import sys; sys.modules['pyspark'] = None; import spark_jobs.{module}"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
