"""Makes the SQL that orders and compares the key columns of a table, and the SQL that returns their values as literals.

When a table is divided into ranges, the server itself compares the keys. So each row is in exactly one of the ranges,
such as `k <= a`, `k > a and k <= b` and `k > b`, whatever the collation of `k` is. The literal of a text gets the
column's character set and collation, so that the server compares it as it compares the column's own values.
"""

import base64
import math
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from changelog.connectors.sources.mysql.session.names import quoted

Literals = tuple[str, ...]
"""The value of each key column of one row, as SQL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyColumn:
    """One key column.

    `compared` is the SQL expression by which rows are compared and ordered. `literal` is an SQL expression that returns
    the column's value as a text, in the form of an SQL literal. `from_canonical` turns the canonical text of a value
    (its text in messages) into a literal that the server always accepts; a row has this value if the SQL expression
    `lookup` equals the literal. For a text that cannot be a value of the column, `from_canonical` returns None.
    """

    compared: str
    literal: str
    lookup: str
    from_canonical: Callable[[str], str | None]


def key_column(name: str, data_type: str, charset: str, collation: str) -> KeyColumn | None:
    """Returns the SQL for a column; `data_type` is the column's `DATA_TYPE` in `information_schema.COLUMNS`.

    Returns None for a type that no key can have.
    """
    column = quoted(name)
    family = _FAMILIES.get(data_type)
    if family is None:
        return None

    def from_canonical(text: str) -> str | None:
        value = family.value_of(text)
        return None if value is None else family.requested.format(value=value, charset=charset, collation=collation)

    return KeyColumn(
        compared=family.compared.format(column=column),
        literal=family.literal.format(column=column, charset=charset, collation=collation),
        lookup=family.lookup.format(column=column),
        from_canonical=from_canonical,
    )


def range_condition(key: Sequence[KeyColumn], first: Literals | None, end: Literals | None) -> str:
    """Returns the SQL condition for the rows with keys after `first`, up to and including `end`.

    If `first` or `end` is None, the range has no limit on that side.
    """
    parts = []
    if first is not None:
        parts.append(_after(key, first))
    if end is not None:
        parts.append(f"NOT {_after(key, end)}")
    return " AND ".join(parts) or "TRUE"


def _after(key: Sequence[KeyColumn], bound: Literals) -> str:
    """Returns the SQL condition for keys after `bound`.

    It does not have the form `(a, b) > (1, 2)`, because the server cannot use an index for that.
    """
    column, literal = key[0].compared, bound[0]
    if len(key) == 1:
        return f"({column} > {literal})"
    return f"({column} >= {literal} AND ({column} > {literal} OR {_after(key[1:], bound[1:])}))"


def keys_condition(key: Sequence[KeyColumn], keys: Sequence[Literals]) -> str:
    """Returns the SQL condition for the rows with these keys.

    The condition uses OR, because with IN, MySQL 8.0.15 does not find every `TIME`.
    """
    equal = (
        " AND ".join(f"{column.lookup} = {literal}" for column, literal in zip(key, literals, strict=True))
        for literals in keys
    )
    return " OR ".join(f"({condition})" for condition in equal)


def _integer(text: str) -> str | None:
    return text if re.fullmatch(r"-?\d{1,20}", text, re.ASCII) else None


def _decimal(text: str) -> str | None:
    return text if re.fullmatch(r"-?\d{1,65}(\.\d{1,38})?", text, re.ASCII) else None


def _double(text: str) -> str | None:
    value = float(text) if re.fullmatch(r"-?\d+(\.\d+)?([eE][+-]?\d+)?", text, re.ASCII) else math.inf
    return repr(value) if math.isfinite(value) else None


def _single(text: str) -> str | None:
    """Takes the canonical text of a FLOAT. Returns the text of the equal DOUBLE; this text can have more digits."""
    double = _double(text)
    if double is None:
        return None
    try:
        return repr(*struct.unpack("<f", struct.pack("<f", float(double))))
    except OverflowError:
        return None


def _text(text: str) -> str | None:
    try:
        return text.encode().hex()
    except UnicodeEncodeError:
        return None


def _binary(text: str) -> str | None:
    try:
        return base64.b64decode(text, validate=True).hex()
    except ValueError:
        return None


def _matching(pattern: str) -> Callable[[str], str | None]:
    return lambda text: text if re.fullmatch(pattern, text, re.ASCII) else None


_DATE = r"\d{4}-\d\d-\d\d"
_CLOCK = r"\d\d:\d\d:\d\d(\.\d{1,6})?"

_date, _time, _bits = _matching(_DATE), _matching(rf"-?\d?{_CLOCK}"), _matching("[01]{1,64}")
_date_and_time = _matching(f"{_DATE} {_CLOCK}")


def _moment(text: str) -> str | None:
    return _date_and_time(text.replace("T", " ").removesuffix("Z").removesuffix("+00"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    """The SQL of some types, with the placeholders `column`, `charset` and `collation`.

    `value_of` turns a canonical text into a value, and `requested` is the literal of this value. The other members are
    those of `KeyColumn`.
    """

    compared: str
    literal: str
    lookup: str
    requested: str
    value_of: Callable[[str], str | None]


def _numeric(compared: str, value_of: Callable[[str], str | None], requested: str = "{value}") -> _Family:
    """Returns a family of types that are compared as numbers."""
    literal = f"CONCAT('', {compared})"
    return _Family(compared=compared, literal=literal, lookup=compared, requested=requested, value_of=value_of)


def _plain(literal: str, requested: str, value_of: Callable[[str], str | None]) -> _Family:
    """Returns a family of types whose columns are compared directly."""
    column = "{column}"
    return _Family(compared=column, literal=literal, lookup=column, requested=requested, value_of=value_of)


def _temporal(type_name: str, value_of: Callable[[str], str | None]) -> _Family:
    """Returns the family of a type of dates or times.

    Values are written with `CAST`, which returns NULL for a text that is not a date or time. A literal such as
    `DATE'2024-01-32'` would be an error instead.
    """
    literal = f"CONCAT('CAST(''', {{column}}, ''' AS {type_name})')"
    return _plain(literal, f"CAST('{{value}}' AS {type_name})", value_of)


# A character that the column's character set lacks becomes a question mark; without CONVERT, it would be an error.
_REQUESTED_TEXT = "CONVERT(_utf8mb4 x'{value}' USING {charset}) COLLATE {collation}"

_FAMILIES: Mapping[str, _Family] = {
    data_type: family
    for family, data_types in (
        (_numeric("{column}", _integer), "tinyint smallint mediumint int bigint"),
        (_numeric("{column}", _decimal), "decimal"),
        (_numeric("({column} + 0e0)", _single), "float"),
        (_numeric("({column} + 0e0)", _double), "double"),
        (_numeric("({column} + 0)", _integer), "year"),
        (_numeric("({column} + 0)", _bits, "b'{value}'"), "bit"),
        (
            _plain("CONCAT('_{charset} x''', HEX({column}), ''' COLLATE {collation}')", _REQUESTED_TEXT, _text),
            "char varchar tinytext text mediumtext longtext",
        ),
        (
            _plain("CONCAT('_binary x''', HEX({column}), '''')", "_binary x'{value}'", _binary),
            "binary varbinary tinyblob blob mediumblob longblob",
        ),
        (_temporal("DATE", _date), "date"),
        (_temporal("TIME(6)", _time), "time"),
        (_temporal("DATETIME(6)", _moment), "datetime timestamp"),
        (_plain("QUOTE({column})", "_utf8mb4 x'{value}'", _text), "uuid inet4 inet6"),
        (
            # An ENUM or a SET is ordered by its number, but compared for equality by its text.
            _Family(
                compared="({column} + 0)",
                literal="CONCAT('', {column} + 0)",
                lookup="{column}",
                requested=_REQUESTED_TEXT,
                value_of=_text,
            ),
            "enum set",
        ),
    )
    for data_type in data_types.split()
}
"""The SQL for key columns, by the `DATA_TYPE` of the column."""
