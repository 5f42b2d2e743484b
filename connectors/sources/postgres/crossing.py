"""Over a gap: where a changelog goes on that its database's log no longer joins on to.

The changelog goes on in an epoch of its own, after the highest one that it holds, from a slot that the log joins on to.
Every table is read again, and keys that it lacks are deleted: so the changelog equals its tables again, whatever was
lost. Where rows of the changelog itself may be gone (a file, a topic; or the slot has moved past its end, so that
something was confirmed that is not there), each entity begins with a truncate: nobody knows which keys they were of.

Until the sink has stored the checkpoint that is made here, every start finds the gap, and this is done again.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import psycopg

from connectors.capture.settings_guard import check_settings, shapes_of
from connectors.capture.tables.repairs import Repairs, over_gap
from connectors.failpoints import Reach
from connectors.sources import ChangelogEnd, CrossedGap
from connectors.sources.postgres.admin import evidence
from connectors.sources.postgres.admin.catalog import read_tables
from connectors.sources.postgres.admin.check import Requirements, findings, refuse
from connectors.sources.postgres.admin.claim import claim_slot
from connectors.sources.postgres.admin.lineage import cluster_of, joins_on, timeline_of
from connectors.sources.postgres.admin.slot import LOST, ensure_publication, ensure_slot, read_database, slot_state
from connectors.sources.postgres.session.connection import connect, translated
from connectors.sources.postgres.settings import CATALOG_SETTINGS, Settings
from connectors.sources.postgres.stream.replication import ReplicationConnection, System
from connectors.sources.postgres.values.lsn import lsn_text, through_lsn, through_text
from connectors.sources.postgres.values.text_to_json import SETTINGS
from envelope.checkpoint import Checkpoint
from envelope.entity import TRUNCATE_KEY, Entity
from envelope.gap import Gap, Side
from envelope.model import Envelope, Op, Place, Record
from envelope.position import Position

FAIL_POINTS = ("gap:claimed", "gap:slot-dropped", "gap:taken-over", "gap:slot-made", "gap:stored")
"""The boundaries between two steps at which a crash is tried; the last one is the caller's."""


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
    """Goes over a gap, holding the slot's claim until the block ends, in which what it gives is to be committed.

    `stored` is the checkpoint as readers see it. `take_over` takes hold of the sink and says what it holds. A slot that
    has only moved on stays, if `keep_slot`; in every other case there is a new one.

    Raises ChangelogError: SETTINGS and PRECONDITION as a start does, IN_USE when another session holds the slot.
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
    """The one after all that the changelog may have reached: rows of the last promotions may be among what is gone."""
    forks = [fork for fork in history if end.checkpoint is None or fork[0] >= timeline_of(end.checkpoint)]
    return end.epoch + len(forks) + 1


def _refuse(
    catalog: psycopg.Connection[Any], settings: Settings, entities: Sequence[Entity], stored: Checkpoint | None
) -> None:
    """As a start does, before anything is changed; but the slot may be as it likes, and no transaction goes on."""
    shapes = shapes_of(entities, codec=settings.codec, hmac_key=settings.hmac_key)
    whole = None if stored is None else replace(stored, partial=False)
    check_settings(whole, shapes, accept=settings.accept_settings)
    wanted = Requirements(
        slot=settings.slot, publication=settings.publication, failover=settings.failover, entities=entities
    )
    refuse([finding for finding in findings(catalog, wanted, read_tables(catalog)) if finding.name != "slot"])


def _has_moved(catalog: psycopg.Connection[Any], name: str, stored: Checkpoint | None) -> bool:
    """Whether the slot can still be read, from behind the place where the changelog ends: then only that is lost."""
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
    """Where the changelog goes on. The gap stands at `position`, a byte before that, where no commit can begin."""
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
    """The place where a checkpoint stands."""
    return Side(
        position=None if checkpoint.position is None else str(checkpoint.position),
        epoch=checkpoint.epoch,
        through=lsn_text(through_lsn(checkpoint)),
        system=cluster_of(checkpoint),
        timeline=timeline_of(checkpoint),
        committed_at=committed_at,
    )


def _truncates(entities: Sequence[Entity], gap: Record) -> Iterator[Record]:
    """Where rows of the changelog itself are gone, it no longer knows each key that consumers have: they are told to
    drop all. What an immutable entity keeps of rows that are deleted, it keeps here, too.
    """
    told = gap.envelope.provenance
    for entity in entities:
        if entity.immutable and entity.on_change_of_immutable == "ignore":
            continue
        source = replace(told.source, op=Op.TRUNCATE, table=".".join(entity.table))
        envelope = Envelope(provenance=replace(told, source=source), current=None, original=None)
        for number in range(entity.partitions):
            place = Place(key=TRUNCATE_KEY, partition=number)
            yield Record(entity=entity.name, place=place, envelope=envelope)


def _now(catalog: psycopg.Connection[Any]) -> datetime:
    with translated("asking for the time"):
        row = catalog.execute("SELECT now()").fetchone()
    assert row is not None
    at: datetime = row[0]
    return at.astimezone(UTC)
