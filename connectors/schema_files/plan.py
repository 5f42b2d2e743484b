"""What the statements of a migration would do to the changelog: tried in a transaction that is rolled back."""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import psycopg

from connectors.config import Config, EntityConfig
from connectors.findings import Finding, fail
from connectors.schema_files.verdicts import COMPATIBILITY
from connectors.sources.postgres.admin.catalog import Table, read_tables
from connectors.sources.postgres.admin.check import Requirements, findings
from connectors.sources.postgres.migration.alterations import Alteration, AlterationKind, alterations
from connectors.sources.postgres.migration.rehearsal import (
    RehearsalScope,
    RehearsedStep,
    asking,
    look,
    rehearse,
    shared,
)
from connectors.sources.postgres.migration.script import Statement
from connectors.sources.postgres.snapshot.table_reads import bind_table
from connectors.wiring import entities
from connectors.wiring.entities import entity_name, matches, table_text
from envelope.entity import Entity
from envelope.errors import ChangelogError
from schemas import avro, evolution
from schemas.compatibility import Mode, Rule, problems
from schemas.types import ColumnType, Struct, to_json

Connection = psycopg.Connection[tuple[Any, ...]]

THE_SERVICE = "the service"
"""Whom a trouble breaks, when it is not readers."""

_PASSED = "the service stops at the first row behind that, until `changelog schemas accept {} POSITION`"

SEE_CHECK = "see `changelog check`"

_OF_TABLE = ("TABLE", (AlterationKind.IDENTITY, AlterationKind.KEYS))
_KINDS = {"publication": ("PUBLICATION", (AlterationKind.PUBLISHED,))}
"""Of a finding's name, the rule, and what may have brought it about."""

_PLACES = (Rule.KEY_CHANGED, Rule.PARTITION_CHANGED)
"""What no service goes on with, whatever the policy."""

