"""Finds the gap that keeps the service from starting, describes the gap, and continues the changelog past it.

At a gap, changes are lost for good: a part of the database's log can no longer be read, or the changelog's store has
lost rows. The changelog continues past a gap in a new epoch. A position begins with its epoch, so all positions after
the gap are higher than those before it.
"""

from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import datetime

import structlog

from changelog.connectors import show
from changelog.connectors.config import Config
from changelog.connectors.failpoints import Reach
from changelog.connectors.sinks import Log, Sink
from changelog.connectors.sources import ChangelogEnd, ChangeSource, Database, Recover
from changelog.connectors.wiring.entities import resolve
from changelog.connectors.wiring.sinks import open_log, open_sink, read_versions
from changelog.connectors.wiring.sources import StoredChangelog, database, read_entities
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.columnar import batch
from changelog.envelope.errors import ChangelogError, Kind

_READ_TIMEOUT_S = 0.2
_GAPS = frozenset({Kind.GAP, Kind.DIVERGED})

_log = structlog.get_logger("gap")


@dataclass(frozen=True, slots=True, kw_only=True)
class GapAtStart:
    """The gap that keeps the service from starting. `error` is what a start of the service raises.

    The database keeps its log for us because of a hold (`Hold`; in PostgreSQL, the replication slot). `hold_usable`
    says whether `Database.cross_gap` may keep the hold. It may do so only if the opening of the source reported the
    gap, before anything was read from the log.
    """

    error: ChangelogError
    hold_usable: bool


def find(config: Config, *, accept_settings: bool, reach: Reach) -> GapAtStart | None:
    """Returns the gap that keeps the service from starting, None if there is no gap.

    This function opens the source as the service does, and reads to the end of the database's log, but stores nothing.
    It must read that far, because some gaps show only in the log, such as a publication that did not exist for a while.
    If something other than a gap keeps the service from starting, raises the ChangelogError that says what it is.
    """
    log = open_log(config)
    if _checkpoint(log) is None and not log.epoch():
        return None
    is_recovered = is_open = False
    stored_through = ""

    with closing(open_sink(config, reach=reach)) as sink:

        def recover() -> Checkpoint | None:
            nonlocal is_recovered, stored_through
            checkpoint = sink.recover()
            is_recovered, stored_through = True, "" if checkpoint is None else checkpoint.through
            return checkpoint

        try:
            with closing(_open(config, sink, recover, accept_settings=accept_settings, reach=reach)) as source:
                is_open = True
                _read_to_end(source, stored_through)
        except ChangelogError as error:
            if error.kind not in _GAPS:
                raise
            return GapAtStart(error=error, hold_usable=is_recovered and not is_open and error.kind is Kind.GAP)
    return None


def _open(config: Config, sink: Sink, recover: Recover, *, accept_settings: bool, reach: Reach) -> ChangeSource:
    source = database(config)
    entities = read_entities(config, source)
    sink.prepare(entities)
    return source.open(entities, recover, StoredChangelog(config), accept_settings=accept_settings, reach=reach)


def _read_to_end(source: ChangeSource, place: str) -> None:
    """Reads from `place` (a `Checkpoint.through`) to the end of the log, and drops what it reads."""
    end = source.end()
    while place < end:
        piece = source.read(_READ_TIMEOUT_S)
        if piece is not None:
            place = piece.checkpoint.through


def lines(config: Config, gap: GapAtStart) -> Iterator[str]:
    """Yields lines that tell a person what is known about a gap, and what continuing past the gap would do."""
    log = open_log(config)
    checkpoint = _checkpoint(log)
    yield f"gap          {gap.error.message}"
    if checkpoint is None:
        yield "changelog    has no checkpoint that can be read"
    else:
        committed_at = _committed_at(log)
        commit_text = "" if committed_at is None else f", committed {show.moment(committed_at)}"
        yield f"changelog    ends at {checkpoint.position}{commit_text}"
    source = database(config)
    for heading, fact in source.log_facts(checkpoint):
        yield f"{heading:<13}{fact}"
    if not source.reads_tables:
        yield "consumers    see the events after the gap, in a later epoch; rows whose events were lost stay as they"
        yield "             are until they change again, or until Debezium makes a snapshot of their tables;"
        yield "             if rows of the changelog itself may be gone, too, consumers first see a truncate, and then"
        yield "             all events that are left; the entity `gaps` records the gap"
        return
    yield from _tables(config, source)
    yield "consumers    see every row again as `read`, in a later epoch, and a delete of each key that is gone;"
    yield "             if rows of the changelog itself may be gone, too, they first see a truncate;"
    yield "             the changes in the gap are lost, and the entity `gaps` records that"


def _tables(config: Config, source: Database) -> Iterator[str]:
    tables = {(table.schema, table.name): table for table in source.tables(sized=lambda _: True)}
    for entity in resolve(config, list(tables.values())):
        table = tables[entity.table]
        rows = f"about {table.rows_estimate:,} rows, " if table.rows_estimate > 0 else ""
        yield f"read again   {entity.name}: {rows}{show.size(table.nbytes)}"


def cross(config: Config, gap: GapAtStart, *, accept_settings: bool, reach: Reach) -> None:
    """Continues the changelog past a gap: stores, in one commit, the gap and the position from which the service then
    reads the log. If the process ends before that commit, the next start finds the gap again; after the commit, every
    start continues from that position. Raises ChangelogError.
    """
    log, source = open_log(config), database(config)
    entities = read_entities(config, source)
    checkpoint = _checkpoint(log)
    versions = [] if checkpoint is None else read_versions(log)
    columns = {version.entity: version.columns for version in versions}
    _log.info(
        "continuing past the gap",
        why=gap.error.message,
        note="the creation of a new slot waits until all transactions that run now have ended",
    )
    with closing(open_sink(config, over_gap=True, reach=reach)) as sink:

        def take_over() -> ChangelogEnd:
            sink.prepare(entities)
            last = sink.recover()
            epoch = max(log.epoch(), 0 if last is None else last.epoch)
            lost_entities = sink.lost([entity.name for entity in entities])
            return ChangelogEnd(checkpoint=last, epoch=epoch, committed_at=_committed_at(log), lost=lost_entities)

        with source.cross_gap(
            entities,
            checkpoint,
            take_over,
            reason=gap.error.message,
            keep_hold=gap.hold_usable,
            accept_settings=accept_settings,
            reach=reach,
        ) as crossed:
            sink.add([batch.with_shapes(batch.from_records(crossed.records), columns)])
            sink.commit(crossed.checkpoint)
            reach("gap:stored")
    _log.info("continued past the gap", position=str(crossed.checkpoint.position))


def _checkpoint(log: Log) -> Checkpoint | None:
    """Returns the changelog's checkpoint; None if there is none, or if a gap makes it unreadable."""
    try:
        return log.checkpoint()
    except ChangelogError as error:
        if error.kind not in (_GAPS | {Kind.MALFORMED}):
            raise
        return None


def _committed_at(log: Log) -> datetime | None:
    """Returns the commit time of the last row; None if no row can be read."""
    last: datetime | None = None
    with suppress(ChangelogError):
        for rows in log.follow(last=1, wait=lambda: False):
            last = rows.column("committed_at")[-1].as_py()
    return last
