"""Finds what a rehearsed migration script does to a table, and which line of the script does it.

The module compares the states of the table before the script and after each statement. It does no I/O.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from changelog.connectors.sources.migrations import Alteration, AlterationKind
from changelog.connectors.sources.postgres.migration.rehearsal import ColumnState, RehearsedStep, TableState

_COMPUTES = re.compile(r"\bTYPE\b.*\bUSING\b", re.IGNORECASE | re.DOTALL)
_TRUNCATES = re.compile(r"TRUNCATE\b", re.IGNORECASE)
_SAME_VALUES = {("smallint", "integer"), ("smallint", "bigint"), ("integer", "bigint")}
"""Type changes that rewrite the table but keep every value."""


def alterations(before: TableState, steps: Sequence[RehearsedStep], existed: Callable[[int], bool]) -> list[Alteration]:
    """Returns the alterations of a table from `before` to the last step.

    `existed` takes the OID of a table or partition, and returns whether it existed before the script.
    """
    return list(_History(before, steps).alterations(existed))


class _History:
    """The states of a table before the script and after each statement; None after the table was dropped."""

    def __init__(self, before: TableState, steps: Sequence[RehearsedStep]) -> None:
        self._before = before
        self._steps = steps
        self._states = [before, *(step.states.get(before.oid) for step in steps)]

    def alterations(self, existed: Callable[[int], bool]) -> Iterator[Alteration]:
        """Yields the alterations of the table itself, then of its columns in order, then all others."""
        before, after = self._before, self._states[-1]
        if after is None:
            yield Alteration(kind=AlterationKind.GONE, line=self._line(_table), before=_table(before))
            return
        if _table(before) != _table(after):
            yield Alteration(
                kind=AlterationKind.MOVED, line=self._line(_table), before=_table(before), after=_table(after)
            )
        for number in sorted({*before.columns, *after.columns}):
            yield from self._column(number, before.columns.get(number), after.columns.get(number))
        yield from self._files()
        for kind, aspect in (
            (AlterationKind.KEYS, _keys),
            (AlterationKind.IDENTITY, _identities),
            (AlterationKind.PUBLISHED, _published),
        ):
            if aspect(before) != aspect(after):
                yield Alteration(kind=kind, line=self._line(aspect), before=aspect(before), after=aspect(after))
        yield from self._partitions(before, after, existed)

    def _column(self, number: int, before: ColumnState | None, after: ColumnState | None) -> Iterator[Alteration]:
        if after is None:
            assert before is not None
            line = self._line(lambda state: number in state.columns)
            yield Alteration(kind=AlterationKind.DROPPED, line=line, name=before.name, before=before.type)
        elif before is None:
            line = self._line(lambda state: number in state.columns)
            yield Alteration(
                kind=AlterationKind.ADDED,
                line=line,
                name=after.name,
                after=_described(after),
                restates=self._filled(number),
                has_default=after.holds or after.default is not None,
            )
        else:
            yield from self._changed(before, after)

    def _changed(self, before: ColumnState, after: ColumnState) -> Iterator[Alteration]:
        number, name = after.number, after.name
        if before.name != after.name:
            line = self._line(lambda state: state.columns[number].name)
            yield Alteration(
                kind=AlterationKind.RENAMED, line=line, name=name, before=before.name, after=after.name, restates=True
            )
        if before.type != after.type:
            line = self._line(lambda state: state.columns[number].type)
            restates = self._recomputed(number)
            yield Alteration(
                kind=AlterationKind.RETYPED,
                line=line,
                name=name,
                before=before.type,
                after=after.type,
                restates=restates,
            )
        if before.not_null != after.not_null:
            line = self._line(lambda state: state.columns[number].not_null)
            yield Alteration(
                kind=AlterationKind.NULLABLE, line=line, name=name, before=_null(before), after=_null(after)
            )
        if before.default != after.default:
            line = self._line(lambda state: state.columns[number].default)
            yield Alteration(
                kind=AlterationKind.DEFAULT,
                line=line,
                name=name,
                before=before.default or "none",
                after=after.default or "none",
            )

    def _files(self) -> Iterator[Alteration]:
        """Yields at most one alteration for all truncates of the table, and at most one for all rewrites.

        Each alteration has the line of the last such statement. But if some rewrites may have changed values, only
        these rewrites count for the line.
        """
        truncated = [step for step in self._rewrites() if _TRUNCATES.match(step.statement.words)]
        rewritten = [step for step in self._rewrites() if not _TRUNCATES.match(step.statement.words)]
        if truncated:
            yield Alteration(kind=AlterationKind.TRUNCATED, line=truncated[-1].statement.line)
        if rewritten:
            computes = [step for step in rewritten if self._computes(step)]
            last = (computes or rewritten)[-1]
            yield Alteration(kind=AlterationKind.REWRITTEN, line=last.statement.line, restates=bool(computes))

    def _partitions(
        self, before: TableState, after: TableState, existed: Callable[[int], bool]
    ) -> Iterator[Alteration]:
        """Yields the added and removed partitions.

        The log has no changes for the rows that come or go with a partition. So `restates` is set if the partition may
        have rows.
        """
        for oid in sorted(before.partitions.keys() ^ after.partitions.keys(), key=int):
            is_added = oid in after.partitions
            may_have_rows = existed(int(oid)) and oid in after.files if is_added else oid in before.files
            yield Alteration(
                kind=AlterationKind.PARTITION_CAME if is_added else AlterationKind.PARTITION_WENT,
                line=self._line(partial(_has_partition, oid)),
                name=(after if is_added else before).partitions[oid],
                restates=may_have_rows,
            )

    def _line(self, aspect: Callable[[TableState], object]) -> int:
        """Returns the line of the last statement that changed this aspect of the table."""
        changes = list(zip(self._states, self._states[1:], self._steps, strict=False))
        for old, new, step in reversed(changes):
            if _of(aspect, old) != _of(aspect, new):
                return step.statement.line
        return self._steps[-1].statement.line

    def _rewrites(self) -> list[RehearsedStep]:
        """Returns the statements that gave the table or a partition another file: rewrites and truncates."""
        return [
            step
            for old, new, step in zip(self._states, self._states[1:], self._steps, strict=False)
            if old is not None and new is not None and _is_rewritten(old, new)
        ]

    def _filled(self, number: int) -> bool:
        """Returns whether rows from before the column was added have a value in it."""
        rewrites = {id(step) for step in self._rewrites()}
        for step in self._steps:
            state = step.states.get(self._before.oid)
            column = state.columns.get(number) if state is not None else None
            if column is not None and (column.holds or (column.default is not None and id(step) in rewrites)):
                return True
        return False

    def _recomputed(self, number: int) -> bool:
        """Returns whether a new type of the column may have changed the text form of its stored values."""
        recomputed = False
        for old, new, step in zip(self._states, self._states[1:], self._steps, strict=False):
            if old is None or new is None or number not in old.columns or number not in new.columns:
                continue
            types = old.columns[number].type, new.columns[number].type
            if types[0] != types[1] and _is_rewritten(old, new):
                recomputed |= types not in _SAME_VALUES or _COMPUTES.search(step.statement.words) is not None
        return recomputed

    def _computes(self, step: RehearsedStep) -> bool:
        """Returns whether the statement may have computed new values although it changed no column's type."""
        at = self._steps.index(step)
        old, new = self._states[at], self._states[at + 1]
        assert old is not None
        assert new is not None
        has_same_types = all(
            new.columns[number].type == column.type for number, column in old.columns.items() if number in new.columns
        )
        return has_same_types and _COMPUTES.search(step.statement.words) is not None


def _of(aspect: Callable[[TableState], object], state: TableState | None) -> object:
    try:
        return None if state is None else (aspect(state),)
    except KeyError:  # the column does not exist yet
        return None


def _is_rewritten(old: TableState, new: TableState) -> bool:
    return any(new.files.get(oid, file) != file for oid, file in old.files.items())


def _table(state: TableState) -> str:
    return f"{state.schema}.{state.name}"


def _has_partition(oid: str, state: TableState) -> bool:
    return oid in state.partitions


def _keys(state: TableState) -> str:
    return "; ".join(state.keys) or "none"


def _identities(state: TableState) -> str:
    return "; ".join(state.identities)


def _published(state: TableState) -> str:
    return "in it" if state.published else "not in it"


def _null(column: ColumnState) -> str:
    return "NOT NULL" if column.not_null else "NULL"


def _described(column: ColumnState) -> str:
    parts = [column.type, "NOT NULL" if column.not_null else "", f"DEFAULT {column.default}" if column.default else ""]
    return " ".join(part for part in parts if part)
