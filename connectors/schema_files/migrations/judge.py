"""Judges what a migration does to one entity: whether the service would stop, which readers would break, and whether
the service would read the table again.

An alteration is one difference that the migration makes to a table. An alteration restates values if existing rows get
other values, but the database's log has no changes of these rows.
"""

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from changelog.connectors.config import Config
from changelog.connectors.findings import Finding
from changelog.connectors.schema_files.migrations.planned import SEE_CHECK, Planned, Trouble, reasons, stop
from changelog.connectors.schema_files.migrations.states import DatabaseState
from changelog.connectors.schema_files.verdicts import COMPATIBILITY
from changelog.connectors.sources.migrations import Alteration, AlterationKind, Effects
from changelog.envelope.entity import Entity
from changelog.schemas import avro, evolution
from changelog.schemas.compatibility import Mode, Rule, problems
from changelog.schemas.types import ColumnType, Struct, to_json

_HINT_TO_PASS = (
    "the service stops at the first row after the migration, until you run `changelog schemas accept {} POSITION`"
)

_TABLE_RULE = ("TABLE", (AlterationKind.IDENTITY, AlterationKind.KEYS))
_RULES_BY_FINDING = {"publication": ("PUBLICATION", (AlterationKind.PUBLISHED,))}

_STOPS_ALWAYS = (Rule.KEY_CHANGED, Rule.PARTITION_CHANGED)
"""A change that breaks one of these rules stops the service, whatever the policy of the entity is."""

LIVE = "the live table"
"""The label that sentences use for the schema that the table has before the migration."""


