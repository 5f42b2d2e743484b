"""Continues a changelog over a gap, where the database's log no longer connects to the end of the changelog.

An epoch is the first part of a position. It counts the histories of the database's log: a row of a later epoch is newer
than every row of an earlier one. After the gap, the changelog continues in a new epoch, the highest so far. The first
changes of this epoch are those at the start of the replication slot. The existing slot is used if it can still be read
and the caller wants to keep it, otherwise a new one. The service then reads every table again, and publishes a delete
for each key of the changelog that the table lacks. Afterwards the changelog equals its tables, no matter which changes
were lost.

Sometimes the changelog itself has lost rows that consumers may already have read. Nobody knows the keys of those rows,
so the service cannot delete these keys one by one. Instead, it publishes a truncate, as the first row after the gap,

- for each entity that has lost a file or a topic, and
- for every entity if the slot starts after the end of the changelog. The service confirms a part of the log only after
  it has stored the rows from this part. So the changelog once had the rows in between, and has lost them.

Until the sink has stored the checkpoint that `crossing` makes, every start finds the gap again, and the steps can be
repeated.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import psycopg

from changelog.connectors.capture.settings_guard import check_settings, shapes_of
from changelog.connectors.capture.tables.gap_records import truncates
from changelog.connectors.capture.tables.repairs import Repairs, over_gap
from changelog.connectors.failpoints import Reach
from changelog.connectors.findings import refuse
from changelog.connectors.sources import ChangelogEnd, CrossedGap
from changelog.connectors.sources.postgres.admin import evidence
from changelog.connectors.sources.postgres.admin.catalog import read_tables
from changelog.connectors.sources.postgres.admin.check import Requirements, findings
from changelog.connectors.sources.postgres.admin.claim import claim_slot
from changelog.connectors.sources.postgres.admin.lineage import cluster_of, joins_on, timeline_of
from changelog.connectors.sources.postgres.admin.slot import (
    LOST,
    ensure_publication,
    ensure_slot,
    read_database,
    slot_state,
)
from changelog.connectors.sources.postgres.session.connection import connect, translated
from changelog.connectors.sources.postgres.settings import CATALOG_SETTINGS, Settings
from changelog.connectors.sources.postgres.stream.replication import ReplicationConnection, System
from changelog.connectors.sources.postgres.values.lsn import lsn_text, through_lsn, through_text
from changelog.connectors.sources.postgres.values.text_to_json import SETTINGS
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.entity import Entity
from changelog.envelope.gap import Gap, Side
from changelog.envelope.position import Position

FAIL_POINTS = ("gap:claimed", "gap:slot-dropped", "gap:taken-over", "gap:slot-made", "gap:stored")
"""The fail points between the steps of the crossing, at which tests can crash the process.

