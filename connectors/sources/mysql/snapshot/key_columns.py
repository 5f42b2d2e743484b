"""SQL for the key columns of a table: their order, and their values as literals.

A table is divided into ranges by the comparisons that the server itself makes: each row is in exactly one of the ranges
`k <= a`, `k > a and k <= b` and `k > b`, whatever the collation of `k` is. A literal therefore has the column's own
character set and collation.
"""

import base64
import binascii
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Literals = tuple[str, ...]
"""The value of each key column of one row, as SQL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyColumn:
    """One key column.

    `compared` is the SQL that is compared and ordered. `literal` is SQL whose value is the column's value as a literal.
    `from_canonical` makes a literal of a canonical text, and None of a text that no value of the column has; it is None
    if rows cannot be found by the canonical texts of such a column.
    """

    compared: str
    literal: str
    from_canonical: Callable[[str], str | None] | None


def key_column(name: str, data_type: str, charset: str, collation: str) -> KeyColumn | None:
    """Returns the SQL for a column; `data_type` is as in `information_schema.COLUMNS`.

    Returns None for a type that no key can have.
    """
    column = quoted(name)
    family = _FAMILIES.get(data_type)
    if family is None:
        return None
    literal = family.literal.format(column=column, charset=charset, collation=collation)
    return KeyColumn(
        compared=family.compared.format(column=column), literal=literal, from_canonical=family.from_canonical
    )


def quoted(*names: str) -> str:
    """Returns a name for SQL, such as the names of a database and a table in it."""
    return ".".join(f"`{name.replace('`', '``')}`" for name in names)


def range_condition(key: Sequence[KeyColumn], first: Literals | None, end: Literals | None) -> str:
    """Returns the condition for the rows after `first` up to and including `end`; None is an open end."""
    parts = []
    if first is not None:
        parts.append(_after(key, first))
    if end is not None:
        parts.append(f"NOT {_after(key, end)}")
    return " AND ".join(parts) or "TRUE"


def _after(key: Sequence[KeyColumn], bound: Literals) -> str:
    """Returns the condition for keys after `bound`. The server cannot use an index for `(a, b) > (1, 2)`."""
    column, literal = key[0].compared, bound[0]
    if len(key) == 1:
        return f"({column} > {literal})"
    return f"({column} >= {literal} AND ({column} > {literal} OR {_after(key[1:], bound[1:])}))"


def keys_condition(key: Sequence[KeyColumn], keys: Sequence[Literals]) -> str:
    """Returns the condition for the rows with these keys."""
    columns = ", ".join(column.compared for column in key)
    return f"({columns}) IN ({', '.join('(' + ', '.join(literals) + ')' for literals in keys)})"


def _number(text: str) -> str | None:
    return text if re.fullmatch(r"-?\d+(\.\d+)?([eE][+-]?\d+)?", text, re.ASCII) else None


def _text(text: str) -> str:
    return f"_utf8mb4 x'{text.encode('utf-8', 'surrogatepass').hex()}'"


def _binary(text: str) -> str | None:
    try:
        return f"_binary x'{base64.b64decode(text, validate=True).hex()}'"
    except binascii.Error:
        return None


def _bits(text: str) -> str | None:
    return f"b'{text}'" if re.fullmatch("[01]{1,64}", text) else None


def _temporal(keyword: str) -> Callable[[str], str | None]:
    def literal(text: str) -> str | None:
        plain = text.replace("T", " ").removesuffix("Z").removesuffix("+00")
        return f"{keyword}'{plain}'" if re.fullmatch(r"[-:. \d]+", plain, re.ASCII) else None

    return literal


@dataclass(frozen=True, slots=True)
class _Family:
    compared: str
    literal: str
    from_canonical: Callable[[str], str | None] | None


_FAMILIES: Mapping[str, _Family] = {
    data_type: family
    for family, data_types in (
        (
            _Family("{column}", "CONCAT('', {column})", _number),
            "tinyint smallint mediumint int bigint decimal",
        ),
        (_Family("({column} + 0e0)", "CONCAT('', {column} + 0e0)", _number), "float double"),
        (_Family("({column} + 0)", "CONCAT('', {column} + 0)", _number), "year"),
        (_Family("({column} + 0)", "CONCAT('', {column} + 0)", _bits), "bit"),
        (
            _Family("{column}", "CONCAT('_{charset} x''', HEX({column}), ''' COLLATE {collation}')", _text),
            "char varchar tinytext text mediumtext longtext",
        ),
        (
            _Family("{column}", "CONCAT('_binary x''', HEX({column}), '''')", _binary),
            "binary varbinary tinyblob blob mediumblob longblob",
        ),
        (_Family("{column}", "CONCAT('DATE''', {column}, '''')", _temporal("DATE")), "date"),
        (_Family("{column}", "CONCAT('TIME''', {column}, '''')", _temporal("TIME")), "time"),
        (
            _Family("{column}", "CONCAT('TIMESTAMP''', {column}, '''')", _temporal("TIMESTAMP")),
            "datetime timestamp",
        ),
        (_Family("{column}", "QUOTE({column})", _text), "uuid inet4 inet6"),
        # Their values are ordered by number, but compared with texts as texts.
        (_Family("({column} + 0)", "CONCAT('', {column} + 0)", None), "enum set"),
    )
    for data_type in data_types.split()
}
"""The SQL for key columns, by the `DATA_TYPE` of the column."""
