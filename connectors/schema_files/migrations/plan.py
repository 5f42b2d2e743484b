"""Plans a migration: rehearses its statements in a transaction, and judges what they do to each entity."""

from collections.abc import Iterator

from changelog.connectors.config import Config
from changelog.connectors.schema_files.migrations.judge import Judge, rule_of
from changelog.connectors.schema_files.migrations.planned import SEE_CHECK, Contracts, Planned, reasons, stop
from changelog.connectors.schema_files.migrations.states import DatabaseState, read_state
from changelog.connectors.sources.migrations import Effects, Rehearsal
from changelog.connectors.wiring.entities import resolve


def plan(rehearsal: Rehearsal, settings: Config, contracts: Contracts) -> list[Planned]:
    """Rehearses the statements, and returns what they do to each entity: the configured entities, and then new ones.

    Raises ChangelogError: USAGE if the configuration does not fit the database even before the first statement, and
    what `Rehearsal.run` raises.
    """
    entity_by_name = {entity.name: entity for entity in resolve(settings, rehearsal.tables())}
    before = read_state(rehearsal, settings, entity_by_name)
    effects = rehearsal.run([entity.table for entity in entity_by_name.values()])
    # The rehearsal holds locks now, and should end soon. So untouched tables are not read a second time.
    after = read_state(rehearsal, settings, entity_by_name, before, effects.untouched)
    judges = [
        Judge(
            settings=settings,
            file=contracts.files.get(name),
            versions=contracts.versions.get(name, ()),
            entity=entity,
            alterations=effects.alterations[entity.table],
            before=before,
            after=after,
            effects=effects,
        )
        for name, entity in sorted(entity_by_name.items())
    ]
    return [*(judge.planned() for judge in judges), *_new(before, after, effects)]


def _new(before: DatabaseState, after: DatabaseState, effects: Effects) -> Iterator[Planned]:
    """Yields the entities of new tables that the section [tables] of the configuration includes.

    The service publishes these entities from its next start on.
    """
    for name, table in sorted(after.matching.items() - before.matching.items()):
        line = effects.new_names.get(table, effects.last_line)
        error = after.refused.get(name)
        troubles = [] if error is None else list(reasons(name, error, line))
        for finding in after.findings.get(name, ()):
            if finding.status == "fail":
                rule, _ = rule_of(finding)
                troubles.append(stop(rule, line, finding.message, finding.hint or SEE_CHECK))
        yield Planned(
            entity=name, table=".".join(table), is_new=True, line=line, troubles=troubles, stops=bool(troubles)
        )
