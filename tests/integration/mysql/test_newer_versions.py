"""Tests features that only newer versions of MySQL and MariaDB have."""

from pathlib import Path

import pytest

from changelog.connectors.servers.mysql import MysqlServer
from tests.integration.mysql.site import MysqlSite
from tests.servers.mysql import on_versions

ENTITY = '[entities.item]\ntable = "item"\n'


@pytest.fixture
def site(mysql_server: MysqlServer, mysql_database: str, tmp_path: Path) -> MysqlSite:
    site = MysqlSite(mysql_server, mysql_database, tmp_path)
    site.configure(ENTITY)
    return site


@on_versions("mariadb-11.8", "mysql-9")
def test_vectors_are_read_and_followed(site: MysqlSite) -> None:
    vec = "TO_VECTOR" if site.server.flavour == "mysql" else "VEC_FromText"
    site.sql("CREATE TABLE item (id INT PRIMARY KEY, v VECTOR(3))", f"INSERT INTO item VALUES (1, {vec}('[1,2.5,-3]'))")
    with site.running() as service:
        service.until(site.is_read)
        site.sql(
            f"INSERT INTO item VALUES (2, {vec}('[0.1,0,-1000]')), (3, NULL)", "UPDATE item SET v = NULL WHERE id = 1"
        )
        service.until(lambda: ("update", "1") in site.ops("item"))
    values = [message["value"]["current"]["v"] for message in site.messages("item")]
    assert values == [[1, 2.5, -3], [0.1, 0, -1000], None, None]


@on_versions("mysql-9")
def test_the_tag_of_a_gtid_names_who_made_a_change(site: MysqlSite) -> None:
    site.sql("CREATE TABLE item (id INT PRIMARY KEY)", "INSERT INTO item VALUES (1)")
    with site.running() as service:
        service.until(site.is_read)
        site.sql("SET gtid_next = 'AUTOMATIC:till'", "INSERT INTO item VALUES (2)")
        site.sql("INSERT INTO item VALUES (3)")
        service.until(lambda: ("create", "3") in site.ops("item"))
    with site.running() as service:  # to continue, the service sends the server a set of GTIDs, one of which has a tag
        site.sql("INSERT INTO item VALUES (4)")
        service.until(lambda: ("create", "4") in site.ops("item"))
    provenances = [message["value"]["provenance"] for message in site.messages("item")]
    assert [provenance["serviceName"] for provenance in provenances[1:]] == ["till", "unknown", "unknown"]
    assert provenances[1]["source"]["transaction"].split(":")[1] == "till"
    assert [op for op, _ in site.ops("item")] == ["read", "create", "create", "create"]


@on_versions("mysql-9")
def test_what_a_foreign_key_changes_is_published(site: MysqlSite) -> None:
    """Older versions do not log the changes that a foreign key makes. On these versions, the service refuses a table
    whose rows a foreign key can change.
    """
    site.sql(
        "CREATE TABLE parent (id INT PRIMARY KEY)",
        "INSERT INTO parent VALUES (1), (2)",
        "CREATE TABLE item (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES parent (id) ON DELETE CASCADE)",
        "INSERT INTO item VALUES (10, 1), (11, 1), (20, 2)",
    )
    with site.running() as service:
        service.until(site.is_read)
        site.sql("DELETE FROM parent WHERE id = 1", "UPDATE item SET id = 21")
        service.until(lambda: site.is_exact("item"))
    assert site.ops("item")[3:] == [("delete", "10"), ("delete", "11"), ("delete", "20"), ("create", "21")]
