"""The types of MySQL and MariaDB that Debezium can carry, with random values as SQL expressions."""

import re
from collections.abc import Callable, Iterator, Sequence
from random import Random

from changelog.connectors.servers.mysql import Flavour
from tests.campaigns._debezium import listed
from tests.campaigns._debezium.listed import Rules
from tests.campaigns._debezium.tables import Kind
from tests.integration.mysql.typed_values import types

CHARSETS = ("utf8mb4", "latin1", "ucs2", "cp1251", "utf16")

NOT_CARRIED = re.compile(r"INET|COMPRESSED|CHAR\(0\)|BINARY\(0\)|YEAR\(2\)|ENUM.*(binary|cp932)")
"""Debezium's parser of definitions refuses INET4 and INET6, and its connector does not decompress columns."""


def kinds(flavour: Flavour, version: tuple[int, int]) -> Sequence[Kind]:
    """Returns the types that the server has and Debezium can carry."""
    return [
        Kind(
            definition=of.definition,
            draw=_years if of.definition == "YEAR" and flavour == "mariadb" else of.draw,
            listed=dict(_listed(of.definition)),
        )
        for of in types(flavour, version, CHARSETS)
        if not NOT_CARRIED.search(of.definition)
    ]


def _years(random: Random) -> str:
    """Draws a year, but not 0, at which Debezium's snapshot of MariaDB fails."""
    return str(random.randrange(1901, 2156))


def _listed(definition: str) -> Iterator[tuple[str, Callable[[object, object], bool]]]:
    rules: Rules = {}
    if definition == "BIT(1)":
        rules = {"one bit as a boolean": listed.one_bit}
    elif definition.startswith("TIME("):
        rules = {"zeros at the end of a time": listed.fraction_digits}
    elif definition.startswith(("DATE", "TIMESTAMP")):
        rules = {"a date without a day as null": listed.no_day}
    elif definition == "JSON":
        rules = {"text of JSON": listed.same_json}
    yield from rules.items()


KEYS: Sequence[tuple[str, Callable[[int], str]]] = (
    ("INT", str),
    ("BIGINT", lambda number: str(number << 32)),
    ("VARCHAR(40) CHARACTER SET utf8mb4", lambda number: f"'k\"{number} ü'"),
    ("BINARY(4)", lambda number: f"x'{number:08x}'"),
    ("DATE", lambda number: f"DATE_ADD('1970-01-02', INTERVAL {number} DAY)"),
    ("DECIMAL(12,2)", lambda number: f"{number}.50"),
)
"""Types of key columns, with the SQL of the key that has a number."""


def small(random: Random) -> str:
    """Draws a small number."""
    return str(random.randrange(100))
