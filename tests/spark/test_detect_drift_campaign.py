"""Tests, with few rounds of the campaigns `drift` and `drift_mysql`, that the job `detect_drift` finds all planted
drift while threads write to the tables.
"""

import pytest
from pyspark.sql import SparkSession

from tests.campaigns import drift, drift_mysql
from tests.campaigns._pieces import run


@pytest.mark.campaign
def test_campaign_drift(spark: SparkSession, seed: int) -> None:
    figures = run(drift.campaign(), 2, seed)
    assert figures["rows"]
    assert figures["found"] == figures["planted"] > 0


@pytest.mark.campaign
def test_campaign_drift_mysql(spark: SparkSession, seed: int) -> None:
    figures = run(drift_mysql.campaign(rounds=2), 3, seed)
    assert figures["transactions"]
    assert figures["found"] == figures["planted"] > 0
