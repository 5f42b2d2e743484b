"""Describes the tables of a round: their columns with types, and the keys that their rows can have."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from random import Random

from tests.campaigns._debezium.listed import Rule, Rules


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A type of columns: its SQL, and a function that draws the SQL of a random value.

    `listed` are the known differences between Debezium's values and ours. `listed_reads` are further differences,
    which occur only in values that were read from tables.
    """

    definition: str
    draw: Callable[[Random], str]
    listed: Rules = field(default_factory=dict)
    listed_reads: Rules = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyColumn:
    """A column of a key: its type, and a function that returns the SQL of value number N."""

    name: str
    definition: str
    literal: Callable[[int], str]


@dataclass(slots=True, kw_only=True)
class Table:
    """A table. `columns` are the columns outside the key, by name; a change of the table's definition changes this
    mapping.

    `rules` has the known differences of each column that the table ever had. `read_rules` has those of rows that were
    read from the table.
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
        """Adds the known differences of a column."""
        self.rules.setdefault(column, {}).update(rules)

    def new_column(self) -> str:
        """Returns a name that no column had."""
        self.added += 1
        return f"n{self.added}"

    def key_values(self, number: int) -> list[str]:
        """Returns the SQL of the values of the key with this number."""
        return [column.literal(number) for column in self.key]

    def where(self, number: int) -> str:
        """Returns the condition of the row with this key."""
        pairs = zip(self.key, self.key_values(number), strict=True)
        return " AND ".join(f"{column.name} = {value}" for column, value in pairs)


@dataclass(frozen=True, slots=True)
class Alteration:
    """A change of a table's definition: its SQL, and the columns after it."""

    sql: str
    columns: Mapping[str, Kind]


def drawn(random: Random, columns: Mapping[str, Kind], null: float = 0.15) -> Iterator[str]:
    """Yields the SQL of a value for each column; some are null."""
    for kind in columns.values():
        yield "NULL" if random.random() < null else kind.draw(random)
