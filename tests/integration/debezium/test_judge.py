"""Compares what the service publishes from our own sources with what it publishes from Debezium's events, for random
changes on PostgreSQL and on MariaDB.

A campaign is a long test with random changes, and consists of rounds. Each round uses a new database. Here, the
campaign `debezium_judge` runs for only a few rounds.
"""

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
