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
    AlterationKind.REPLACED: "~ table {0.name} is another table",
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
    AlterationKind.REWRITTEN: "! every row is rewritten, while the table is locked to all others",
    AlterationKind.TRUNCATED: "! every row is removed by TRUNCATE",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A migration that was tried and rolled back.

    `statements` is the number of statements in `file`, and `where` names the database on which they were tried. If that
    was a copy of the live database, `lost` has the definitions that the copy lacked. `planned` has what the migration
    would do to each entity.
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
        """The number of statements that were tried, and the database on which they were tried, as a sentence."""
        return f"{self.statements} statement{'s' * (self.statements != 1)} tried on {self.where} and rolled back"

    @property
    def summary(self) -> str:
        """The last line of a report: the verdict, with the entities that stop the service or break readers."""
        stopped = ", ".join(entity.entity for entity in self.planned if entity.stops)
        broken = ", ".join(entity.entity for entity in self.planned if entity.troubles and not entity.stops)
        harms = [f"the service would stop ({stopped})"] if stopped else []
        harms += [f"readers would break ({broken})"] if broken else []
        return f"{self.tried_on}: {'; '.join(harms) or 'nothing breaks'}"


def text(tried: Tried) -> str:
    """Returns the changes, troubles and notes of each entity, with the lines of their statements; then the verdict."""
    return "\n".join(map(safe, _lines(tried)))


def _lines(tried: Tried) -> Iterator[str]:
    yield from _missing(tried)
    for planned in tried.planned:
        if planned.changed:
            yield f"{planned.entity} ({planned.table})"
            yield from (f"  {tried.file}:{line}: {change}" for line, change in _changes(planned))
            yield from (f"  {tried.file}:{trouble.line}: {_error(trouble)}" for trouble in planned.troubles)
            yield from (f"  note: {note}" for note in _notes(planned))
    untouched = [planned.entity for planned in tried.planned if not planned.changed]
    if untouched:
        yield f"no change: {', '.join(untouched)}"
    yield ""
    yield tried.summary


def _missing(tried: Tried) -> Iterator[str]:
    for definition in tried.lost:
        instead = ", and has a substitute" if definition.stands_in else ""
        yield f"note: the copy lacks {definition.what}{instead}: {definition.why}"


def _changes(planned: Planned) -> Iterator[tuple[int, str]]:
    if planned.is_new:
        yield planned.line, "+ entity, which the service publishes from its next start on"
    for alteration in planned.alterations:
        yield alteration.line, _spelled(alteration)


def _spelled(alteration: Alteration) -> str:
    return SPELLED[alteration.kind].format(alteration)


def _error(trouble: Trouble) -> str:
    return f"ERROR {trouble.rule} {trouble.path}: {_consequence(trouble)}; {trouble.hint}"


def _consequence(trouble: Trouble) -> str:
    broken = "the service stops" if trouble.breaks == THE_SERVICE else f"{trouble.breaks} break"
    return f"{broken}: {trouble.text}"


def _notes(planned: Planned) -> Iterator[str]:
    yield from planned.notes
    if planned.reads_again:
        columns = ", ".join(planned.reads_again)
        action = "asks for the table to be read again" if planned.asks else "reads the table again"
        yield f"the service {action}, because the log does not say what older rows hold in {columns}"
    for unseen in planned.unseen:
        command = f"`changelog schemas accept {planned.entity} --read-again`"
        yield f"{unseen}, and the service cannot see that; to read the table again, stop the service and run {command}"


def json_(tried: Tried) -> str:
    """Returns one JSON object. Its `entities` include those that do not change."""
    value = {
        "file": tried.file,
        "statements": tried.statements,
        "tried_on": tried.where,
        "lost": [asdict(definition) for definition in tried.lost],
        "verdict": tried.verdict,
        "entities": [asdict(planned) for planned in tried.planned],
    }
    return json.dumps(value)


def _report(tried: Tried) -> CheckReport:
    """Returns the plan as a report of `schemas check`, with one verdict for each entity."""
    notes = [f"{planned.entity}: {note}" for planned in tried.planned for note in _notes(planned)]
    return CheckReport(
        against=f"the live tables, {tried.tried_on}",
        verdicts=[_verdict(tried.file, planned) for planned in tried.planned],
        notes=[*_missing(tried), *notes],
    )


def _verdict(file: str, planned: Planned) -> Verdict:
    state = "incompatible" if planned.troubles else "compatible" if planned.changed else "unchanged"
    return Verdict(
        file=file,
        subject=planned.entity,
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
            for trouble in planned.troubles
        ),
    )


FORMATS: Mapping[str, Callable[[Tried], str]] = {
    "text": text,
    "json": json_,
    "junit": lambda tried: reports.junit(_report(tried)),
    "github": lambda tried: reports.github(_report(tried)),
}
