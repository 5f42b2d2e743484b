"""The campaign of drift runs, with two rounds."""

import pytest
from pyspark.sql import SparkSession

from tests.campaigns import drift
from tests.campaigns._pieces import run


@pytest.mark.campaign
def test_campaign_drift(spark: SparkSession, seed: int) -> None:
    figures = run(drift.campaign(), 2, seed)
    assert figures["rows"]
    assert figures["found"] == figures["planted"] > 0
