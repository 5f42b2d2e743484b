"""Continues a changelog over a gap, where the database's log no longer connects to the end of the changelog.

The changelog continues in a new epoch, above the highest epoch that it holds, from a slot that can still be read.
Every table is read again, and keys that the tables lack are deleted. So the changelog equals its tables again, whatever
was lost. If rows of the changelog itself may be missing, each entity starts with a truncate, because nobody knows which
keys those rows had. That is the case if a file or a topic was lost, or if the slot has moved past the changelog's end,
so that rows were confirmed that the changelog does not have.

Until the sink has stored the checkpoint made here, every start finds the gap and these steps can be repeated.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import psycopg

from changelog.connectors.capture.settings_guard import check_settings, shapes_of
from changelog.connectors.capture.tables.repairs import Repairs, over_gap
from changelog.connectors.failpoints import Reach
from changelog.connectors.sources import ChangelogEnd, CrossedGap
from changelog.connectors.sources.postgres.admin import evidence
from changelog.connectors.sources.postgres.admin.catalog import read_tables
from changelog.connectors.sources.postgres.admin.check import Requirements, findings, refuse
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
from changelog.envelope.entity import TRUNCATE_KEY, Entity
from changelog.envelope.gap import Gap, Side
from changelog.envelope.model import Envelope, Op, Place, Record
from changelog.envelope.position import Position

FAIL_POINTS = ("gap:claimed", "gap:slot-dropped", "gap:taken-over", "gap:slot-made", "gap:stored")
"""The boundaries between two steps at which tests crash; the caller passes the last one."""


@contextmanager
def crossing(
    settings: Settings,
    entities: Sequence[Entity],
    stored: Checkpoint | None,
    take_over: Callable[[], ChangelogEnd],
    *,
    reason: str,
    keep_slot: bool,
    reach: Reach,
) -> Iterator[CrossedGap]:
    """Crosses a gap. Inside the block, the caller commits the yielded rows and checkpoint; the slot stays claimed.

    `stored` is the checkpoint that readers see. `take_over` takes over the sink and returns the end of the changelog.
    If the slot has only moved ahead and `keep_slot` is set, it is kept; in every other case a new slot replaces it.

    Raises ChangelogError: SETTINGS and PRECONDITION as a start does, IN_USE if another session holds the slot.
    """
    with closing(connect(settings.dsn, settings=CATALOG_SETTINGS)) as catalog:
        _refuse(catalog, settings, entities, stored)
        with closing(ReplicationConnection.connect(settings.dsn, settings=SETTINGS)) as replication:
            claim_slot(catalog, replication, settings.slot, patience_s=settings.patience_s)
            reach("gap:claimed")
            system = replication.identify_system()
            history = replication.timeline_history(system.timeline)
            joined = stored is not None and joins_on(stored, read_database(catalog)[1], system, history)
            moved = joined and _has_moved(catalog, settings.slot, stored)
            if not (moved and keep_slot) and slot_state(catalog, settings.slot) is not None:
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
            checkpoint = _checkpoint(catalog, settings, entities, end.checkpoint, system, position)
            gap = _gap(settings.name, reason, end, checkpoint)
            record = gap.record(connector="postgres", database=catalog.info.dbname, at=_now(catalog))
            lost = [entity for entity in entities if moved or entity.name in end.lost]
            yield CrossedGap(checkpoint=checkpoint, records=[record, *_truncates(lost, record)])


def _epoch(end: ChangelogEnd, history: tuple[tuple[int, int], ...]) -> int:
    """An epoch above every epoch that the changelog may have reached: lost rows may come from the last promotions."""
    forks = [fork for fork in history if end.checkpoint is None or fork[0] >= timeline_of(end.checkpoint)]
    return end.epoch + len(forks) + 1


def _refuse(
    catalog: psycopg.Connection[Any], settings: Settings, entities: Sequence[Entity], stored: Checkpoint | None
) -> None:
    """Refuses what a start would refuse, before anything changes; it ignores the slot and an unfinished transaction."""
    shapes = shapes_of(entities, codec=settings.codec, hmac_key=settings.hmac_key)
    whole = None if stored is None else replace(stored, partial=False)
    check_settings(whole, shapes, accept=settings.accept_settings)
    requirements = Requirements(
        slot=settings.slot, publication=settings.publication, failover=settings.failover, entities=entities
    )
    refuse([finding for finding in findings(catalog, requirements, read_tables(catalog)) if finding.name != "slot"])


def _has_moved(catalog: psycopg.Connection[Any], name: str, stored: Checkpoint | None) -> bool:
    """Whether the slot is readable but starts after the end of the changelog, so that only the changes between are
    lost.
    """
    state = slot_state(catalog, name)
    if state is None or state.wal_status == LOST or stored is None:
        return False
    return state.confirmed_flush > through_lsn(stored)


def _checkpoint(
    catalog: psycopg.Connection[Any],
    settings: Settings,
    entities: Sequence[Entity],
    before: Checkpoint | None,
    system: System,
    position: Position,
) -> Checkpoint:
    """The checkpoint to continue from. The gap is at `position`, one byte before it, where no commit can start."""
    shapes = shapes_of(entities, codec=settings.codec, hmac_key=settings.hmac_key)
    repairs = Repairs() if before is None else Repairs.parse(before.repairs).of(shapes)
    opened, windows = over_gap(repairs, list(shapes), position)
    return Checkpoint(
        position=position,
        through=through_text(position.commit + 1),
        epoch=position.epoch,
        windows=windows,
        settings=shapes,
        accepted={} if before is None else before.accepted,
        repairs=opened.to_json(),
        source={
            "system_identifier": system.system_identifier,
            "timeline": system.timeline,
            "database": read_database(catalog)[1],
            "publication": evidence.read(catalog, settings.publication, entities).to_json(),
        },
    )


def _gap(name: str, reason: str, end: ChangelogEnd, after: Checkpoint) -> Gap:
    unknown = Side(position=None, epoch=end.epoch, through=None, system=None, timeline=None)
    before = unknown if end.checkpoint is None else _side(end.checkpoint, committed_at=end.committed_at)
    return Gap(name=name, reason=reason, before=before, after=_side(after), entities=tuple(after.settings))


def _side(checkpoint: Checkpoint, *, committed_at: datetime | None = None) -> Side:
    """One side of the gap, described by its checkpoint."""
    return Side(
        position=None if checkpoint.position is None else str(checkpoint.position),
        epoch=checkpoint.epoch,
        through=lsn_text(through_lsn(checkpoint)),
        system=cluster_of(checkpoint),
        timeline=timeline_of(checkpoint),
        committed_at=committed_at,
    )


def _truncates(entities: Sequence[Entity], gap: Record) -> Iterator[Record]:
    """Truncates for entities whose changelog lost rows: it no longer knows every key that consumers have, so they must
    drop all of them. An immutable entity that ignores deletes keeps its rows here, too.
    """
    provenance = gap.envelope.provenance
    for entity in entities:
        if entity.immutable and entity.on_change_of_immutable == "ignore":
            continue
        source = replace(provenance.source, op=Op.TRUNCATE, table=".".join(entity.table))
        envelope = Envelope(provenance=replace(provenance, source=source), current=None, original=None)
        for number in range(entity.partitions):
            place = Place(key=TRUNCATE_KEY, partition=number)
            yield Record(entity=entity.name, place=place, envelope=envelope)


def _now(catalog: psycopg.Connection[Any]) -> datetime:
    with translated("reading the server's clock"):
        row = catalog.execute("SELECT now()").fetchone()
    assert row is not None
    at: datetime = row[0]
    return at.astimezone(UTC)
