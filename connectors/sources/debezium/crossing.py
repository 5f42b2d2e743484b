"""Continues a changelog after a gap: the input no longer has the event that should come next.

The changelog continues in a new epoch. Each part of the input continues at its next event. If that event is lost, the
part continues at the oldest event that it still has. The service cannot read tables, so rows whose events were lost
stay as they are until another event changes them; Debezium's own snapshots make such events. If the changelog itself
has lost rows, the entities of these rows are truncated first, and then the whole input is read once more.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime

from changelog.connectors.capture.settings_guard import check_settings, shapes_of
from changelog.connectors.capture.tables.gap_records import truncates
from changelog.connectors.capture.tables.table_progress import COMPLETE
from changelog.connectors.failpoints import Reach
from changelog.connectors.sources import ChangelogEnd, CrossedGap
from changelog.connectors.sources.debezium.settings import Settings
from changelog.connectors.sources.debezium.source import FIRST_PLACE
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.entity import Entity
from changelog.envelope.gap import Gap, Side
from changelog.envelope.position import Position, commit_text


@contextmanager
def crossing(
    settings: Settings,
    entities: Sequence[Entity],
    checkpoint: Checkpoint | None,
    take_over: Callable[[], ChangelogEnd],
    *,
    reason: str,
    reach: Reach,
) -> Iterator[CrossedGap]:
    """Crosses a gap, as `Database.cross_gap` says. Inside the `with` block, the caller commits the yielded rows and
    checkpoint.
    """
    shapes = shapes_of(entities, codec=settings.codec, hmac_key=settings.hmac_key)
    check_settings(
        None if checkpoint is None else replace(checkpoint, partial=False), shapes, accept=settings.accept_settings
    )
    reach("gap:claimed")
    end = take_over()
    reach("gap:taken-over")
    before = end.checkpoint
    same_input = before is not None and before.source.get("input") == settings.origin.name
    after = settings.origin.after_gap(before if same_input else None, again=bool(end.lost))
    place = FIRST_PLACE if before is None else int(before.source.get("place", FIRST_PLACE))
    position = Position(end.epoch + 1, place, 0)
    new_checkpoint = Checkpoint(
        position=position,
        through=commit_text(place + 1),
        epoch=position.epoch,
        windows={entity.name: COMPLETE for entity in entities},
        settings=shapes,
        accepted={} if before is None else before.accepted,
        source={
            "connector": settings.connector,
            "input": settings.origin.name,
            "identity": dict(after.identity),
            "progress": dict(after.progress),
            "place": place + 1,
        },
    )
    first = _unknown(end) if before is None else _side(before, committed_at=end.committed_at)
    gap = Gap(name=settings.name, reason=reason, before=first, after=_side(new_checkpoint), entities=tuple(shapes))
    gap_record = gap.record(connector=settings.connector, database="", at=datetime.now(UTC))
    lost_entities = [entity for entity in entities if entity.name in end.lost]
    yield CrossedGap(checkpoint=new_checkpoint, records=[gap_record, *truncates(lost_entities, gap_record)])


def _unknown(end: ChangelogEnd) -> Side:
    return Side(position=None, epoch=end.epoch, through=None, system=None, timeline=None)


def _side(checkpoint: Checkpoint, *, committed_at: datetime | None = None) -> Side:
    """Describes one side of the gap by the checkpoint on that side."""
    return Side(
        position=None if checkpoint.position is None else str(checkpoint.position),
        epoch=checkpoint.epoch,
        through=str(int(checkpoint.through[:16], 16)),
        system=None,
        timeline=None,
        committed_at=committed_at,
    )
