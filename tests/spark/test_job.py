"""Tests what all jobs have in common: exit codes, errors of one line, and a summary of one line of JSON."""

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

from changelog.connectors.config import Config
from changelog.envelope.errors import ChangelogError, Kind
from changelog.spark_jobs import archive, derive_deltas, detect_drift, maintain_view, rebuild_view
from changelog.spark_jobs.runner import arguments, spark_errors
from changelog.spark_jobs.runner.job import Job, main, session
from changelog.spark_jobs.storage.open_store import store_of
from tests.servers import promtool

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
        return {"verdict": "done", "rows": spark.range(arguments.rows).count(), "rowsRead": arguments.rows}

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
    output = capsys.readouterr()
    summary = json.loads(output.out.splitlines()[-1])
    assert {**summary, "seconds": 0} == {"job": "try", "verdict": "done", "rows": 5, "rowsRead": 5, "seconds": 0}
    assert not output.err
    assert 'changelog_job_rows_read{job="try"} 5.0' in metrics.read_text()
    subprocess.run([promtool(), "check", "metrics"], input=metrics.read_bytes(), check=True, capture_output=True)
    assert 'changelog_job_success{job="try"} 1.0' in metrics.read_text()
    assert spark.range(1).count() == 1  # the job did not stop the session, because it had not started the session


