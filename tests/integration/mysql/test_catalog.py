"""Tests that a table is read correctly from the server's catalogue while another session renames the table."""

from collections.abc import Sequence
from typing import Any

from changelog.connectors.servers.mysql import MysqlServer
from changelog.connectors.sources.mysql.admin.catalog import read_tables
from tests.integration.mysql.sessions import session
from tests.servers.mysql import EVERY_VERSION


@EVERY_VERSION
def test_a_table_has_its_columns_even_if_it_is_renamed_while_the_catalogue_is_read(
    mysql_server: MysqlServer, mysql_database: str
) -> None:
    with session(mysql_server, mysql_database) as other, other.cursor() as other_cursor:
        other_cursor.execute("CREATE TABLE item (id INT PRIMARY KEY, name TEXT)")
        renames: list[int] = []

        def query(sql: str, values: Sequence[object]) -> Sequence[tuple[Any, ...]]:
            is_first_query_of_columns = "information_schema.COLUMNS" in sql and not renames
            if is_first_query_of_columns:
                renames.append(other_cursor.execute("RENAME TABLE item TO away"))
            with mysql_server.connect() as connection, connection.cursor() as cursor:
                cursor.execute(sql, tuple(values) or None)
                rows = cursor.fetchall()
            if is_first_query_of_columns:
                other_cursor.execute("RENAME TABLE away TO item")
            return rows

        [table] = read_tables(query, only=(mysql_database, "item"))
    assert renames
    assert [column.name for column in table.columns] == ["id", "name"]
    assert table.primary_key == ("id",)
