"""Checks that the database's log contains everything that an entity needs from its table."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from changelog.connectors.findings import Finding, Status, fail, ok, warn
from changelog.connectors.sources.postgres.admin.catalog import Leaf, Table, identity_problem
from changelog.connectors.sources.postgres.admin.check.publication import PublicationState
from changelog.connectors.sources.postgres.admin.check.rights import RelationRights, access
from changelog.connectors.sources.postgres.admin.check.server import ROW_FILTERS, ServerFacts
from changelog.connectors.sources.postgres.session.quoting import identifier
from changelog.envelope.entity import Entity

_STORED_GENERATED = 18


def findings(
    entity: Entity,
    table: Table,
    publication: PublicationState | None,
    relations: Mapping[int, RelationRights],
    facts: ServerFacts,
    *,
    keeps_state: bool,
) -> Iterator[Finding]:
    """Yields all findings on one entity. `keeps_state` says that the service itself stores the current rows."""
    text = ".".join(entity.table)
    problems = [
        *access(entity.name, table, relations, facts.role),
        *_identity(entity, table, relations, keeps_state=keeps_state),
        *_generated(entity, table, facts),
        *_row_filter(entity, table, publication, relations, facts),
    ]
    if not any(finding.status == "fail" for finding in problems):
        yield ok(entity.name, f"{text} by {', '.join(entity.key)}")
    yield from problems


def _identity(
    entity: Entity, table: Table, relations: Mapping[int, RelationRights], *, keeps_state: bool
) -> Iterator[Finding]:
    """Yields a finding if the log lacks columns of the old row of an update or a delete.

    If the log lacks a column of the entity key or the partition key, a change cannot be published. If it lacks other
    columns, the message's `original` comes from the rows that the service itself stores. If the service stores no rows,
    `original` is unknown. For a partitioned table, two replica identities matter: that of the partition decides which
    columns the server writes to the log, and that of the partitioned table decides which of those columns it sends to
    us.
    """
    problem = identity_problem(table)
    if problem is not None:
        yield fail(entity.name, problem, f"ALTER TABLE {identifier(*entity.table)} REPLICA IDENTITY DEFAULT")
        return
    partial_relations: list[Leaf | Table] = [leaf for leaf in table.leaves if leaf.identity is not None]
    if table.kind == "p" and table.replica_identity != "f":
        partial_relations.insert(0, table)
    lacking_leaves, lacking_columns = _lacking(table, {*entity.key, *entity.partition_by})
    if lacking_leaves:
        message = f"the replica identity of {_names(lacking_leaves)} lacks {lacking_columns}"
        yield _set_full(entity, table, "fail", message, lacking_leaves, relations)
    elif partial_relations and not entity.immutable and not keeps_state:
        message = f"the log has only the key of old rows of {_names(partial_relations)}, so `original` is unknown"
        whole_rows = _set_full(entity, table, "warn", message, partial_relations, relations)
        yield replace(whole_rows, hint=f"{whole_rows.hint}; or set [state] path, and the service keeps the old rows")


def _generated(entity: Entity, table: Table, facts: ServerFacts) -> Iterator[Finding]:
    unlogged_columns = [
        column.name for column in table.columns if not column.published and _is_selected(entity, column.name)
    ]
    if unlogged_columns:
        newer = f"; PostgreSQL {_STORED_GENERATED} can publish stored ones" if facts.version < _STORED_GENERATED else ""
        yield warn(
            entity.name,
            f"the log does not carry generated columns: {', '.join(unlogged_columns)}",
            f"no message will contain them{newer}",
        )


def _row_filter(
    entity: Entity,
    table: Table,
    publication: PublicationState | None,
    relations: Mapping[int, RelationRights],
    facts: ServerFacts,
) -> Iterator[Finding]:
    """Yields a finding if the entity's row filter cannot be used. The filter's columns must be in the replica identity.

    If the publication has the filter already, the server lists the filter's columns. Otherwise every column whose name
    occurs as a word in `where` counts as a column of the filter.
    """
    if entity.where is not None and facts.version < ROW_FILTERS:
        hint = f"remove the setting `where` from [entities.{entity.name}]"
        yield fail(entity.name, f"PostgreSQL {facts.version} has no row filters", hint)
        return
    published_table = publication.tables.get(entity.table) if publication is not None else None
    if published_table is not None and published_table.filter is not None:
        what, used_columns = "the publication's row filter", set(published_table.filter_columns)
    else:
        words = set(re.findall(r"\w+", (entity.where or "").lower()))
        used_columns = {column.name for column in table.columns if column.name.lower() in words}
        what = "the setting `where`"
    lacking_leaves, lacking_columns = _lacking(table, used_columns)
    if lacking_leaves:
        message = (
            f"{what} uses {lacking_columns}, outside the replica identity of {_names(lacking_leaves)}:"
            " the application's own UPDATE and DELETE would fail"
        )
        yield _set_full(entity, table, "fail", message, lacking_leaves, relations)


def _lacking(table: Table, columns: set[str]) -> tuple[list[Leaf], str]:
    """Returns the leaves for which the log lacks some of the `columns`, and the columns that the first leaf lacks.

    A leaf is a table or a partition that stores rows.
    """
    leaves = [leaf for leaf in table.leaves if leaf.identity is not None and not columns <= set(leaf.identity)]
    missing = columns - set(leaves[0].identity or ()) if leaves else set()
    return leaves, ", ".join(sorted(missing))


def _set_full(
    entity: Entity,
    table: Table,
    status: Status,
    message: str,
    leaves: Sequence[Leaf | Table],
    relations: Mapping[int, RelationRights],
) -> Finding:
    """Returns a finding whose fix sets REPLICA IDENTITY FULL for each of `leaves`.

    Only the owner of a leaf can set its replica identity. If our role lacks an owner's rights, the finding has no fix,
    and the hint names the owner. If the table has virtual generated columns, there is no fix at all.
    """
    if any(column.generated == "virtual" for column in table.columns):
        hint = "REPLICA IDENTITY FULL does not work for tables with virtual generated columns"
        return Finding(name=entity.name, status=status, message=message, hint=hint)
    fixes = [f"ALTER TABLE {identifier(leaf.schema, leaf.name)} REPLICA IDENTITY FULL" for leaf in leaves]
    rights = [relations[leaf.oid] for leaf in leaves if leaf.oid in relations]
    owners = sorted({relation.owner for relation in rights if not relation.owned})
    role = f"as {', '.join(owners)}: " if owners else ""
    more = " and so on" if len(fixes) > 1 else ""
    cost = "cost: each UPDATE and DELETE writes the whole old row to the log"
    return Finding(
        name=entity.name,
        status=status,
        message=message,
        hint=f"{role}{fixes[0]}{more} ({cost})",
        fix=() if owners else tuple(fixes),
    )


def _names(leaves: Sequence[Leaf | Table]) -> str:
    first = f"{leaves[0].schema}.{leaves[0].name}"
    return first if len(leaves) == 1 else f"{first} and {len(leaves) - 1} more partitions"


def _is_selected(entity: Entity, column: str) -> bool:
    return (entity.columns is None or column in entity.columns) and column not in entity.exclude_columns
