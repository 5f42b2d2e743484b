"""Tests, with one round of the campaign `maintain`, that a view equals its table although the job is killed."""

import pytest

from tests.campaigns import maintain
from tests.campaigns._pieces import run


@pytest.mark.campaign
def test_campaign_maintain(starts_servers: None, seed: int) -> None:
    figures = run(maintain.campaign(), 1, seed)
    assert figures["rows"]
    assert figures["rebuilds"] == 1
    assert sum(figures["runs"].values()) == 1
