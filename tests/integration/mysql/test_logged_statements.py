"""Tests that the service understands statements about tables in the form in which real servers log them."""

from pathlib import Path

import pytest

from changelog.connectors.servers.mysql import MysqlServer
from tests.integration.mysql.site import MysqlSite
from tests.servers.mysql import fresh_mysql_database


@pytest.fixture
def site(mysql_server: MysqlServer, mysql_database: str, tmp_path: Path) -> MysqlSite:
    return MysqlSite(mysql_server, mysql_database, tmp_path)


@pytest.mark.parametrize("charset", ["sjis", "gbk", "big5"])
def test_a_table_name_is_read_in_the_character_set_of_the_session(site: MysqlSite, charset: str) -> None:
    """In these character sets, the second byte of a character can be the byte of a backslash or of a backquote."""
    names = {"sjis": "表", "gbk": "乗", "big5": "功"}
    name = names[charset]
    assert name.encode(charset)[1:] == b"\\"
    site.sql(f"CREATE TABLE `{name}` (id INT PRIMARY KEY)", f"INSERT INTO `{name}` VALUES (1)")
    site.configure(f'[entities.item]\ntable = "{name}"\non_truncate = "publish"\n')
    with site.running() as service:
        service.until(site.is_read)
        with site.server.connect(site.database) as connection, connection.cursor() as cursor:
            connection.set_character_set(charset)
            cursor.execute(f"TRUNCATE /* it's {name} */ `{name}`")
            cursor.execute(f"INSERT INTO `{name}` VALUES (2)")
        service.until(lambda: ("create", "2") in site.ops("item"))
    assert [op for op, _ in site.ops("item")] == ["read", "truncate", "create"]


def test_an_alter_of_two_phases_takes_effect_once(mariadb: MysqlServer, tmp_path: Path) -> None:
    with fresh_mysql_database(mariadb) as database:
        rename_in_two_phases(MysqlSite(mariadb, database, tmp_path))


def rename_in_two_phases(site: MysqlSite) -> None:
    """With `binlog_alter_two_phase`, MariaDB logs the beginning of an ALTER TABLE before it knows whether the statement
    will succeed. Here, the first ALTER TABLE fails, so only the second one must take effect.
    """
    site.sql("CREATE TABLE item (id INT PRIMARY KEY)", "INSERT INTO item VALUES (1)")
    site.sql("CREATE TABLE copy (id INT PRIMARY KEY, a INT)", "INSERT INTO copy VALUES (1, 1), (2, 1)")
    site.configure('[entities.item]\ntable = "item"\n')
    two_phases = "SET SESSION binlog_alter_two_phase = ON"
    with site.running() as service:
        service.until(site.is_read)
        site.sql("RENAME TABLE item TO old")
        with pytest.raises(Exception, match="Duplicate"):
            site.sql(two_phases, "ALTER TABLE copy RENAME TO item, ADD UNIQUE (a), ALGORITHM = COPY")
        site.sql("INSERT INTO copy VALUES (3, 3)")
        site.sql(two_phases, "ALTER TABLE copy RENAME TO item, ADD COLUMN b INT DEFAULT 5, ALGORITHM = COPY")
        site.sql("UPDATE item SET a = 9 WHERE id = 1")
        service.until(lambda: site.is_exact("item"))
        assert [event["event"] for event in service.events()].count("rows are not in the log") == 1
