"""Continues a changelog after a gap: the server's log no longer has all changes that follow the end of the changelog.

The changelog continues at the present end of the server's log, in a new epoch with a higher number. The service then
reads every table again and publishes a delete for each key that the table lacks. Afterwards the changelog equals its
tables, whatever changes were lost.

Sometimes the changelog itself has lost rows that consumers may already have read. Nobody knows the keys of those rows.
So for each entity that lost rows, the first row after the gap is a truncate, which removes all of the entity's keys.

Until the sink has stored the checkpoint that `crossing` makes, every start finds the gap again, so `crossing` can be
repeated from its first step.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime

from changelog.connectors.capture.settings_guard import check_settings, shapes_of
from changelog.connectors.capture.tables.gap_records import truncates
from changelog.connectors.capture.tables.repairs import Repairs, over_gap
from changelog.connectors.failpoints import Reach
from changelog.connectors.findings import refuse
from changelog.connectors.sources import ChangelogEnd, CrossedGap
from changelog.connectors.sources.mysql.admin.catalog import read_tables
from changelog.connectors.sources.mysql.admin.check import findings
from changelog.connectors.sources.mysql.admin.claim import claim
from changelog.connectors.sources.mysql.admin.lineage import LogStart
from changelog.connectors.sources.mysql.session.connection import Connection
from changelog.connectors.sources.mysql.settings import Settings
from changelog.connectors.sources.mysql.values.positions.coordinates import coordinate_text
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.entity import Entity
from changelog.envelope.gap import Gap, Side
from changelog.envelope.position import Position

FAIL_POINTS = ("gap:claimed", "gap:taken-over", "gap:stored")
"""The fail points between the steps of the crossing, at which tests can crash the process.

`crossing` itself reports all of them except `gap:stored`, which its caller reports after it has stored the rows.
"""


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
    """Crosses a gap. Inside the `with` block, the caller commits the yielded rows and checkpoint.

    Until the block ends, no service can read the log for this changelog (see `claim`).

    `checkpoint` is the checkpoint that readers of the changelog see before this process takes the sink over; None if
    none can be read. `take_over` takes the sink over from its previous writer and returns the end of the changelog.

    Raises ChangelogError: SETTINGS and PRECONDITION for the same reasons as a start of the service, IN_USE if another
    session has the lock.
    """
    with settings.connect() as connection:
        shapes = shapes_of(entities, codec=settings.codec, hmac_key=settings.hmac_key)
        without_partial = None if checkpoint is None else replace(checkpoint, partial=False)
        check_settings(without_partial, shapes, accept=settings.accept_settings)
        tables = read_tables(connection.query)
        refuse(findings(connection.query, entities, tables, keeps_state=settings.keeps_state))
        claim(connection.query, settings.name, patience_s=settings.patience_s, own=settings.connections)
        reach("gap:claimed")
        end = take_over()
        reach("gap:taken-over")
        new_checkpoint = _checkpoint(connection, settings, shapes, end)
        before = _unknown(end) if end.checkpoint is None else _side(end.checkpoint, committed_at=end.committed_at)
        gap = Gap(name=settings.name, reason=reason, before=before, after=_side(new_checkpoint), entities=tuple(shapes))
        connector, database = connection.flavour.lower(), settings.address.database
        gap_record = gap.record(connector=connector, database=database, at=datetime.now(UTC))
        lost_entities = [entity for entity in entities if entity.name in end.lost]
        yield CrossedGap(checkpoint=new_checkpoint, records=[gap_record, *truncates(lost_entities, gap_record)])


def _checkpoint(
    connection: Connection, settings: Settings, shapes: dict[str, dict[str, object]], end: ChangelogEnd
) -> Checkpoint:
    """Returns the checkpoint from which the changelog continues: at the end of the server's log.

    The record of the gap is placed one byte before this end, so it comes before every row that is read from there.
    """
    lineage = LogStart.trace(connection.query, connection.version, None, accept=False)
    before = end.checkpoint
    position = Position(end.epoch + 1, lineage.through - 1, 0)
    repairs = Repairs() if before is None else Repairs.parse(before.repairs).of(shapes)
    new_repairs, windows = over_gap(repairs, list(shapes), position)
    return Checkpoint(
        position=position,
        through=lineage.through_text,
        epoch=position.epoch,
        windows=windows,
        settings=shapes,
        accepted={} if before is None else before.accepted,
        repairs=new_repairs.to_json(),
        source={**lineage.source, "database": settings.address.database},
    )


def _unknown(end: ChangelogEnd) -> Side:
    return Side(position=None, epoch=end.epoch, through=None, system=None, timeline=None)


def _side(checkpoint: Checkpoint, *, committed_at: datetime | None = None) -> Side:
    """Describes one side of the gap by the checkpoint on that side."""
    return Side(
        position=None if checkpoint.position is None else str(checkpoint.position),
        epoch=checkpoint.epoch,
        through=coordinate_text(int(checkpoint.through, 16)),
        system=checkpoint.source.get("server"),
        timeline=None,
        committed_at=committed_at,
    )
