"""Describes the tables of a round: their columns, the types of the columns, and the keys of the rows."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from random import Random

from tests.campaigns._debezium.listed import Rule, Rules


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A type that a column can have. `definition` is the type in SQL. `draw` returns a random value as SQL.

    `listed` has the rules for known differences between Debezium's values and ours (see `listed.py`). `listed_reads`
    has further rules, for values that were read from tables.
    """

    definition: str
    draw: Callable[[Random], str]
    listed: Rules = field(default_factory=dict)
    listed_reads: Rules = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyColumn:
    """A key column. `definition` is its type in SQL. `literal` returns the value with number N as SQL."""

    name: str
    definition: str
    literal: Callable[[int], str]


@dataclass(slots=True, kw_only=True)
class Table:
    """A table. `columns` are the present columns outside the key, by name.

    `rules` has, for each column that the table ever had, the rules for known differences in its values. `read_rules`
    has the rules for values that were read from the table.
    """

    name: str
    key: tuple[KeyColumn, ...]
    columns: dict[str, Kind]
    rules: dict[str, dict[str, Rule]] = field(default_factory=dict)
    read_rules: dict[str, Rules] = field(default_factory=dict)
    added: int = 0

    def __post_init__(self) -> None:
        for name, kind in self.columns.items():
            self.note(name, kind.listed)
            self.read_rules[name] = {**kind.listed, **kind.listed_reads}

    def note(self, column: str, rules: Rules) -> None:
        """Adds rules for the values of a column."""
        self.rules.setdefault(column, {}).update(rules)

    def new_column(self) -> str:
        """Returns a name that no column of the table has ever had."""
        self.added += 1
        return f"n{self.added}"

    def key_values(self, number: int) -> list[str]:
        """Returns the value of each key column as SQL, for the key with this number."""
        return [column.literal(number) for column in self.key]

    def where(self, number: int) -> str:
        """Returns the SQL condition that selects the row that has the key with this number."""
        pairs = zip(self.key, self.key_values(number), strict=True)
        return " AND ".join(f"{column.name} = {value}" for column, value in pairs)


@dataclass(frozen=True, slots=True)
class Alteration:
    """A change of a table's definition. `columns` are the columns outside the key after this change."""

    sql: str
    columns: Mapping[str, Kind]


def drawn(random: Random, columns: Mapping[str, Kind], null: float = 0.15) -> Iterator[str]:
    """Yields a random value for each column, as SQL. A value is null with the probability `null`."""
    for kind in columns.values():
        yield "NULL" if random.random() < null else kind.draw(random)