`crossing` itself reaches all of them except `gap:stored`. Its caller reaches that one after it has stored the rows.
"""


@contextmanager
def crossing(
    settings: Settings,
    entities: Sequence[Entity],
    checkpoint: Checkpoint | None,
    take_over: Callable[[], ChangelogEnd],
    *,
    reason: str,
    keep_slot: bool,
    reach: Reach,
) -> Iterator[CrossedGap]:
    """Crosses a gap. Inside the `with` block, the slot stays claimed, and the caller commits the yielded rows and
    checkpoint.

    `checkpoint` is the checkpoint that readers of the changelog see before `take_over` is called; None if none can be
    read. The settings, and whether the slot can be kept, are checked against `checkpoint`. `take_over` shuts the
    previous writer out of the sink and returns the end of the changelog. Until then, the previous writer may store
    further checkpoints, so the new checkpoint is made from the one that `take_over` returns.

    The slot is kept only if `keep_slot` is set, the slot can be read, and it starts in the same log, after the end of
    the changelog. In every other case a new slot replaces it.

    Raises ChangelogError: SETTINGS and PRECONDITION for the same reasons as when the source is opened, IN_USE if
    another session holds the slot.
    """
    with closing(connect(settings.dsn, settings=CATALOG_SETTINGS)) as catalog:
        _refuse(catalog, settings, entities, checkpoint)
        with closing(ReplicationConnection.connect(settings.dsn, settings=SETTINGS)) as replication:
            claim_slot(catalog, replication, settings.slot, patience_s=settings.patience_s)
            reach("gap:claimed")
            system = replication.identify_system()
            history = replication.timeline_history(system.timeline)
            is_same_log = checkpoint is not None and joins_on(checkpoint, read_database(catalog)[1], system, history)
            slot_starts_later = is_same_log and _starts_later(catalog, settings.slot, checkpoint)
            if not (slot_starts_later and keep_slot) and slot_state(catalog, settings.slot) is not None:
                replication.drop_slot(settings.slot)
            reach("gap:slot-dropped")
            end = take_over()
            reach("gap:taken-over")
            ensure_publication(catalog, settings.publication, entities)
            slot = ensure_slot(
                catalog, replication, settings.slot, None, failover=settings.failover, answer_s=settings.answer_s
            )
            reach("gap:slot-made")
            position = Position(_epoch(end, history), slot.confirmed_flush - 1, 0)
            new_checkpoint = _checkpoint(catalog, settings, entities, end.checkpoint, system, position)
            gap = _gap(settings.name, reason, end, new_checkpoint)
            gap_record = gap.record(connector="postgres", database=catalog.info.dbname, at=_now(catalog))
            lost_entities = [entity for entity in entities if slot_starts_later or entity.name in end.lost]
            yield CrossedGap(checkpoint=new_checkpoint, records=[gap_record, *truncates(lost_entities, gap_record)])


def _epoch(end: ChangelogEnd, history: tuple[tuple[int, int], ...]) -> int:
    """Returns an epoch that no row of the changelog has ever had, not even a row that was lost.

    `end.epoch` is the highest epoch of the rows that are left. Each promotion of a standby begins another epoch. So
    each promotion since the changelog's last checkpoint can have made the epoch of a lost row higher by one. `history`
    lists all promotions in this server's log, as `timeline_history` returns them.
    """
    forks = [fork for fork in history if end.checkpoint is None or fork[0] >= timeline_of(end.checkpoint)]
    return end.epoch + len(forks) + 1


def _refuse(
    catalog: psycopg.Connection[Any], settings: Settings, entities: Sequence[Entity], checkpoint: Checkpoint | None
) -> None:
    """Raises the errors that opening the source would raise, except in two cases. Changes nothing.

    The slot may be missing or unusable, because a new slot then replaces it. And the changelog may end inside a
    transaction, because the rest of that transaction is not published.
    """
    shapes = shapes_of(entities, codec=settings.codec, hmac_key=settings.hmac_key)
    without_partial = None if checkpoint is None else replace(checkpoint, partial=False)
    check_settings(without_partial, shapes, accept=settings.accept_settings)
    requirements = Requirements(
        slot=settings.slot, publication=settings.publication, failover=settings.failover, entities=entities
    )
    refuse([finding for finding in findings(catalog, requirements, read_tables(catalog)) if finding.name != "slot"])


def _starts_later(catalog: psycopg.Connection[Any], slot_name: str, checkpoint: Checkpoint | None) -> bool:
    """Returns whether the slot can be read, but starts after the end of the changelog.

    Then the changelog lacks the changes between its end and the start of the slot, and no others.
    """
    state = slot_state(catalog, slot_name)
    if state is None or state.wal_status == LOST or checkpoint is None:
        return False
    return state.confirmed_flush > through_lsn(checkpoint)


def _checkpoint(
    catalog: psycopg.Connection[Any],
    settings: Settings,
    entities: Sequence[Entity],
    before: Checkpoint | None,
    system: System,
    position: Position,
) -> Checkpoint:
    """Returns the checkpoint from which the changelog continues.

    `before` is the last checkpoint before the gap, if known. `position` is the position of the gap's record. The commit
    in this position is one byte before the start of the slot, so all rows from the slot come after the gap's record.
    The checkpoint's `through` is the start of the slot.
    """
    shapes = shapes_of(entities, codec=settings.codec, hmac_key=settings.hmac_key)
    repairs = Repairs() if before is None else Repairs.parse(before.repairs).of(shapes)
    new_repairs, windows = over_gap(repairs, list(shapes), position)
    return Checkpoint(
        position=position,
        through=through_text(position.commit + 1),
        epoch=position.epoch,
        windows=windows,
        settings=shapes,
        accepted={} if before is None else before.accepted,
        repairs=new_repairs.to_json(),
        source={
            "system_identifier": system.system_identifier,
            "timeline": system.timeline,
            "database": read_database(catalog)[1],
            "publication": evidence.read(catalog, settings.publication, entities).to_json(),
        },
    )


def _gap(changelog_name: str, reason: str, end: ChangelogEnd, after: Checkpoint) -> Gap:
    """Describes the gap between the end of the changelog and the checkpoint `after` it."""
    unknown = Side(position=None, epoch=end.epoch, through=None, system=None, timeline=None)
    before = unknown if end.checkpoint is None else _side(end.checkpoint, committed_at=end.committed_at)
    return Gap(name=changelog_name, reason=reason, before=before, after=_side(after), entities=tuple(after.settings))


def _side(checkpoint: Checkpoint, *, committed_at: datetime | None = None) -> Side:
    """Describes one side of the gap by the checkpoint on that side."""
    return Side(
        position=None if checkpoint.position is None else str(checkpoint.position),
        epoch=checkpoint.epoch,
        through=lsn_text(through_lsn(checkpoint)),
        system=cluster_of(checkpoint),
        timeline=timeline_of(checkpoint),
        committed_at=committed_at,
    )


def _now(catalog: psycopg.Connection[Any]) -> datetime:
    with translated("reading the server's clock"):
        row = catalog.execute("SELECT now()").fetchone()
    assert row is not None
    at: datetime = row[0]
    return at.astimezone(UTC)