def test_a_dry_run_needs_no_session(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(job_of("a bug"), ["--config", str(config), "--dry-run"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["verdict"], summary["rows"], summary["reads"]) == ("planned", 3, "booking")


@pytest.mark.parametrize(
    ("spark_does", "code", "message"),
    [
        ("ours", 2, "there is no entity x; name another"),
        ("a bug", 3, "internal error (ValueError); repeat with --verbose and report the traceback"),
        ("on an executor", 3, "schema 7 is unknown; look into the registry"),
        ("in Java", 3, "Spark failed (CAST_INVALID_INPUT); repeat with --verbose to see Spark's own message"),
        ("no file", 2, "/nowhere/at.parquet does not exist; check the path"),
    ],
)
def test_an_error_is_one_line_without_values(
    spark: SparkSession, config: Path, capsys: pytest.CaptureFixture[str], spark_does: str, code: int, message: str
) -> None:
    assert main(job_of(spark_does), ["--config", str(config)]) == code
    output = capsys.readouterr()
    assert output.err == f"try: {message}\n"
    summary = json.loads(output.out)
    assert (summary["verdict"], summary["error"]) == ("failed", message)
    main(job_of(spark_does), ["--config", str(config), "--verbose"])
    assert "Traceback" in capsys.readouterr().err


def test_bad_usage_is_reported_in_one_line(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
        (rebuild_view.JOB, ["--archive", "--to", "--schemas"]),
        (detect_drift.JOB, ["--archive", "--out"]),
        (maintain_view.JOB, ["--to"]),
    ],
    ids=lambda value: value.name if isinstance(value, Job) else "",
)
@pytest.mark.parametrize("empty", ["", " ", "file:", "file://"])
def test_an_empty_path_is_refused(job: Job, options: list[str], empty: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A script passes an empty path if its variable is not set. An empty path would mean the working directory."""
    for option in options:
        with pytest.raises(SystemExit, match="2"):
            main(job, [option, empty])
        assert capsys.readouterr().err == f"{job.name}: argument {option}: is empty; see `{job.name} --help`\n"


def test_a_time_in_the_future_is_refused() -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="2999-01-01T00:00:00Z is in the future; leave it out"):
        arguments.moment("2999-01-01T00:00:00Z")


@pytest.mark.parametrize("text", ["-1", "nan", "inf", "1000001", "soon"])
def test_seconds_have_bounds(text: str) -> None:
    assert (arguments.seconds("0"), arguments.seconds("1e6")) == (0, 1e6)
    with pytest.raises(argparse.ArgumentTypeError, match=f"^'{text}' is not a number of seconds from 0 to 1000000$"):
        arguments.seconds(text)


@pytest.mark.parametrize("text", ["0", "-1", "1_000", "1.5", "1000000001", "many"])
def test_counts_have_bounds(text: str) -> None:
    assert (arguments.positive("1"), arguments.positive("1000000000")) == (1, 10**9)
    with pytest.raises(argparse.ArgumentTypeError, match=f"^'{text}' is not a whole number from 1 to 1000000000$"):
        arguments.positive(text)


def test_a_running_session_is_used(spark: SparkSession) -> None:
    with session("another") as in_use:
        assert in_use is spark
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


@pytest.mark.parametrize(
    ("text", "kind", "message"),
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
            "ClassNotFoundException: Class org.apache.hadoop.fs.azurebfs.SecureAzureBlobFileSystem not found",
            Kind.USAGE,
            "Spark lacks the file system abfs; add to spark-submit: --packages org.apache.hadoop:hadoop-azure:",
        ),
        (
            'org.apache.hadoop.fs.UnsupportedFileSystemException: No FileSystem for scheme "c"',
            Kind.USAGE,
            "Spark knows no file system c; leave the scheme out",
        ),
        (
            'java.io.IOException: Cannot run program "./a b/bin/python3": error=2, No such file or directory',
            Kind.USAGE,
            "Spark cannot run ./a b/bin/python3; set PYSPARK_PYTHON",
        ),
        (
            'java.io.IOException: Cannot run program "python3": error=12, Cannot allocate memory',
            Kind.MALFORMED,
            "Spark failed (Py4JError)",
        ),
        (
            "java.io.IOException: Mkdirs failed to create file:/mnt/my views/1/_temporary/0/a (exists=false)\n\tat",
            Kind.STORAGE,
            "/mnt/my views/1 cannot be created; give the job's user the right to write there",
        ),
        (
            "ParentNotDirectoryException: Parent path is not a directory: file:/tmp/my dir/out\n\tat x",
            Kind.STORAGE,
            "/tmp/my dir/out is a file; name a folder",
        ),
        ("ParentNotDirectoryException: /lake/x (is not a directory)\n\tat x", Kind.STORAGE, "/lake/x is a file; "),
        (
            "IOException: Failed to create a temp directory (under artifacts) after 10 attempts!",
            Kind.STORAGE,
            "run the job from a folder that its user may write to",
        ),
        ("FSError: java.io.IOException: No space left on device", Kind.STORAGE, "no space left on a device; free some"),
        (
            "java.nio.file.AccessDeniedException: s3a://lake/my views/a.parquet: PUT 0-byte object: 403",
            Kind.ACCESS,
            "the job's user may not read or write s3a://lake/my views/a.parquet",
        ),
        (
            "java.nio.file.AccessDeniedException: lake: ...: NoAuthWithAWSException: No AWS Credentials provided by",
            Kind.ACCESS,
            "S3 has no credentials; ",
        ),
        (
            'AccessControlException: Permission denied: user=a, access=WRITE, inode="/lake":hdfs:hdfs:drwxr-xr-x',
            Kind.ACCESS,
            "the job's user may not read or write /lake",
        ),
        (
            "[FAILED_READ_FILE.FILE_NOT_EXIST] file:/a%20b/1.\nFileNotFoundException: /a b/1 (Permission denied)",
            Kind.ACCESS,
            "the job's user may not read or write /a b/1",
        ),
    ],
)
def test_errors_of_java_are_explained(text: str, kind: Kind, message: str) -> None:
    error = spark_errors.explain(Py4JError(text))
    assert error.kind is kind
    assert message in str(error)
    assert "\n" not in str(error)


def test_an_unknown_file_system_is_named(spark: SparkSession) -> None:
    with pytest.raises(ChangelogError, match="Spark knows no file system nowhere") as caught:
        store_of("nowhere://x/y", spark)
    assert caught.value.kind is Kind.USAGE


def test_an_error_names_the_path_once() -> None:
    assert str(spark_errors.known("No space left on device", "s3a://x")).startswith(
        "s3a://x: no space left on a device; "
    )
    assert str(spark_errors.known('No FileSystem for scheme "x"', "x://y")).startswith("Spark knows no file system x; ")
    assert spark_errors.known("nothing that we know", "x://y") is None


@pytest.mark.parametrize(
    "module", ["archive", "derive_deltas", "rebuild_view", "maintain_view", "detect_drift", "demo"]
)
def test_help_needs_no_spark(module: str) -> None:
    """Each module can be imported without Spark. Help and dry runs need this. So does the demo, which then says that
    Spark is missing.
    """
    code = f"import sys; sys.modules['pyspark'] = None; import changelog.spark_jobs.{module}"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
