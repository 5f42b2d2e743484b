"""Tests the tables and the account that docker-compose.yml creates on MySQL and MariaDB."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from changelog.connectors.servers.mysql import MysqlServer
from tests.integration.mysql.site import MysqlSite

SETUP = Path(__file__).parents[3] / "docs" / "compose"
ACCOUNT = "changelog_run"
PASSWORD = "changelog"


@pytest.fixture
def site(mysql_server: MysqlServer, mysql_database: str, tmp_path: Path) -> Iterator[MysqlSite]:
    """A database in which `mysql.sql` has run. The account gets a unique name, because other tests use the same
    server.
    """
    site, account = MysqlSite(mysql_server, mysql_database, tmp_path), f"run_{mysql_database[-8:]}"
    script = (SETUP / "mysql.sql").read_text("utf-8")
    script = script.replace("booking.", f"{mysql_database}.").replace(ACCOUNT, account)
    site.sql(*(statement for statement in script.split(";\n") if statement.strip()))
    _, _, tables = (SETUP / "mysql.toml").read_text("utf-8").partition("[entities.guest]")
    site.configure(
        "[entities.guest]" + tables.replace("booking.", f"{mysql_database}."), dsn=site.url(account, PASSWORD)
    )
    yield site
    site.sql(f"DROP USER '{account}'@'%'")


def test_the_service_publishes_the_tables_with_the_rights_of_its_account(site: MysqlSite) -> None:
    code, lines = site.call("check")
    assert code == 0, lines
    stamp = {"serviceName": "order-api", "apiVersion": "v2", "identifier": "req-8f1c"}
    with site.running() as service:
        service.until(site.is_read)
        site.sql(
            "BEGIN",
            f"INSERT INTO changelog_stamp (id, content) VALUES (1, '{json.dumps(stamp)}')",
            "UPDATE orders SET status = 'PAID' WHERE id = 1",
            "DELETE FROM changelog_stamp WHERE id = 1",
            "COMMIT",
        )
        service.until(lambda: ("update", "1") in site.ops("order"))
        assert site.call("republish", "order", "--keys", "2")[0] == 0
        service.until(lambda: site.ops("order").count(("read", "2")) == 2)
    assert (len(site.state("guest")), len(site.state("order"))) == (100, 300)
    [change] = [
        message for message in site.messages("order") if message["value"]["provenance"]["source"]["op"] == "update"
    ]
    assert change["value"]["provenance"]["serviceName"] == "order-api"
