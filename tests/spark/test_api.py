"""Tests that the Python API returns the same table as the view that Spark makes of the same changes."""

from pathlib import Path

from pyspark.sql import SparkSession

from changelog.envelope.model import position_of
from changelog.envelope.states.arrow_types import states_schema
from changelog.schemas.avro import Column
from changelog.spark_jobs.reading.read import read_changelog
from changelog.spark_jobs.reading.where import Files
from changelog.spark_jobs.views.transforms import latest, live, schema_of, until
from tests.spark.test_fold_batch import COLUMNS
from tests.unit.api.shop import ORDER, shop, workload


def test_python_and_spark_give_a_table_the_same_schema() -> None:
    assert states_schema(COLUMNS).equals(schema_of(COLUMNS))


def test_a_table_equals_a_view(spark: SparkSession, tmp_path: Path) -> None:
    commits = workload(5, 60)
    log = shop(tmp_path, [[change for commit in commits for change in commit]], order=ORDER)
    columns = [Column(name=name, type=type_, nullable=True) for name, type_ in ORDER.items()]
    changes = read_changelog(spark, Files(path=tmp_path), entities=["order"])
    position = position_of(commits[45][0])
    view = live(latest(until(changes, position), columns)).toArrow().sort_by("_key")
    table = log.table("order", as_of=position).replace_schema_metadata().sort_by("_key")
    assert table.num_rows > 3
    assert table.to_pylist() == view.to_pylist()
    assert table.schema.equals(view.schema)