LIVE = "the live table"
"""The label of the schema that the table has before the migration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Why the service would stop, or a reader break; `rule` names it, `line` is the statement's that does it."""

    rule: str
    line: int
    path: str
    breaks: str
    against: str
    text: str
    hint: str
    strict: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What becomes of one entity; of one that is new, `line` makes its table.

    `stops` says that the service would stop. `reads_again` are the columns for whose sake it would read the table
    again, `asks` that it waits to be told to; `unseen` are changes of stored values that it cannot see.
    """

    entity: str
    table: str
    is_new: bool = False
    line: int = 0
    alterations: Sequence[Alteration] = ()
    troubles: Sequence[Trouble] = ()
    notes: Sequence[str] = ()
    stops: bool = False
    reads_again: Sequence[str] = ()
    asks: bool = False
    unseen: Sequence[str] = ()

    @property
    def changed(self) -> bool:
        """Whether there is anything to say of it."""
        return bool(self.is_new or self.alterations or self.troubles or self.notes or self.reads_again)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contracts:
    """What is known of each entity beside its table: the schema in its file, and the versions in the changelog."""

    files: Mapping[str, avro.Schema]
    versions: Mapping[str, Sequence[tuple[str, avro.Schema]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """The database as the service would find it: the tables, each entity as it is resolved then, and what is wrong.

    `matching` are the tables that [tables] would make entities of beside those that are known, by entity.
    """

    tables: Mapping[tuple[str, str], Table]
    matching: Mapping[str, tuple[str, str]]
    resolved: Mapping[str, Entity]
    shapes: Mapping[str, Struct]
    refused: Mapping[str, ChangelogError]
    findings: Mapping[str, Sequence[Finding]]


def plan(
    connection: Connection,
    settings: Config,
    contracts: Contracts,
    statements: Sequence[Statement],
    *,
    lock_timeout_s: float,
    statement_timeout_s: float,
) -> list[Planned]:
    """What the statements, of which there is one at least, do to each entity.

    Nothing of it stays. Raises RehearsalError for a statement that the server refuses, and ChangelogError (USAGE) when
    the configuration does not fit the database before the first.
    """
    with connection.transaction(force_rollback=True):
        connection.execute(f"SET LOCAL lock_timeout = {round(lock_timeout_s * 1000)}".encode())
        with asking(connection):
            resolved = {entity.name: entity for entity in entities.resolve(settings, read_tables(connection))}
        before = _state(connection, settings, resolved)
        watched = RehearsalScope(
            tables=[before.tables[entity.table].oid for entity in resolved.values()],
            known=[oid for table in before.tables.values() for oid in _oids(table)],
            publication=settings.publication,
        )
        looks, fixed = look(connection, watched), shared(connection, settings.publication)
        steps = list(
            rehearse(
                connection,
                statements,
                watched,
                lock_timeout_s=lock_timeout_s,
                statement_timeout_s=statement_timeout_s,
            )
        )
        alike = steps and shared(connection, settings.publication) == fixed
        same = {oid for oid, each in looks.items() if steps[-1].looks.get(oid) == each} if alike else set()
        after = _state(connection, settings, resolved, before, same)  # with locks held: of what is the same, not again
    judges = [
        _Judge(
            settings=settings,
            file=contracts.files.get(name),
            versions=contracts.versions.get(name, ()),
            entity=entity,
            found=alterations(looks[before.tables[entity.table].oid], steps, set(watched.known).__contains__),
            before=before,
            after=after,
            steps=steps,
        )
        for name, entity in sorted(resolved.items())
    ]
    return [*(judge.planned() for judge in judges), *_new(before, after, steps)]


def _state(
    connection: Connection,
    settings: Config,
    resolved: Mapping[str, Entity],
    before: "_State | None" = None,
    same: Collection[int] = (),
) -> _State:
    """What the service would find now; of the tables with the oids `same` what it found `before`."""
    with asking(connection):
        tables = {(table.schema, table.name): table for table in read_tables(connection)}
    matching = _matching(settings, resolved, tables)
    names = {**{name: entity.table for name, entity in resolved.items()}, **matching}
    again, shapes, refused, found = dict(resolved), {}, {}, {}
    for name, table in names.items():
        if before is not None and name in before.shapes and table in tables and tables[table].oid in same:
            shapes[name], found[name] = before.shapes[name], before.findings[name]
            continue
        try:
            again[name] = _resolve(settings, name, table, tables)
        except ChangelogError as error:
            refused[name] = error
        if table not in tables or name not in again:
            continue
        try:
            with asking(connection):
                shapes[name] = bind_table(connection, again[name], tables[table], _hmac_key(settings)).shape
        except ChangelogError as error:
            refused.setdefault(name, error)
        found[name] = _findings(connection, settings, again[name], tables)
    return _State(tables=tables, matching=matching, resolved=again, shapes=shapes, refused=refused, findings=found)


def _oids(table: Table) -> list[int]:
    return [table.oid, *(leaf.oid for leaf in table.leaves)]


def _hmac_key(settings: Config) -> bytes:
    return b"" if settings.mask is None else settings.mask.key.encode()


def _matching(
    settings: Config, resolved: Mapping[str, Entity], tables: Mapping[tuple[str, str], Table]
) -> dict[str, tuple[str, str]]:
    """Entities that [tables] makes of tables which are those of no entity yet."""
    if settings.tables is None:
        return {}
    include, exclude = settings.tables.include, settings.tables.exclude
    taken = {entity.table for entity in resolved.values()}
    found = [table for table in tables if matches(table, include) and not matches(table, exclude)]
    return {entity_name(table): table for table in found if table not in taken and entity_name(table) not in resolved}


def _resolve(settings: Config, name: str, table: tuple[str, str], tables: Mapping[tuple[str, str], Table]) -> Entity:
    """One entity alone, so that what is wrong with another is not said of it."""
    chosen = settings.entities.get(name, EntityConfig()).model_copy(update={"table": table_text(table)})
    alone = settings.model_copy(update={"tables": None, "entities": {name: chosen}})
    [entity] = entities.resolve(alone, list(tables.values()))
    return entity


def _findings(
    connection: Connection, settings: Config, entity: Entity, tables: Mapping[tuple[str, str], Table]
) -> list[Finding]:
    """What `changelog check` has against the entity, its table and its place in the publication."""
    wanted = Requirements(
        slot=settings.slot, publication=settings.publication, failover=settings.source.failover, entities=[entity]
    )
    try:
        with asking(connection):
            found = findings(connection, wanted, list(tables.values()))
    except ChangelogError as error:
        return [fail(entity.name, error.message, error.hint or SEE_CHECK)]
    return [each for each in found if each.name in (entity.name, "publication") and each.status != "ok"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judge:
    """One entity before and after; `found` is what became of its table."""

    settings: Config
    file: avro.Schema | None
    versions: Sequence[tuple[str, avro.Schema]]
    entity: Entity
    found: Sequence[Alteration]
    before: _State
    after: _State
    steps: Sequence[RehearsedStep]

    def planned(self) -> Planned:
        """The whole verdict."""
        gone = next((each for each in self.found if each.kind in (AlterationKind.GONE, AlterationKind.MOVED)), None)
        if gone is not None and self.entity.table not in self.after.tables:
            return self._planned(self.found, [self._absent(gone)], [])
        changes = evolution.changes(self._old, self._new)
        if gone is not None:
            found = [gone, *self._replaced(changes)]
            again = [name for name, _ in self._new.fields]
        else:
            found = [*self.found, *self._inside(changes)]
            again = list(
                evolution.restated(changes, [each.name for each in found if each.restates or each.has_default])
            )
        stops = [*self._refusals(), *self._new_failures(), *self._truncations()]
        return self._planned(found, stops, again)

    def _planned(self, found: Sequence[Alteration], stops: Sequence[Trouble], again: Sequence[str]) -> Planned:
        of_service, of_file = self._incompatible_changes()
        placed_anew = any(trouble.rule in _PLACES for trouble in of_service)
        halts = bool(of_service) and self.entity.evolution.on_incompatible == "stop"
        passed = halts and not placed_anew and not stops
        in_order = sorted(found, key=lambda each: each.line)
        return Planned(
            entity=self.entity.name,
            table=".".join(self.entity.table),
            alterations=in_order,
            troubles=sorted([*stops, *of_service, *of_file], key=lambda trouble: (trouble.line, trouble.path)),
            notes=[*self._warnings(), *([_PASSED.format(self.entity.name)] if passed else [])],
            stops=bool(stops or placed_anew or halts),
            reads_again=again,
            asks=self.entity.evolution.on_restated == "ask",
            unseen=[unseen for each in in_order if (unseen := self._unseen(each, again))],
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
            return _stop("TABLE_RENAMED", gone.line, f"{table} becomes {gone.after}", hint)
        hint = f"stop the service first, and take entity {name} off the configuration"
        return _stop("TABLE_DROPPED", gone.line, f"{table} is dropped", hint)

    def _replaced(self, changes: Sequence[evolution.Change]) -> Iterator[Alteration]:
        """Another table takes the place: what is known of its columns is their names."""
        line = _line_of(self.entity.table, self.steps, other_than=self.before.tables[self.entity.table].oid)
        yield Alteration(kind=AlterationKind.REPLACED, line=line, name=".".join(self.entity.table))
        for change in changes:
            old, new = (_spelled(type_) for type_ in (change.old, change.new))
            if change.kind in (evolution.Kind.ADDED, evolution.Kind.REPLACED):
                yield Alteration(kind=AlterationKind.ADDED, line=line, name=change.column, after=new)
            if change.kind in (evolution.Kind.DROPPED, evolution.Kind.REPLACED):
                yield Alteration(
                    kind=AlterationKind.DROPPED, line=line, name=change.before or change.column, before=old
                )
            if change.kind is evolution.Kind.RETYPED:
                yield Alteration(kind=AlterationKind.RETYPED, line=line, name=change.column, before=old, after=new)

    def _refusals(self) -> Iterator[Trouble]:
        """What the configuration says of the table and no longer holds."""
        error = self.after.refused.get(self.entity.name)
        if error is not None:
            wanted = {*self.entity.key, *self.entity.partition_by}
            line = self._line(lambda each: _concerns(wanted, each) or each.kind is AlterationKind.KEYS)
            yield from _reasons(self.entity.name, error, line)

    def _new_failures(self) -> Iterator[Trouble]:
        for finding in self._new_findings("fail"):
            rule, kinds = _KINDS.get(finding.name, _OF_TABLE)
            yield _stop(rule, self._line(partial(_is_of, kinds)), finding.message, finding.hint or SEE_CHECK)

    def _warnings(self) -> list[str]:
        return [finding.message for finding in self._new_findings("warn")]

    def _new_findings(self, status: str) -> list[Finding]:
        name = self.entity.name
        known = {(finding.name, finding.message) for finding in self.before.findings.get(name, ())}
        found = self.after.findings.get(name, ())
        return [each for each in found if each.status == status and (each.name, each.message) not in known]

    def _truncations(self) -> Iterator[Trouble]:
        for each in self.found:
            if each.kind is AlterationKind.TRUNCATED and self.entity.on_truncate == "stop":
                hint = f'DELETE instead, or set [entities.{self.entity.name}] on_truncate = "publish"'
                yield _stop("TRUNCATE", each.line, "a TRUNCATE is not published", hint)

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
            told = (problem.rule.value, problem.path, problem.breaks)
            if told in seen:
                continue
            seen.add(told)
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

    def _inside(self, changes: Sequence[evolution.Change]) -> Iterator[Alteration]:
        """Columns that hold other values because a type was altered that they are of."""
        told = {each.name for each in self.found}
        for change in changes:
            if change.kind is evolution.Kind.RETYPED and change.column not in told:
                line = self.steps[-1].statement.line
                yield Alteration(
                    kind=AlterationKind.RETYPED, line=line, name=change.column, before="its type", after="altered"
                )

    def _unseen(self, each: Alteration, again: Sequence[str]) -> str | None:
        """What becomes of stored values that no message tells and the service cannot see."""
        if not each.restates or (each.name and each.name in again):
            return None
        published = {name for name, _ in self._new.fields}
        match each.kind:
            case AlterationKind.REWRITTEN:
                return "a column may be computed anew (USING)"
            case AlterationKind.PARTITION_CAME:
                return f"what rows partition {each.name} holds come with it"
            case AlterationKind.PARTITION_WENT:
                return f"what rows partition {each.name} holds go with it"
            case AlterationKind.RETYPED | AlterationKind.RENAMED | AlterationKind.ADDED if each.name in published:
                return f"stored values of {each.name} may have another text"
        return None

    def _line(self, concerns: Callable[[Alteration], bool]) -> int:
        """The line of what did it, as far as that can be said: else that of the last change, or statement."""
        lines = [each.line for each in self.found if concerns(each)] or [each.line for each in self.found]
        return max(lines, default=self.steps[-1].statement.line)


def _concerns(columns: Collection[str], each: Alteration) -> bool:
    return each.name in columns or (each.kind is AlterationKind.RENAMED and each.before in columns)


def _is_of(kinds: Collection[AlterationKind], each: Alteration) -> bool:
    return each.kind in kinds


def _new(before: _State, after: _State, steps: Sequence[RehearsedStep]) -> Iterator[Planned]:
    """Entities that [tables] makes of new tables, from the service's next start on."""
    for name, table in sorted(after.matching.items() - before.matching.items()):
        line = _line_of(table, steps)
        error = after.refused.get(name)
        troubles = [] if error is None else list(_reasons(name, error, line))
        for finding in after.findings.get(name, ()):
            if finding.status == "fail":
                rule, _ = _KINDS.get(finding.name, _OF_TABLE)
                troubles.append(_stop(rule, line, finding.message, finding.hint or SEE_CHECK))
        yield Planned(
            entity=name, table=".".join(table), is_new=True, line=line, troubles=troubles, stops=bool(troubles)
        )


def _line_of(table: tuple[str, str], steps: Sequence[RehearsedStep], *, other_than: int = 0) -> int:
    """The line of the first statement after which a table has this name, `other_than` the one with that oid."""
    found = (
        step.statement.line
        for step in steps
        if any((look.schema, look.name) == table and look.oid != other_than for look in step.looks.values())
    )
    return next(found, steps[-1].statement.line)


def _spelled(type_: ColumnType | None) -> str:
    found = "" if type_ is None else to_json(type_)
    return found if isinstance(found, str) else json.dumps(found)


def _reasons(name: str, error: ChangelogError, line: int) -> Iterator[Trouble]:
    """Why the configuration no longer fits, without where in it."""
    for text in error.message.removeprefix("configuration: ").splitlines():
        place, _, why = text.strip().partition(f"entities.{name}")
        if not place:
            _, _, said = why.partition(": ")
            said, _, hint = said.partition("; ")
            yield _stop("ENTITY", line, said or text, hint or error.hint or f"correct [entities.{name}]")


def _stop(rule: str, line: int, text: str, hint: str) -> Trouble:
    return Trouble(rule=rule, line=line, path="/", breaks=THE_SERVICE, against="", text=text, hint=hint)
