"""The fault campaigns of MariaDB and MySQL, for a few rounds."""

from collections.abc import Mapping

import pytest

from changelog.connectors.servers.mysql import Flavour
from tests.campaigns import mariadb, mysql
from tests.campaigns._pieces import Campaign, run
from tests.servers.mysql import FLAVOURS

CAMPAIGNS: Mapping[Flavour, Campaign] = {"mariadb": mariadb.campaign(seconds=2.0), "mysql": mysql.campaign(seconds=2.0)}


@pytest.mark.campaign
@pytest.mark.usefixtures("starts_servers")
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_campaign(flavour: Flavour, seed: int) -> None:
    figures = run(CAMPAIGNS[flavour], 2, seed)
    assert sum(figures["faults"].values()) >= 2
    assert figures["reads"]
    assert figures["changes"]
