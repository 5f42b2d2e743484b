"""Runs two rounds of the campaign `mysql` on each version of MariaDB and MySQL.

In each round, the service, the server or the link between them fails while threads write to the database.
"""

import pytest

from tests.campaigns import mysql
from tests.campaigns._pieces import run
from tests.servers.mysql import FLAVOURS, OTHER_VERSIONS


@pytest.mark.campaign
@pytest.mark.usefixtures("starts_servers")
@pytest.mark.parametrize("version", [*FLAVOURS, *OTHER_VERSIONS])
def test_campaign(version: str, seed: int) -> None:
    figures = run(mysql.campaign(seconds=2.0, version=version), 2, seed)
    assert sum(figures["faults"].values()) >= 2
    assert figures["reads"]
    assert figures["changes"]
