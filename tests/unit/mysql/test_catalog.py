"""Tests how the catalogue is read while a table is renamed. The answers to the service's queries may then contradict
each other.
"""

from collections.abc import Sequence
from typing import Any

import pytest

from changelog.connectors.sources.mysql.admin.catalog import read_tables

CATALOGUE: dict[str, list[tuple[Any, ...]]] = {
    "TABLES": [("shop", "item", "BASE TABLE", "InnoDB", 0, 0), ("shop", "log", "BASE TABLE", "InnoDB", 0, 0)],
    "COLUMNS": [("shop", "item", "id", "NO", "int", "PRI"), ("shop", "log", "line", "YES", "text", "")],
    "STATISTICS": [("shop", "item", "PRIMARY", "id", None)],
    "REFERENTIAL_CONSTRAINTS": [],
}
"""The rows of the views of information_schema, for two tables. The second table has no key."""


class Catalogue:
    """Answers queries of the catalogue. `torn` is a view of information_schema. The first answer from this view lacks
    the table `item`.
    """

    def __init__(self, torn: str) -> None:
        self.queries: list[str] = []
        self._torn = torn

    def query(self, sql: str, _: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        if "VERSION()" in sql:
            return [("8.0.15",)]
        view = sql.partition("information_schema.")[2].split()[0]
        is_torn = view == self._torn and view not in self.queries
        self.queries.append(view)
        return [row for row in CATALOGUE[view] if not (is_torn and row[1] == "item")]


@pytest.mark.parametrize("torn", ["TABLES", "COLUMNS", "STATISTICS"])
def test_a_catalogue_that_shows_part_of_a_table_is_read_again(torn: str) -> None:
    catalogue = Catalogue(torn)
    item, log = read_tables(catalogue.query)
    assert (item.name, item.primary_key, len(item.columns)) == ("item", ("id",), 1)
    assert (log.name, log.primary_key, len(log.columns)) == ("log", (), 1)
    assert catalogue.queries.count("TABLES") == 2


def test_a_table_without_a_key_is_read_once() -> None:
    catalogue = Catalogue("")
    assert [table.name for table in read_tables(catalogue.query)] == ["item", "log"]
    assert catalogue.queries.count("TABLES") == 1
