"""Tests a service with a `[state]` (a copy of the current rows) on MySQL with `binlog_row_image = NOBLOB`.

With this setting, the log lacks the TEXT and BLOB values of old rows, and of new rows those that did not change. The
service must fill these values in, so that the changelog is the same as with whole rows in the log.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from changelog.connectors.findings import Finding
from changelog.connectors.servers.mysql import MysqlServer
from changelog.connectors.sources.mysql.admin.check import server
from changelog.connectors.sources.mysql.session.flavour import Flavour
from changelog.envelope.errors import Kind
from tests.integration.mysql.site import MysqlSite
from tests.servers.mysql import on_versions
from tests.unit.mysql.test_check import MARIADB, MYSQL

COLUMNS = """(
    id INT PRIMARY KEY, name VARCHAR(20), body TEXT, raw BLOB, note MEDIUMTEXT NOT NULL, meta JSON,
    made TEXT DEFAULT ('made')
)"""
ENTITIES = """
[entities.item]
table = "{database}.item"
[entities.twin]
table = "{database}.twin"
[state]
path = "state"
"""


@pytest.fixture
def site(mysql_server: MysqlServer, mysql_database: str, tmp_path: Path) -> MysqlSite:
    site = MysqlSite(mysql_server, mysql_database, tmp_path)
    site.sql(f"CREATE TABLE item {COLUMNS}", f"CREATE TABLE twin {COLUMNS}")
    site.configure(ENTITIES.format(database=mysql_database))
    return site


def statements(random: Random, count: int) -> list[str]:
    """Returns random statements on the table `item`."""
    keys: set[int] = set()
    result = []
    for number in range(count):
        body = random.choice([f"'{'long ' * random.randrange(400)}'", "NULL", "''", f"'{number}'"])
        key = random.randrange(30)
        if key not in keys:
            keys.add(key)
            columns, values = random.choice(
                [
                    ("id, note", f"{key}, 'note'"),
                    ("id, name", f"{key}, 'name'"),
                    ("id, note, body, raw, meta, made", f"""{key}, '', {body}, {body}, '{{"a": null}}', NULL"""),
                ]
            )
            result.append(f"INSERT INTO item ({columns}) VALUES ({values})")
            continue
        action = random.randrange(8)
        free = sorted(set(range(30)) - keys)
        if action == 0:
            keys.discard(key)
            result.append(f"DELETE FROM item WHERE id = {key}")
        elif action == 1 and free:
            keys ^= {key, free[0]}
            result.append(f"UPDATE item SET id = {free[0]} WHERE id = {key}")
        elif action == 2:
            result.append(f"REPLACE INTO item (id, name) VALUES ({key}, 'replaced')")
        elif action == 3:
            result.append(f"INSERT INTO item (id) VALUES ({key}) ON DUPLICATE KEY UPDATE name = 'there'")
        elif action == 4:
            result.append(f"UPDATE item SET body = {body}, meta = 'null' WHERE id = {key}")
        else:
            result.append(f"UPDATE item SET name = 'name {number}' WHERE id IN ({key}, {random.choice([*keys])})")
    return result


def changes(site: MysqlSite, entity: str) -> list[tuple[Any, ...]]:
    """Returns an entity's changes without the parts that differ between the table and its twin, such as positions."""
    result = []
    for message in site.messages(entity):
        value = message["value"]
        source = {
            name: value["provenance"]["source"].get(name)
            for name in ("op", "unavailable", "unavailableOriginal", "jsonNull", "jsonNullOriginal")
        }
        result.append((message["key"], source, value["current"], value.get("original")))
    return result


def run_both(site: MysqlSite, item_statements: Sequence[str]) -> None:
    """Runs the statements on `item` with NOBLOB, and then on `twin` with whole rows in the log."""
    head = "SET sql_mode = ''"
    site.sql(head, "SET binlog_row_image = NOBLOB", *item_statements)
    site.sql(head, *(statement.replace(" item ", " twin ") for statement in item_statements))


@on_versions("mysql", "mysql-9")
def test_noblob_gives_the_same_changelog_as_whole_rows(site: MysqlSite, seed: int) -> None:
    all_statements = statements(Random(seed), 400)
    with site.running() as service:
        service.until(site.is_read)
        run_both(site, all_statements[:200])
        service.until(lambda: len(changes(site, "item")) == len(changes(site, "twin")) > 0)
    with site.running() as service:
        run_both(site, all_statements[200:])
        site.sql("INSERT INTO item (id, note) VALUES (99, 'last')", "INSERT INTO twin (id, note) VALUES (99, 'last')")
        service.until(lambda: all('"99"' in json.dumps(changes(site, name)[-1:]) for name in ("item", "twin")))
    item_changes, twin_changes = changes(site, "item"), changes(site, "twin")
    assert len(item_changes) == len(twin_changes) > 300
    for one, other in zip(item_changes, twin_changes, strict=True):
        assert one == other


@on_versions("mysql", "mysql-9")
def test_a_minimal_image_stops_the_service_even_with_a_state(site: MysqlSite) -> None:
    with site.running() as service:
        service.until(site.is_read)
        site.sql("INSERT INTO item (id, name, note) VALUES (1, 'a', 'b')")
        site.sql("SET binlog_row_image = MINIMAL", "UPDATE item SET name = 'c' WHERE id = 1")
        error = service.ended()
    assert error.kind is Kind.STOP
    assert "lacks the columns name, meta" in error.message


def findings(flavour: Flavour, image: str, *, keeps_state: bool) -> list[Finding]:
    facts = MARIADB if flavour is Flavour.MARIADB else MYSQL
    settings = {**facts.settings, "binlog_row_image": image}
    changed = facts.__class__(
        version=facts.version,
        settings=settings,
        is_replica=facts.is_replica,
        account=facts.account,
        privileges=facts.privileges,
    )
    all_findings = server.findings(changed, keeps_state=keeps_state)
    return [finding for finding in all_findings if finding.name == "binlog_row_image"]


@pytest.mark.parametrize(
    ("flavour", "image", "keeps_state", "status"),
    [
        (Flavour.MYSQL, "NOBLOB", True, "ok"),
        (Flavour.MYSQL, "NOBLOB", False, "fail"),
        (Flavour.MYSQL, "MINIMAL", True, "fail"),
        (Flavour.MARIADB, "NOBLOB", True, "fail"),
    ],
)
def test_check_allows_noblob_only_with_a_state(flavour: Flavour, image: str, keeps_state: bool, status: str) -> None:
    [finding] = findings(flavour, image, keeps_state=keeps_state)
    assert finding.status == status
