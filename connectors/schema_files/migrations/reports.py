"""Writes the plan of a migration as text, JSON, JUnit XML or GitHub annotations."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from changelog.connectors.schema_files import reports
from changelog.connectors.schema_files.migrations.planned import THE_SERVICE, Planned, Trouble
from changelog.connectors.schema_files.reports import CheckReport
from changelog.connectors.schema_files.verdicts import SchemaFinding, Verdict
from changelog.connectors.sources.migrations import Alteration, AlterationKind, LostDefinition
from changelog.connectors.terminal import safe

SPELLED: Mapping[AlterationKind, str] = {
    AlterationKind.GONE: "- table {0.before}",
    AlterationKind.MOVED: "~ table {0.before} → {0.after}",
    AlterationKind.REPLACED: "~ table {0.name} is replaced by another table of that name",
    AlterationKind.ADDED: "+ column {0.name} {0.after}",
    AlterationKind.DROPPED: "- column {0.name} {0.before}",
    AlterationKind.RENAMED: "~ column {0.before} → {0.after}",
    AlterationKind.RETYPED: "~ column {0.name}: {0.before} → {0.after}",
    AlterationKind.NULLABLE: "~ column {0.name}: {0.before} → {0.after}",
    AlterationKind.DEFAULT: "~ column {0.name}: default {0.before} → {0.after}",
    AlterationKind.KEYS: "~ unique indexes: {0.before} → {0.after}",
    AlterationKind.IDENTITY: "~ replica identity: {0.before} → {0.after}",
    AlterationKind.PUBLISHED: "~ publication: {0.before} → {0.after}",
    AlterationKind.PARTITION_CAME: "+ partition {0.name}",
    AlterationKind.PARTITION_WENT: "- partition {0.name}",
    AlterationKind.REWRITTEN: "! every row is rewritten; meanwhile no other session can read or write the table",
    AlterationKind.TRUNCATED: "! every row is removed by TRUNCATE",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A migration that was tried and rolled back.

    `statements` is the number of statements in `file`, and `where` names the database on which they were tried. If that
    was a copy of the live database, `lost` has the definitions that the copy lacked, or for which it had only a
    substitute. `planned` has what the migration would do to each entity.
    """

    file: str
    statements: int
    where: str
    lost: Sequence[LostDefinition]
    planned: Sequence[Planned]

    @property
    def verdict(self) -> str:
        """`stops` if the service would stop, `breaks` if readers would break, otherwise `ok`."""
        if any(entity.stops for entity in self.planned):
            return "stops"
        return "breaks" if any(entity.troubles for entity in self.planned) else "ok"

    @property
    def tried_on(self) -> str:
        """Says how many statements were tried, and on which database."""
        return f"{self.statements} statement{'s' * (self.statements != 1)} tried on {self.where} and rolled back"

    @property
    def summary(self) -> str:
        """The last line of a report: the verdict, with the entities that stop the service or break readers."""
        stopping_entities = ", ".join(entity.entity for entity in self.planned if entity.stops)
        broken = ", ".join(entity.entity for entity in self.planned if entity.troubles and not entity.stops)
        harms = [f"the service would stop ({stopping_entities})"] if stopping_entities else []
        harms += [f"readers would break ({broken})"] if broken else []
        return f"{self.tried_on}: {'; '.join(harms) or 'nothing breaks'}"


def text(trial: Tried) -> str:
    """Returns the changes, troubles and notes of each entity, and then the verdict. Each change and each trouble begins
    with the file and the line of the statement that causes it.
    """
    return "\n".join(map(safe, _lines(trial)))


def _lines(trial: Tried) -> Iterator[str]:
    yield from _missing(trial)
    for planned in trial.planned:
        if planned.changed:
            yield f"{planned.entity} ({planned.table})"
            yield from (f"  {trial.file}:{line}: {change}" for line, change in _changes(planned))
            yield from (f"  {trial.file}:{trouble.line}: {_error(trouble)}" for trouble in planned.troubles)
            yield from (f"  note: {note}" for note in _notes(planned))
    untouched = [planned.entity for planned in trial.planned if not planned.changed]
    if untouched:
        yield f"no change: {', '.join(untouched)}"
    yield ""
    yield trial.summary


def _missing(trial: Tried) -> Iterator[str]:
    for definition in trial.lost:
        lacks = "has only a substitute for" if definition.stands_in else "lacks"
        yield f"note: the copy {lacks} {definition.what}: {definition.why}"


def _changes(plan: Planned) -> Iterator[tuple[int, str]]:
    if plan.is_new:
        yield plan.line, "+ entity, which the service publishes from its next start on"
    for alteration in plan.alterations:
        yield alteration.line, _spelled(alteration)


def _spelled(alteration: Alteration) -> str:
    return SPELLED[alteration.kind].format(alteration)


def _error(trouble: Trouble) -> str:
    return f"ERROR {trouble.rule} {trouble.path}: {_consequence(trouble)}; {trouble.hint}"


def _consequence(trouble: Trouble) -> str:
    broken = "the service stops" if trouble.breaks == THE_SERVICE else f"{trouble.breaks} break"
    return f"{broken}: {trouble.text}"


def _notes(plan: Planned) -> Iterator[str]:
    yield from plan.notes
    if plan.reads_again:
        columns = ", ".join(plan.reads_again)
        action = "reports that the table should be read again" if plan.asks else "reads the table again"
        yield f"the service {action}, because the log does not say what older rows hold in {columns}"
    for unseen in plan.unseen:
        command = f"`changelog schemas accept {plan.entity} --read-again`"
        yield f"{unseen}, and the service cannot see that; to read the table again, stop the service and run {command}"


def json_(trial: Tried) -> str:
    """Returns one JSON object. Its `entities` include those that do not change."""
    value = {
        "file": trial.file,
        "statements": trial.statements,
        "tried_on": trial.where,
        "lost": [asdict(definition) for definition in trial.lost],
        "verdict": trial.verdict,
        "entities": [asdict(planned) for planned in trial.planned],
    }
    return json.dumps(value)


def _report(trial: Tried) -> CheckReport:
    """Returns the plan as a report of `schemas check`, with one verdict for each entity."""
    notes = [f"{planned.entity}: {note}" for planned in trial.planned for note in _notes(planned)]
    return CheckReport(
        against=f"the live tables, {trial.tried_on}",
        verdicts=[_verdict(trial.file, planned) for planned in trial.planned],
        notes=[*_missing(trial), *notes],
    )


def _verdict(file: str, plan: Planned) -> Verdict:
    state = "incompatible" if plan.troubles else "compatible" if plan.changed else "unchanged"
    return Verdict(
        file=file,
        subject=plan.entity,
        state=state,  # type: ignore[arg-type]
        findings=tuple(
            SchemaFinding(
                rule=trouble.rule,
                path=trouble.path,
                line=trouble.line,
                text=_consequence(trouble),
                hint=trouble.hint,
                breaks=trouble.breaks,
                against=(trouble.against,) if trouble.against else (),
                strict=trouble.strict,
            )
            for trouble in plan.troubles
        ),
    )


FORMATS: Mapping[str, Callable[[Tried], str]] = {
    "text": text,
    "json": json_,
    "junit": lambda trial: reports.junit(_report(trial)),
    "github": lambda trial: reports.github(_report(trial)),
}
