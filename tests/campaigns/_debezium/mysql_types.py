"""Lists the types of MySQL and MariaDB that Debezium can publish, and draws random values of them as SQL."""

import re
from collections.abc import Callable, Mapping, Sequence
from random import Random

from changelog.connectors.servers.mysql import Flavour
from tests.campaigns._debezium import listed
from tests.campaigns._debezium.listed import Rules
from tests.campaigns._debezium.tables import Kind
from tests.integration.mysql.typed_values import types

CHARSETS = ("utf8mb4", "latin1", "ucs2", "cp1251", "utf16")

NOT_CARRIED: Mapping[Flavour, str] = {
    "mariadb": r"DOUBLE ZEROFILL|INET|COMPRESSED|CHAR\(0\)|BINARY\(0\)|YEAR\(2\)|ENUM.*(binary|cp932)",
    "mysql": r"YEAR|CHAR\(0\)|BINARY\(0\)|(DOUBLE|DECIMAL).*ZEROFILL|ENUM.*(binary|cp932)",
}
"""Regular expressions for types that Debezium cannot handle.

Debezium's parser of table definitions refuses INET4 and INET6. Its connector does not decompress columns, and fails at
an ENUM or SET whose labels are in the character set `binary`. The driver with which Debezium reads tables fails at
negative numbers that have leading zeros. Debezium also fails at a table with a YEAR and eight columns of numbers. The
reason is a list of bits in MySQL's log, which says for each column of numbers whether it is unsigned. MySQL 8.0 has no
bit for a YEAR in this list, but Debezium expects one, and reads beyond the end of the list.
"""


def kinds(flavour: Flavour, version: tuple[int, int]) -> Sequence[Kind]:
    """Returns the types that this server has, except for those that Debezium cannot publish."""
    return [
        Kind(
            definition=of.definition,
            draw=_years if of.definition == "YEAR" and flavour == "mariadb" else of.draw,
            listed=_listed(of.definition, flavour),
            listed_reads=_listed_reads(of.definition),
        )
        for of in types(flavour, version, CHARSETS)
        if not re.search(NOT_CARRIED[flavour], of.definition)
    ]


def _years(random: Random) -> str:
    """Draws a year. It is never 0, because Debezium fails when it reads a year 0 from a table of MariaDB."""
    return str(random.randrange(1901, 2156))


def _listed_reads(definition: str) -> Rules:
    if definition.startswith("FLOAT"):
        return {"a float with six digits": listed.six_digits}
    if definition == "DOUBLE(10,2)":
        return {"a double with two decimals": listed.two_decimals}
    return {"a day of the year 0 in a table": listed.year_1} if definition.startswith("DATE") else {}


def _listed(definition: str, flavour: Flavour) -> Rules:
    if definition == "BIT(1)":
        return {"one bit as a boolean": listed.one_bit}
    if definition == "FLOAT(7,2)":
        return {"a float as a double": listed.as_double}
    if definition == "UUID":
        return {"zeros at the end of a UUID": listed.shifted_uuid}
    if definition.startswith("TIME("):
        return {"zeros at the end of a time": listed.fraction_digits}
    if definition.startswith("DATE"):
        return {"a date without a day as null": listed.no_day, "a day of the year 0": listed.year_0}
    if definition.startswith("TIMESTAMP"):
        return {"a date without a day as null": listed.no_day, "the zero timestamp as 1970": listed.epoch}
    if definition == "JSON" and flavour == "mariadb":
        return {"JSON of MariaDB as text": listed.as_text}
    if definition == "JSON":
        return {"text of JSON": listed.same_json}
    if definition.startswith(("ENUM", "SET")):
        return {"labels with backslashes": listed.escaped} if "\\" in definition else {}
    if "CHARACTER SET" in definition:
        return {"no character of Unicode": listed.no_character}
    return {}


KEYS: Sequence[tuple[str, Callable[[int], str]]] = (
    ("INT", str),
    ("BIGINT", lambda number: str(number << 32)),
    ("VARCHAR(40) CHARACTER SET utf8mb4", lambda number: f"'k\"{number} ü'"),
    ("BINARY(4)", lambda number: f"x'{number:08x}'"),
    ("DATE", lambda number: f"DATE_ADD('1970-01-02', INTERVAL {number} DAY)"),
    ("DECIMAL(12,2)", lambda number: f"{number}.50"),
)
"""Types of key columns. Each has a function that returns the SQL literal of key number N."""


def small(random: Random) -> str:
    """Draws a small number."""
    return str(random.randrange(100))
