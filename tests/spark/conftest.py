"""Provides one Spark session for all tests in this folder, and a function that runs a job in the session."""

import gc
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from changelog.spark_jobs.runner.job import Job, main
from tests.servers import CACHE, HASTY_JAVA, HASTY_WORKERS, java_needed
from tests.servers.spark import local_spark
from tests.spark.ran import Ran, Run


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Lets tests with Spark leave sockets open. The fixture `sockets` closes them later."""
    for item in items:
        if isinstance(item, pytest.Function) and "spark" in item.fixturenames:
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))


@pytest.fixture(autouse=True)
def sockets(request: pytest.FixtureRequest) -> Iterator[None]:
    """Collects garbage after each test with Spark, because pyspark keeps the sockets of `collect` open until then.

    Without this, a warning about an unclosed socket could fail a later test.
    """
    yield
    if "spark" in request.fixturenames:
        gc.collect()


@pytest.fixture(scope="session")
def spark(starts_servers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A Spark session on this machine. It supports Kafka, Delta Lake and PostgreSQL if `make jars` has run."""
    java_needed()
    jars = sorted((CACHE / "jars").glob("*.jar"))
    options = {
        "spark.driver.extraJavaOptions": HASTY_JAVA,
        "spark.jars": ",".join(map(str, jars)),
        "spark.sql.codegen.cache.maxEntries": "1000",  # with fewer, Spark compiles the code of earlier tests again
        "spark.sql.ui.explainMode": "simple",  # nobody reads the text that Spark makes of each plan
        "spark.sql.files.openCostInBytes": "1",  # one task reads many small files
        **HASTY_WORKERS,
    }
    if jars:
        options |= {
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            "spark.databricks.delta.snapshotPartitions": "2",
        }
    with local_spark(tmp_path_factory.mktemp("spark"), partitions=2, others=options) as running:
        yield running


@pytest.fixture
def run(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> Run:
    """Returns a function that runs a job in the session."""

    def run(job: Job, config: Path, *arguments: str, code: int = 0) -> Ran:
        exit_code = main(job, ["--config", str(config), *arguments])
        output = capsys.readouterr()
        assert exit_code == code, output
        return Ran(summary=json.loads(output.out.splitlines()[-1]), lines=output.err.splitlines())

    return run
