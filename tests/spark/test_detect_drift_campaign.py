"""Runs a few rounds of the campaigns `drift` and `drift_mysql`. The job `detect_drift` must find all planted
differences (*drift*) between tables and their changelog, while threads write to the tables.
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
