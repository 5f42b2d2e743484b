"""Finds out what an ALTER TABLE does besides changing the definition: it can rename the table, or remove its rows."""

from collections.abc import Iterator, Sequence
from typing import Final

from changelog.connectors.sources.mysql.decode.statements.effects import (
    Altered,
    Effect,
    PartitionExchanged,
    PartitionTruncated,
    Renamed,
    TableName,
    TablespaceReplaced,
)
from changelog.connectors.sources.mysql.decode.statements.sql_tokens import UnclearStatementError
from changelog.connectors.sources.mysql.decode.statements.statement_reader import StatementReader


def altered(reader: StatementReader) -> Sequence[Effect]:
    """Returns the effects of an ALTER TABLE. The reader stands after the words ALTER TABLE.

    The `Renamed` effects come last, wherever RENAME stands in the statement.

    The function searches for words such as IMPORT. Some of them can also be the name of a column. Such a word counts
    only before TABLE, PARTITION or TABLESPACE. Of these three, only TABLESPACE can be the name of a column. So the one
    mistake is that CHANGE import tablespace INT looks like IMPORT TABLESPACE. It does no harm: the table is read
    without need.
    """
    reader.accept("IF", "EXISTS")
    table = reader.table()
    actions = list(_actions(reader, table))
    moves = [action for action in actions if isinstance(action, Renamed)]
    return (Altered(table=table), *(action for action in actions if action not in moves), *moves)


def _actions(reader: StatementReader, table: TableName) -> Iterator[Effect]:
    while keyword := reader.find(_VERBS):
        if keyword == "RENAME":
            if reader.keyword not in _PARTS_WITH_NAMES:
                yield Renamed(table=table, new=_new_name(reader))
        elif keyword in _FILE_VERBS and reader.accept("TABLESPACE"):
            yield TablespaceReplaced(table=table)
        elif reader.accept("TABLE"):  # CONVERT TABLE other TO PARTITION p
            yield PartitionExchanged(table=table, other=reader.table())
        elif reader.accept("PARTITION"):
            yield _partition_change(keyword, reader, table)


def _new_name(reader: StatementReader) -> TableName:
    if not reader.accept_symbol("="):
        reader.skip_any(frozenset({"TO", "AS"}))
    return reader.table()


def _partition_change(keyword: str, reader: StatementReader, table: TableName) -> Effect:
    if keyword in ("DROP", "TRUNCATE"):
        return PartitionTruncated(table=table)
    if keyword in _FILE_VERBS:
        return TablespaceReplaced(table=table)
    if not reader.find(
        frozenset({"TABLE"})
    ):  # EXCHANGE PARTITION p WITH TABLE other, CONVERT PARTITION p TO TABLE other
        raise UnclearStatementError
    return PartitionExchanged(table=table, other=reader.table())


_VERBS: Final = frozenset({"CONVERT", "DISCARD", "DROP", "EXCHANGE", "IMPORT", "RENAME", "TRUNCATE"})
_FILE_VERBS: Final = frozenset({"DISCARD", "IMPORT"})
_PARTS_WITH_NAMES: Final = frozenset({"COLUMN", "INDEX", "KEY"})
