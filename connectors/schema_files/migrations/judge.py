"""One entity before and after a migration: whether the service stops, whom it breaks, and what is read again."""

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from changelog.connectors.config import Config
from changelog.connectors.findings import Finding
from changelog.connectors.schema_files.migrations.planned import SEE_CHECK, Planned, Trouble, reasons, stop
from changelog.connectors.schema_files.migrations.states import State
from changelog.connectors.schema_files.verdicts import COMPATIBILITY
from changelog.connectors.sources.migrations import Alteration, AlterationKind, Effects
from changelog.envelope.entity import Entity
from changelog.schemas import avro, evolution
from changelog.schemas.compatibility import Mode, Rule, problems
from changelog.schemas.types import ColumnType, Struct, to_json

_PASSED = "the service stops at the first row behind that, until `changelog schemas accept {} POSITION`"

_OF_TABLE = ("TABLE", (AlterationKind.IDENTITY, AlterationKind.KEYS))
_RULES = {"publication": ("PUBLICATION", (AlterationKind.PUBLISHED,))}

_PLACES = (Rule.KEY_CHANGED, Rule.PARTITION_CHANGED)
"""Rules that stop the service whatever its policy."""

LIVE = "the live table"
"""The label of the schema that the table has before the migration."""


def rule_of(finding: Finding) -> tuple[str, Collection[AlterationKind]]:
    """The rule that a finding breaks, and what may have brought it about."""
    return _RULES.get(finding.name, _OF_TABLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """One entity before and after; `alterations` are what became of its table."""

    settings: Config
    file: avro.Schema | None
    versions: Sequence[tuple[str, avro.Schema]]
    entity: Entity
    alterations: Sequence[Alteration]
    before: State
    after: State
    effects: Effects

    def planned(self) -> Planned:
        """The whole verdict."""
        losses = (AlterationKind.GONE, AlterationKind.MOVED)
        gone = next((alteration for alteration in self.alterations if alteration.kind in losses), None)
        if gone is not None and self.entity.table not in self.after.tables:
            return self._planned(self.alterations, [self._absent(gone)], [])
        changes = evolution.changes(self._old, self._new)
        if gone is not None:
            alterations = [gone, *self._replaced(changes)]
            again = [name for name, _ in self._new.fields]
        else:
            alterations = [*self.alterations, *self._inside(changes)]
            restating = [alteration.name for alteration in alterations if alteration.restates or alteration.has_default]
            again = list(evolution.restated(changes, restating))
        stops = [*self._refusals(), *self._new_failures(), *self._truncations()]
        return self._planned(alterations, stops, again)

    def _planned(self, alterations: Sequence[Alteration], stops: Sequence[Trouble], again: Sequence[str]) -> Planned:
        of_service, of_file = self._incompatible_changes()
        placed_anew = any(trouble.rule in _PLACES for trouble in of_service)
        halts = bool(of_service) and self.entity.evolution.on_incompatible == "stop"
        passed = halts and not placed_anew and not stops
        in_order = sorted(alterations, key=lambda alteration: alteration.line)
        return Planned(
            entity=self.entity.name,
            table=".".join(self.entity.table),
            alterations=in_order,
            troubles=sorted([*stops, *of_service, *of_file], key=lambda trouble: (trouble.line, trouble.path)),
            notes=[*self._warnings(), *([_PASSED.format(self.entity.name)] if passed else [])],
            stops=bool(stops or placed_anew or halts),
            reads_again=again,
            asks=self.entity.evolution.on_restated == "ask",
            unseen=[unseen for alteration in in_order if (unseen := self._unseen(alteration, again))],
        )

    @property
    def _old(self) -> Struct:
        return self.before.shapes[self.entity.name]

    @property
    def _new(self) -> Struct:
        return self.after.shapes.get(self.entity.name, self._old)

    def _absent(self, gone: Alteration) -> Trouble:
        table, name = ".".join(self.entity.table), self.entity.name
        if gone.kind is AlterationKind.MOVED:
            hint = f'set [entities.{name}] table = "{gone.after}" then, and begin that entity anew'
            return stop("TABLE_RENAMED", gone.line, f"{table} becomes {gone.after}", hint)
        hint = f"stop the service first, and take entity {name} off the configuration"
        return stop("TABLE_DROPPED", gone.line, f"{table} is dropped", hint)

    def _replaced(self, changes: Sequence[evolution.ColumnChange]) -> Iterator[Alteration]:
        """Another table takes this one's name: its columns can be matched with the old ones only by name."""
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
        """What the configuration says about the table that is no longer true."""
        error = self.after.refused.get(self.entity.name)
        if error is not None:
            placing = {*self.entity.key, *self.entity.partition_by}
            keys = (AlterationKind.KEYS,)
            line = self._line(lambda alteration: _concerns(placing, alteration) or _is_of(keys, alteration))
            yield from reasons(self.entity.name, error, line)

    def _new_failures(self) -> Iterator[Trouble]:
        for finding in self._new_findings("fail"):
            rule, kinds = rule_of(finding)
            yield stop(rule, self._line(partial(_is_of, kinds)), finding.message, finding.hint or SEE_CHECK)

    def _warnings(self) -> list[str]:
        return [finding.message for finding in self._new_findings("warn")]

    def _new_findings(self, status: str) -> list[Finding]:
        name = self.entity.name
        known = {(finding.name, finding.message) for finding in self.before.findings.get(name, ())}
        return [
            finding
            for finding in self.after.findings.get(name, ())
            if finding.status == status and (finding.name, finding.message) not in known
        ]

    def _truncations(self) -> Iterator[Trouble]:
        for alteration in self.alterations:
            if alteration.kind is AlterationKind.TRUNCATED and self.entity.on_truncate == "stop":
                hint = f'DELETE instead, or set [entities.{self.entity.name}] on_truncate = "publish"'
                yield stop("TRUNCATE", alteration.line, "a TRUNCATE is not published", hint)

    def _incompatible_changes(self) -> tuple[list[Trouble], list[Trouble]]:
        """Each reason once: what the service finds in its mode, and what else there is in the file's."""
        if self.entity.name not in self.after.shapes:
            return [], []
        live = (LIVE, self._schema(self.entity, self._old))
        mode = self.entity.evolution.mode
        seen: set[tuple[str, str, str]] = set()
        of_service = list(self._incompatible([*self.versions, live], mode, seen))
        if self.file is None:
            return of_service, []
        chosen = self.file.get(COMPATIBILITY)
        mode = Mode(chosen) if chosen in list(Mode) else mode
        return of_service, list(self._incompatible([(f"{self.entity.name}.avsc", self.file), live], mode, seen))

    def _incompatible(
        self, old: Sequence[tuple[str, avro.Schema]], mode: Mode, seen: set[tuple[str, str, str]]
    ) -> Iterator[Trouble]:
        """What is not in `seen` yet, which then has it."""
        new = self._schema(self.after.resolved[self.entity.name], self._new)
        for problem in reversed(problems(new, old, mode)):
            reason = (problem.rule.value, problem.path, problem.breaks)
            if reason in seen:
                continue
            seen.add(reason)
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

    def _inside(self, changes: Sequence[evolution.ColumnChange]) -> Iterator[Alteration]:
        """Columns that hold other values because a type was altered that they are of."""
        altered = {alteration.name for alteration in self.alterations}
        for change in changes:
            if change.kind is evolution.ChangeKind.RETYPED and change.column not in altered:
                line = self.effects.last_line
                yield Alteration(
                    kind=AlterationKind.RETYPED, line=line, name=change.column, before="its type", after="altered"
                )

    def _unseen(self, alteration: Alteration, again: Sequence[str]) -> str | None:
        """How an alteration changes stored values without any message, unseen by the service; None if it does not."""
        if not alteration.restates or (alteration.name and alteration.name in again):
            return None
        published = {name for name, _ in self._new.fields}
        match alteration.kind:
            case AlterationKind.REWRITTEN:
                return "a column may be computed anew (USING)"
            case AlterationKind.PARTITION_CAME:
                return f"what rows partition {alteration.name} holds come with it"
            case AlterationKind.PARTITION_WENT:
                return f"what rows partition {alteration.name} holds go with it"
            case AlterationKind.RETYPED | AlterationKind.RENAMED | AlterationKind.ADDED if alteration.name in published:
                return f"stored values of {alteration.name} may have another text"
        return None

    def _line(self, concerns: Callable[[Alteration], bool]) -> int:
        """The line of what did it, as far as that can be said: else that of the last change, or statement."""
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