def rule_of(finding: Finding) -> tuple[str, Collection[AlterationKind]]:
    """Returns the rule that a finding breaks, and the kinds of alterations that may have caused the finding."""
    return _RULES_BY_FINDING.get(finding.name, _TABLE_RULE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """Judges one entity.

    `file` is the schema in the entity's file, None if there is no file. `versions` are the schema's versions in the
    changelog, as pairs of a label and a schema. `entity` is the entity before the migration. `alterations` are what the
    migration did to the entity's table; `effects` are what it did to all watched tables. `before` and `after` are the
    states of the database before and after the migration.
    """

    settings: Config
    file: avro.Schema | None
    versions: Sequence[tuple[str, avro.Schema]]
    entity: Entity
    alterations: Sequence[Alteration]
    before: DatabaseState
    after: DatabaseState
    effects: Effects

    def planned(self) -> Planned:
        """Returns the verdict on the entity."""
        losses = (AlterationKind.GONE, AlterationKind.MOVED)
        loss = next((alteration for alteration in self.alterations if alteration.kind in losses), None)
        if loss is not None and self.entity.table not in self.after.tables:
            return self._planned(self.alterations, [self._lost_table(loss)], [])
        changes = evolution.changes(self._old, self._new)
        if loss is not None:
            alterations = [loss, *self._replaced(changes)]
            reread_columns = [name for name, _ in self._new.fields]
        else:
            alterations = [*self.alterations, *self._retyped_inside(changes)]
            restating = [alteration.name for alteration in alterations if alteration.restates or alteration.has_default]
            reread_columns = list(evolution.restated(changes, restating))
        stops = [*self._refusals(), *self._new_failures(), *self._truncations()]
        return self._planned(alterations, stops, reread_columns)

    def _planned(
        self, alterations: Sequence[Alteration], stops: Sequence[Trouble], reread_columns: Sequence[str]
    ) -> Planned:
        service_troubles, file_troubles = self._incompatible_changes()
        stops_always = any(trouble.rule in _STOPS_ALWAYS for trouble in service_troubles)
        halts = bool(service_troubles) and self.entity.evolution.on_incompatible == "stop"
        may_pass = halts and not stops_always and not stops
        by_line = sorted(alterations, key=lambda alteration: alteration.line)
        return Planned(
            entity=self.entity.name,
            table=".".join(self.entity.table),
            alterations=by_line,
            troubles=sorted(
                [*stops, *service_troubles, *file_troubles], key=lambda trouble: (trouble.line, trouble.path)
            ),
            notes=[*self._warnings(), *([_HINT_TO_PASS.format(self.entity.name)] if may_pass else [])],
            stops=bool(stops or stops_always or halts),
            reads_again=reread_columns,
            asks=self.entity.evolution.on_restated == "ask",
            unseen=[unseen for alteration in by_line if (unseen := self._unseen(alteration, reread_columns))],
        )

    @property
    def _old(self) -> Struct:
        return self.before.shapes[self.entity.name]

    @property
    def _new(self) -> Struct:
        return self.after.shapes.get(self.entity.name, self._old)

    def _lost_table(self, loss: Alteration) -> Trouble:
        table, name = ".".join(self.entity.table), self.entity.name
        if loss.kind is AlterationKind.MOVED:
            hint = f'then change [entities.{name}] to table = "{loss.after}", and publish that entity from the start'
            return stop("TABLE_RENAMED", loss.line, f"{table} becomes {loss.after}", hint)
        hint = f"stop the service first, and remove entity {name} from the configuration"
        return stop("TABLE_DROPPED", loss.line, f"{table} is dropped", hint)

    def _replaced(self, changes: Sequence[evolution.ColumnChange]) -> Iterator[Alteration]:
        """Yields alterations for the case that another table has taken the name of the entity's table.

        A column of the new table is compared with the column of the old table that has the same name.
        """
        line = self.effects.new_names.get(self.entity.table, self.effects.last_line)
        yield Alteration(kind=AlterationKind.REPLACED, line=line, name=".".join(self.entity.table))
        for change in changes:
            old, new = (_spelled(type_) for type_ in (change.old, change.new))
            if change.kind in (evolution.ChangeKind.ADDED, evolution.ChangeKind.REPLACED):
                yield Alteration(kind=AlterationKind.ADDED, line=line, name=change.column, after=new)
            if change.kind in (evolution.ChangeKind.DROPPED, evolution.ChangeKind.REPLACED):
                yield Alteration(
                    kind=AlterationKind.DROPPED, line=line, name=change.before or change.column, before=old
                )
            if change.kind is evolution.ChangeKind.RETYPED:
                yield Alteration(kind=AlterationKind.RETYPED, line=line, name=change.column, before=old, after=new)

    def _refusals(self) -> Iterator[Trouble]:
        """Yields a trouble for each reason why the configuration no longer fits the table."""
        error = self.after.refused.get(self.entity.name)
        if error is not None:
            key_columns = {*self.entity.key, *self.entity.partition_by}
            keys = (AlterationKind.KEYS,)
            line = self._line(lambda alteration: _concerns(key_columns, alteration) or _is_of(keys, alteration))
            yield from reasons(self.entity.name, error, line)

    def _new_failures(self) -> Iterator[Trouble]:
        for finding in self._new_findings("fail"):
            rule, kinds = rule_of(finding)
            yield stop(rule, self._line(partial(_is_of, kinds)), finding.message, finding.hint or SEE_CHECK)

    def _warnings(self) -> list[str]:
        return [finding.message for finding in self._new_findings("warn")]

    def _new_findings(self, status: str) -> list[Finding]:
        name = self.entity.name
        old_findings = {(finding.name, finding.message) for finding in self.before.findings.get(name, ())}
        return [
            finding
            for finding in self.after.findings.get(name, ())
            if finding.status == status and (finding.name, finding.message) not in old_findings
        ]

    def _truncations(self) -> Iterator[Trouble]:
        for alteration in self.alterations:
            if alteration.kind is AlterationKind.TRUNCATED and self.entity.on_truncate == "stop":
                hint = f'DELETE instead, or set [entities.{self.entity.name}] on_truncate = "publish"'
                yield stop("TRUNCATE", alteration.line, "a TRUNCATE is not published", hint)

    def _incompatible_changes(self) -> tuple[list[Trouble], list[Trouble]]:
        """Returns two lists of troubles. Each trouble is a change of columns that a compatibility mode forbids.

        The first list applies the mode of the entity, as the service does. The second list applies the mode that the
        schema file chooses, and has only troubles that are not in the first list.
        """
        if self.entity.name not in self.after.shapes:
            return [], []
        live = (LIVE, self._schema(self.entity, self._old))
        mode = self.entity.evolution.mode
        reasons_given: set[tuple[str, str, str]] = set()
        service_troubles = list(self._incompatible([*self.versions, live], mode, reasons_given))
        if self.file is None:
            return service_troubles, []
        own_mode = self.file.get(COMPATIBILITY)
        mode = Mode(own_mode) if own_mode in list(Mode) else mode
        return service_troubles, list(
            self._incompatible([(f"{self.entity.name}.avsc", self.file), live], mode, reasons_given)
        )

    def _incompatible(
        self, old: Sequence[tuple[str, avro.Schema]], mode: Mode, reasons_given: set[tuple[str, str, str]]
    ) -> Iterator[Trouble]:
        """Yields the troubles whose reasons are not yet in `reasons_given`, and adds their reasons to that set."""
        new = self._schema(self.after.resolved[self.entity.name], self._new)
        for problem in reversed(problems(new, old, mode)):
            reason = (problem.rule.value, problem.path, problem.breaks)
            if reason in reasons_given:
                continue
            reasons_given.add(reason)
            columns = {avro.true_name(part) for part in problem.path.split("/")[2:3]}
            yield Trouble(
                rule=problem.rule.value,
                line=self._line(partial(_concerns, columns)),
                path=problem.path,
                breaks=problem.breaks,
                against=problem.against,
                text=problem.text,
                hint=problem.hint,
                strict=problem.strict,
            )

    def _schema(self, entity: Entity, shape: Struct) -> avro.Schema:
        return avro.state_schema(entity.name, shape, entity.key, self.settings.prefix, partition_by=entity.partition_by)

    def _retyped_inside(self, changes: Sequence[evolution.ColumnChange]) -> Iterator[Alteration]:
        """Yields an alteration for each column whose type changed although no statement altered the column.

        This happens if a statement alters a composite type (a type with fields) that the column has. The values of such
        a column differ now.
        """
        altered_names = {alteration.name for alteration in self.alterations}
        for change in changes:
            if change.kind is evolution.ChangeKind.RETYPED and change.column not in altered_names:
                line = self.effects.last_line
                yield Alteration(
                    kind=AlterationKind.RETYPED, line=line, name=change.column, before="its type", after="altered"
                )

    def _unseen(self, alteration: Alteration, reread_columns: Sequence[str]) -> str | None:
        """Returns a text that says how an alteration changes published values without a change in the log.

        Returns None if it changes none in this way, or if the service will read the altered column again.
        """
        if not alteration.restates or (alteration.name and alteration.name in reread_columns):
            return None
        column_names = {name for name, _ in self._new.fields}
        match alteration.kind:
            case AlterationKind.REWRITTEN:
                return "a column may be computed again (USING)"
            case AlterationKind.PARTITION_CAME:
                return f"the rows of partition {alteration.name} join the table"
            case AlterationKind.PARTITION_WENT:
                return f"the rows of partition {alteration.name} leave the table"
            case AlterationKind.RETYPED | AlterationKind.RENAMED | AlterationKind.ADDED if (
                alteration.name in column_names
            ):
                return f"stored values of {alteration.name} may have another text"
        return None

    def _line(self, concerns: Callable[[Alteration], bool]) -> int:
        """Returns the last line among the alterations that `concerns` accepts.

        If it accepts none, returns the last line among all alterations. If there are no alterations, returns the line
        of the last statement.
        """
        concerned = [alteration.line for alteration in self.alterations if concerns(alteration)]
        lines = concerned or [alteration.line for alteration in self.alterations]
        return max(lines, default=self.effects.last_line)


def _concerns(columns: Collection[str], alteration: Alteration) -> bool:
    return alteration.name in columns or (alteration.kind is AlterationKind.RENAMED and alteration.before in columns)


def _is_of(kinds: Collection[AlterationKind], alteration: Alteration) -> bool:
    return alteration.kind in kinds


def _spelled(type_: ColumnType | None) -> str:
    spelled = "" if type_ is None else to_json(type_)
    return spelled if isinstance(spelled, str) else json.dumps(spelled)
