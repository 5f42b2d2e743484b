"""Reads the tables in the catalogue of a server while another session renames them."""

from collections.abc import Sequence
from typing import Any

from changelog.connectors.servers.mysql import MysqlServer
from changelog.connectors.sources.mysql.admin.catalog import read_tables
from tests.integration.mysql.sessions import session
from tests.servers.mysql import EVERY_VERSION


@EVERY_VERSION
def test_a_table_that_is_renamed_while_the_catalogue_is_read_has_its_columns(
    mysql_server: MysqlServer, mysql_database: str
) -> None:
    with session(mysql_server, mysql_database) as other, other.cursor() as other_cursor:
        other_cursor.execute("CREATE TABLE item (id INT PRIMARY KEY, name TEXT)")
        renamed: list[int] = []

        def query(sql: str, values: Sequence[object]) -> Sequence[tuple[Any, ...]]:
            swaps = "information_schema.COLUMNS" in sql and not renamed
            if swaps:
                renamed.append(other_cursor.execute("RENAME TABLE item TO away"))
            with mysql_server.connect() as connection, connection.cursor() as cursor:
                cursor.execute(sql, tuple(values) or None)
                rows = cursor.fetchall()
            if swaps:
                other_cursor.execute("RENAME TABLE away TO item")
            return rows

        [table] = read_tables(query, only=(mysql_database, "item"))
    assert renamed
    assert [column.name for column in table.columns] == ["id", "name"]
    assert table.primary_key == ("id",)
