"""Runs the campaign that compares our readers with Debezium, for one small round on each of two databases."""

import pytest

from tests.campaigns._pieces import run
from tests.campaigns.debezium_judge import campaign


@pytest.mark.campaign
@pytest.mark.usefixtures("starts_servers")
def test_debezium_and_our_readers_publish_the_same(seed: int) -> None:
    figures = run(campaign(changes=400, databases=("postgres", "mariadb")), 2, seed)
    assert figures["changes"]
    assert figures["changes_of"].keys() == {"postgres", "mariadb"}
    assert figures["reads"]
