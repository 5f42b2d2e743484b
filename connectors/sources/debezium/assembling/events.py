"""Turns one event into the row that is published: decides whether the old row is complete, and adapts the columns."""

from collections.abc import Iterable

from changelog.connectors.capture.rows.row_change import UNCHANGED, Delete, Insert, Update
from changelog.connectors.sources.debezium.assembling.binder import RELATION
from changelog.connectors.sources.debezium.decode.events import Changed, EventTable, Row

_PARTLY = frozenset({"postgresql"})
"""The connectors whose deletes may have an old row that only looks complete: columns that the log does not have are
null, or even have their defaults.

With PostgreSQL, the table's replica identity decides which columns the log has. Events do not contain the replica
identity. But if it is FULL, each update has an old row, and otherwise almost no update has one. So the old row of a
delete counts as complete if the table's last update had an old row.
https://debezium.io/documentation/reference/stable/connectors/postgresql.html#postgresql-replica-identity
"""


class OldRows:
    """Decides whether old rows are complete.

    `whole` has the tables whose last update had an old row, as `SCHEMA.NAME`.
    """

    def __init__(self, whole: Iterable[str]) -> None:
        self.whole = set(whole)
        self._of_tables: dict[int, tuple[str, tuple[int, ...]]] = {}
        """For each table, by `EventTable.number`: its name, as in `whole`, and the places of its key columns in a row.
        """

    def insert(self, event: Changed) -> Insert:
        """Returns the row of a create or a read."""
        assert event.after is not None
        return Insert(relid=RELATION, new=event.after)

    def update(self, event: Changed) -> Update:
        """Returns the row of an update.

        Debezium sends no update if a row's key changes. So if the old row of an update has another key, values of that
        key are missing: the database logged only the columns of an index. Such an old row is ignored.
        """
        assert event.after is not None
        before, after = event.before, event.after
        name, places = self._of(event.table)
        if before is not None and any(before[place] != after[place] for place in places):
            before = None
        (self.whole.discard if before is None else self.whole.add)(name)
        return Update(relid=RELATION, old_kind=None if before is None else "O", old=before, new=after)

    def delete(self, event: Changed) -> Delete:
        """Returns the row of a delete. If it is unknown whether the old row is complete, only the key is used."""
        if event.before is not None and self._is_whole(event):
            return Delete(relid=RELATION, old_kind="O", old=event.before)
        return Delete(relid=RELATION, old_kind="K", old=_key_row(event))

    def move(self, deleted: Changed, created: Changed) -> Update:
        """Returns the row of a delete and a create that together change a key."""
        assert created.after is not None
        delete = self.delete(deleted)
        return Update(relid=RELATION, old_kind=delete.old_kind, old=delete.old, new=created.after)

    def _is_whole(self, event: Changed) -> bool:
        return event.facts.connector not in _PARTLY or self._of(event.table)[0] in self.whole

    def _of(self, table: EventTable) -> tuple[str, tuple[int, ...]]:
        names = self._of_tables.get(table.number)
        if names is None:
            places = tuple(place for place, column in enumerate(table.columns) if column.name in table.key)
            names = self._of_tables[table.number] = ".".join(table.name), places
        return names


def _key_row(event: Changed) -> Row:
    """Returns a row that has only the columns of the key."""
    keys = dict(zip(event.table.key, event.key, strict=True))
    before = event.before or (UNCHANGED,) * len(event.table.columns)
    return tuple(
        keys.get(column.name, old if column.name in event.table.key else UNCHANGED)
        for column, old in zip(event.table.columns, before, strict=True)
    )


def fitted(row: Row, table: EventTable, target: EventTable) -> Row:
    """Returns `row`, a row of `table`, as a row with the columns of `target`. Missing values are UNCHANGED."""
    values = {column.name: value for column, value in zip(table.columns, row, strict=True)}
    return tuple(values.get(column.name, UNCHANGED) for column in target.columns)
