"""Creates the tables that the campaigns write to, with triggers that number the changes of each key.

The table `counter` has a version for each key. When a row is inserted, updated or deleted, a trigger adds one to the
version of its key. If a row gets another key, this counts as a delete of the old key and an insert of the new one. Each
row has its version in the column `version`, and the number of the transaction that wrote it in `txn`. If a transaction
is rolled back, its new versions are rolled back, too. So the committed changes of a key have the versions 1, 2, 3 …, in
the order of the commits, whatever crashes.
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pymysql.cursors import Cursor

Key = tuple[int | str, ...]
"""The values of a row's key columns."""

UNIVERSE = 4_000
"""About how many different keys each table can have."""

COUNTER = (
    "CREATE TABLE counter (entity VARCHAR(20) NOT NULL, name VARCHAR(40) NOT NULL, version BIGINT NOT NULL,"
    " PRIMARY KEY (entity, name)) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
)
SIGNALS = "CREATE TABLE changelog_signal (id BIGINT PRIMARY KEY, content MEDIUMTEXT CHARACTER SET utf8mb4 NOT NULL)"
OTHER = "CREATE TABLE other (id BIGINT AUTO_INCREMENT PRIMARY KEY)"
APPEND = "INSERT INTO other VALUES ()"
"""A statement that changes a table that is not published."""

COLUMNS = "version BIGINT, txn BIGINT, amount INT, note VARCHAR(60) CHARACTER SET utf8mb4"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table. Its entity has the same `name`. `key` maps the key columns to their types."""

    name: str
    key: Mapping[str, str]
    partitions: int

    @property
    def columns(self) -> str:
        """The names of the key columns, with commas between them."""
        return ", ".join(self.key)

    @property
    def condition(self) -> str:
        """The SQL condition that selects a row by its key. It has a placeholder for the value of each key column."""
        return " AND ".join(f"{name} = %s" for name in self.key)

    def some_key(self, rng: random.Random) -> Key:
        """Returns a random key."""
        number = rng.randrange(1, UNIVERSE + 1)
        if len(self.key) == 2:
            return number // 4, number % 4
        return (f"p-{number}",) if "code" in self.key else (number,)

    def definition(self) -> str:
        """Returns the SQL that creates the table, without its triggers."""
        keys = ", ".join(f"{name} {type_} NOT NULL" for name, type_ in self.key.items())
        return f"CREATE TABLE {self.name} ({keys}, {COLUMNS}, PRIMARY KEY ({self.columns}))"

    def triggers(self) -> Iterator[str]:
        """Yields the SQL that creates the table's triggers."""
        old, new = self._counted("OLD"), self._counted("NEW")
        number = f"SET NEW.txn = @txn, NEW.version = (SELECT version FROM counter WHERE {self._counter('NEW')});"
        moved = " OR ".join(f"OLD.{name} <> NEW.{name}" for name in self.key)
        bodies = {"INSERT": new + number, "UPDATE": f"IF {moved} THEN {old} END IF; {new} {number}", "DELETE": old}
        for event, body in bodies.items():
            yield f"CREATE TRIGGER {self.name}_{event} BEFORE {event} ON {self.name} FOR EACH ROW BEGIN {body} END"

    def _name(self, row: str) -> str:
        return f"CONCAT_WS(',', {', '.join(f'{row}.{name}' for name in self.key)})"

    def _counter(self, row: str) -> str:
        return f"entity = '{self.name}' AND name = {self._name(row)}"

    def _counted(self, row: str) -> str:
        return (
            f"INSERT INTO counter VALUES ('{self.name}', {self._name(row)}, 1)"
            " ON DUPLICATE KEY UPDATE version = version + 1; "
        )


TABLES = (
    Table(name="account", key={"id": "INT"}, partitions=4),
    Table(name="line", key={"order_id": "INT", "line_no": "SMALLINT"}, partitions=2),
    Table(name="place", key={"code": "VARCHAR(20) CHARACTER SET utf8mb4"}, partitions=1),
)


def prepare(cursor: Cursor, rng: random.Random, rows: int) -> None:
    """Creates the tables, with at most `rows` rows in each."""
    for statement in (COUNTER, SIGNALS, OTHER):
        cursor.execute(statement)
    cursor.execute("SET @txn = 1")
    for table in TABLES:
        cursor.execute(table.definition())
        for trigger in table.triggers():
            cursor.execute(trigger)
        keys = sorted({table.some_key(rng) for _ in range(rows)})
        values = ", ".join(["%s"] * (len(table.key) + 1))
        cursor.execute("BEGIN")
        cursor.executemany(
            f"INSERT INTO {table.name} ({table.columns}, amount) VALUES ({values})", [(*key, 0) for key in keys]
        )
        cursor.execute("COMMIT")


def entities(database: str) -> str:
    """Returns the part of the configuration that describes the entities."""
    sections = (
        f'[entities.{table.name}]\ntable = "{database}.{table.name}"\n'
        f'partitions = {table.partitions}\non_truncate = "publish"\n'
        for table in TABLES
    )
    return "".join(sections)
