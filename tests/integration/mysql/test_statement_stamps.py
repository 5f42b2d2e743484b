"""Tests that the service takes stamps from comments in the logged statements. A stamp says who made a change."""

from pathlib import Path

import pytest

from changelog.connectors.servers.mysql import MysqlServer
from tests.integration.mysql.site import MysqlSite

TILL = "/*serviceName='till',apiVersion='v2',identifier='%C3%A4%2A%2F'*/"


@pytest.fixture
def site(mysql_server: MysqlServer, mysql_database: str, tmp_path: Path) -> MysqlSite:
    site = MysqlSite(mysql_server, mysql_database, tmp_path)
    site.sql(
        "CREATE TABLE item (id INT PRIMARY KEY, amount INT)",
        "CREATE TABLE other (id INT PRIMARY KEY)",
        "CREATE TABLE changelog_stamp (id BIGINT AUTO_INCREMENT PRIMARY KEY, content MEDIUMTEXT NOT NULL)",
        "INSERT INTO item VALUES (1, 1), (2, 2), (3, 3)",
    )
    site.configure('[entities.item]\ntable = "item"\non_truncate = "publish"\n')
    return site


def stamps(site: MysqlSite) -> list[tuple[str, str, str]]:
    """Returns the stamp of each change. The first three messages are not changes: they have the rows that the service
    read from the table.
    """
    provenances = [message["value"]["provenance"] for message in site.messages("item")[3:]]
    return [(item["serviceName"], item["apiVersion"], item["identifier"]) for item in provenances]


UNKNOWN, FROM_COMMENT = ("unknown", "unknown", ""), ("till", "v2", "ä*/")


def test_a_comment_stamps_the_rows_of_its_statement(site: MysqlSite) -> None:
    with site.running() as service:
        service.until(site.is_read)
        site.sql(
            f"{TILL} UPDATE item SET amount = 7 WHERE id <= 2",
            "BEGIN",
            f"{TILL} UPDATE item SET amount = 8 WHERE id = 1",
            "UPDATE item SET amount = 8 WHERE id = 2",
            f"{TILL} INSERT INTO other VALUES (1)",
            "UPDATE item SET amount = 8 WHERE id = 3",
            "COMMIT",
            f"{TILL} TRUNCATE item",
            "INSERT INTO item VALUES (9, 9)",
        )
        service.until(lambda: ("create", "9") in site.ops("item"))
    assert stamps(site) == [FROM_COMMENT, FROM_COMMENT, FROM_COMMENT, UNKNOWN, UNKNOWN, FROM_COMMENT, UNKNOWN]


def test_a_row_of_the_stamp_table_takes_precedence_over_a_comment(site: MysqlSite) -> None:
    with site.running() as service:
        service.until(site.is_read)
        site.sql(
            "BEGIN",
            f"{TILL} UPDATE item SET amount = 7 WHERE id = 1",
            """INSERT INTO changelog_stamp (content) VALUES ('{"serviceName":"shop"}')""",
            f"{TILL} UPDATE item SET amount = 7 WHERE id = 2",
            "COMMIT",
            f"{TILL} UPDATE item SET amount = 7 WHERE id = 3",
        )
        service.until(lambda: ("update", "3") in site.ops("item"))
    assert stamps(site) == [FROM_COMMENT, ("shop", "", ""), FROM_COMMENT]


def test_a_comment_stamps_the_rows_of_an_xa_transaction(site: MysqlSite) -> None:
    with site.running() as service:
        service.until(site.is_read)
        site.sql(
            "XA START 'x'",
            f"{TILL} UPDATE item SET amount = 7 WHERE id = 1",
            "UPDATE item SET amount = 7 WHERE id = 2",
            f"{TILL} INSERT INTO other VALUES (1)",
            "UPDATE item SET amount = 7 WHERE id = 3",
            "XA END 'x'",
            "XA PREPARE 'x'",
            "XA COMMIT 'x'",
        )
        service.until(lambda: ("update", "3") in site.ops("item"))
    assert stamps(site) == [FROM_COMMENT, UNKNOWN, UNKNOWN]
