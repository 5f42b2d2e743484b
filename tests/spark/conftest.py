"""The Spark session of the tests, and a frame's job run in it."""

import gc
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from changelog.spark_jobs.runner.job import Job, main
from tests.servers import CACHE, HASTY_JAVA, java_needed
from tests.servers.spark import local_spark
from tests.spark.ran import Ran, Run


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Has one worker run all tests of the session; those of a broker, too, go with the broker's."""
    for item in items:
        if not isinstance(item, pytest.Function) or "spark" not in item.fixturenames:
            continue
        item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))
        if "broker" not in item.fixturenames:
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(autouse=True)
def sockets(request: pytest.FixtureRequest) -> Iterator[None]:
    """pyspark leaves a socket of each `collect` to the garbage collector: it is to come before the next test."""
    yield
    if "spark" in request.fixturenames:
        gc.collect()


@pytest.fixture(scope="session")
def spark(starts_servers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session on this machine; Kafka, Delta Lake and PostgreSQL are there once `make jars` has run."""
    java_needed()
    jars = sorted((CACHE / "jars").glob("*.jar"))
    others = {
        "spark.driver.extraJavaOptions": HASTY_JAVA,
        "spark.jars": ",".join(map(str, jars)),
        "spark.sql.files.openCostInBytes": "1",  # many small files are few tasks
    }
    if jars:
        others |= {
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            "spark.databricks.delta.snapshotPartitions": "2",
        }
    with local_spark(tmp_path_factory.mktemp("spark"), partitions=2, others=others) as running:
        yield running


@pytest.fixture
def run(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs jobs in the session."""

    def run(job: Job, config: Path, *words: str, code: int = 0) -> Ran:
        given = main(job, ["--config", str(config), *words])
        said = capsys.readouterr()
        assert given == code, said
        return Ran(summary=json.loads(said.out.splitlines()[-1]), lines=said.err.splitlines())

    return run
