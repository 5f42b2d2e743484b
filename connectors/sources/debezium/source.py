"""The Debezium source: turns Debezium's events into rows of the changelog, and makes checkpoints."""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

import pyarrow as pa
import structlog

from changelog.connectors.capture.assembly.assembled import Assembled
from changelog.connectors.capture.checkpointing import Checkpointing, resumed
from changelog.connectors.capture.rows.row_records import Origin
from changelog.connectors.capture.settings_guard import check_settings, shapes_of
from changelog.connectors.capture.tables import survivors
from changelog.connectors.capture.tables.key_lookup import Ghost
from changelog.connectors.capture.tables.table_progress import COMPLETE
from changelog.connectors.capture.throttled_warnings import TELL_EVERY_S, Stamps
from changelog.connectors.failpoints import Reach, nowhere
from changelog.connectors.sources import Activity, Piece, Recover
from changelog.connectors.sources.debezium.assembling.assembler import Assembler, Ended, Fed, OpenEnd
from changelog.connectors.sources.debezium.assembling.binder import Binder
from changelog.connectors.sources.debezium.assembling.events import OldRows
from changelog.connectors.sources.debezium.assembling.merging import Item, Unreadable, merged
from changelog.connectors.sources.debezium.assembling.whole import Incomplete, WholeTransactions
from changelog.connectors.sources.debezium.decode.events import Event, SourceRecord
from changelog.connectors.sources.debezium.inputs import Batch, Placed, Progress, Span
from changelog.connectors.sources.debezium.settings import Settings
from changelog.connectors.sources.debezium.snapshots import Deletes, FirstSnapshot, Sweep, Sweeping
from changelog.connectors.sources.debezium.tables import Translate
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.entity import Entity
from changelog.envelope.errors import OVER_GAP, RETRIED, ChangelogError, Kind
from changelog.envelope.position import Position, commit_text
from changelog.envelope.versions import Version, Versions

FIRST_EPOCH, FIRST_PLACE = 1, 1

FAIL_POINTS = ("debezium:read", "debezium:assembled")
"""The fail points between the steps of one read, at which tests can crash the process."""

ReadVersions = Callable[[], Iterable[Version]]
"""Returns every stored version of the entities' columns, oldest first. It may be called only after `recover`."""

_log = structlog.get_logger("debezium")


class DebeziumSource:
    """A stream of pieces from an input; see `changelog.connectors.sources.ChangeSource`.

    It gets the last checkpoint from `recover`, and reads on from that checkpoint. `read_versions` returns the stored
    versions of columns, and `rows` reads the stored rows; both are None if the sink cannot be read. `reach` is called
    at each of `FAIL_POINTS`, so that tests can crash the process there. `clock` returns seconds.

    The checkpoint's `source` has these members:
    - `input`: the name of the input. `connector`: the name of Debezium's connector.
    - `progress` and `identity`: see `Input`. `message_bytes`: the mean size of messages.
    - `place`: where the `Assembler` continues. `open`: see `OpenEnd`. `ended`: see `Ended`. `whole`: see `OldRows`.
    - `ahead`: which messages were read, but not published because an error stopped the source; in their order.
    - `snapshot`: see `FirstSnapshot`. `sweep`: see `Sweeping`.

    Raises ChangelogError: GAP if the input does not continue the changelog exactly where it ends, SETTINGS if a setting
    has changed (see `Settings.accept_settings`), and the errors of the input.
    """

    def __init__(
        self,
        settings: Settings,
        entities: Sequence[Entity],
        recover: Recover,
        read_versions: ReadVersions | None = None,
        rows: survivors.Read | None = None,
        *,
        reach: Reach = nowhere,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._reach, self._clock = settings, reach, clock
        self._translate: Translate = settings.translator()
        last_checkpoint = recover()
        shapes = shapes_of(entities, codec=settings.codec, hmac_key=settings.hmac_key)
        check_settings(last_checkpoint, shapes, accept=settings.accept_settings)
        refuse_other_input(last_checkpoint, settings.origin.name)
        self._input = settings.origin.open(last_checkpoint)
        try:
            self._state = self._new_state(last_checkpoint, entities, shapes)
            self._assembler = self._new_assembler(entities, read_versions)
        except BaseException:
            self._input.close()
            raise
        checkpoint = self._state.checkpoint
        self._opening_checkpoint: Checkpoint | None = None if checkpoint == last_checkpoint else checkpoint
        self._whole = self._whole_transactions(entities)
        self._stamps, self._others, self._cut = Stamps(), OtherTables(), CutTransactions()
        self._size = MeanSize(int(checkpoint.source.get("message_bytes", 0)))
        self._hurried, self._first_place = False, self._assembler.place
        self._read_versions, self._entities, self._rows, self._ended_snapshot = read_versions, entities, rows, False
        self._snapshot = FirstSnapshot(
            checkpoint.source.get("snapshot"),
            str(_next_position(checkpoint, self._assembler.place)),
            settings.snapshots,
            fresh=last_checkpoint is None or not last_checkpoint.source.get("progress"),
        )
        due = checkpoint.source.get("sweep")
        self._sweep = None if due is None or rows is None else Sweep(Sweeping(**due), entities, rows)

    def _new_state(
        self, checkpoint: Checkpoint | None, entities: Sequence[Entity], shapes: Mapping[str, Mapping[str, object]]
    ) -> Checkpointing:
        epoch = FIRST_EPOCH if checkpoint is None else checkpoint.epoch
        through = commit_text(FIRST_PLACE) if checkpoint is None else checkpoint.through
        members = {} if checkpoint is None else dict(checkpoint.source)
        if checkpoint is not None:
            _warn_of_added({entity.name for entity in entities} - checkpoint.windows.keys())
        new_checkpoint = resumed(
            checkpoint,
            entities,
            through=through,
            epoch=epoch,
            settings=shapes,
            source={
                "place": FIRST_PLACE,
                **members,
                "connector": self._settings.connector,
                "input": self._settings.origin.name,
                "progress": dict(self._input.progress),
                "identity": dict(self._input.identity),
            },
            joined=True,
            held_entities=lambda: (),
        )
        # The source reads no tables itself, so every table counts as read completely.
        windows = {entity.name: COMPLETE for entity in entities}
        return Checkpointing(
            replace(new_checkpoint, windows=windows),
            name=self._settings.name,
            signing=lambda _: None,
            asking={entity.name for entity in entities},
            stretch=lambda _: (epoch, {}),
            reach=self._reach,
        )

    def _new_assembler(self, entities: Sequence[Entity], read_versions: ReadVersions | None) -> Assembler:
        checkpoint = self._state.checkpoint
        versions = None
        if read_versions is not None:
            accepted = {entity: Position.parse(text) for entity, text in checkpoint.accepted.items()}
            versions = Versions(read_versions(), accepted=accepted, filled=lambda *_: ())
        open_end, ended = (checkpoint.source.get(name) for name in ("open", "ended"))
        if "sweep" in checkpoint.source:
            open_end = None  # the sweep's deletes come next, so no later event can continue the open transaction
        return Assembler(
            name=self._settings.name,
            epoch=checkpoint.epoch,
            entities=entities,
            binder=Binder(hmac_key=self._settings.hmac_key),
            old_rows=OldRows(checkpoint.source.get("whole", ())),
            decisions=checkpoint.decisions,
            place=int(checkpoint.source["place"]),
            open_end=None if open_end is None else OpenEnd.from_json(open_end, checkpoint.epoch),
            ended=None if ended is None else Ended.from_json(ended),
            published=checkpoint.position,
            partial=checkpoint.partial,
            versions=versions,
        )

    def _whole_transactions(self, entities: Sequence[Entity]) -> WholeTransactions | None:
        whole = self._settings.whole
        if whole is None:
            return None
        return WholeTransactions(
            [entity.table for entity in entities],
            self._input.progress.keys(),
            f"{whole.topic}/0",
            messages=any(part.rpartition("/")[0] == whole.messages for part in self._input.progress),
            bytes_max=whole.bytes_max,
        )

    # Source

    def read(self, timeout_s: float, gather_s: float = 0.0) -> Piece | None:
        """See `ChangeSource.read`. If the opening has changed the checkpoint, the first piece only delivers the new
        checkpoint; it has no rows.
        """
        if self._opening_checkpoint is not None:
            checkpoint, self._opening_checkpoint = self._opening_checkpoint, None
            return Piece(rows=(), checkpoint=checkpoint, nbytes=0, urgent=True)
        if self._assembler.stop is not None:
            raise self._assembler.stop
        if self._sweep is not None:
            return self._swept(self._sweep, timeout_s)
        if self._ended_snapshot:
            raise ChangelogError(Kind.ALTERED, "a repeated snapshot has ended, and the sweep has to be made")
        batch = self._input.read(timeout_s, 0.0 if self._hurried else gather_s)
        self._reach("debezium:read")
        is_new = self._input.identity != self._state.checkpoint.source.get("identity", {})
        items = self._in_order(batch)
        if not items and not is_new and (batch.more or self._assembler.open_end is None):
            return None
        fed = self._assembler.feed(items, more=batch.more and (batch.in_order or self._whole is None))
        self._reach("debezium:assembled")
        return self._piece(batch, items, fed)

    def _swept(self, sweep: Sweep, timeout_s: float) -> Piece | None:
        """Returns a piece with deletes of rows that an aborted snapshot published; None if the timeout passes first.

        The last piece has no rows; its checkpoint says that the sweep is done.
        """
        try:
            ghosts = sweep.take(timeout_s)
        except ChangelogError as error:
            if error.kind in RETRIED:
                raise
            _log.error("the changelog cannot be read, so some deleted rows may stay in it", error=str(error))
            ghosts = {}
        if ghosts is None:
            return None
        state, rows = self._state, list[pa.RecordBatch]()
        if ghosts:
            rows = self._deletes(ghosts)
        else:
            sweep.close()
            self._sweep = None
            state.remember("sweep", None)
            state.remember("open", None)
            state.reach(commit_text(self._assembler.place))
        nbytes = sum(batch.nbytes for batch in rows)
        return Piece(rows=rows, checkpoint=state.checkpoint, nbytes=nbytes, urgent=not rows)

    def _deletes(self, ghosts: Mapping[str, Sequence[Ghost]]) -> list[pa.RecordBatch]:
        state, place = self._state, self._assembler.place
        origin = Origin(
            connector=self._settings.connector,
            name=self._settings.name,
            database="",
            decisions=state.checkpoint.decisions,
        )
        versions = () if self._read_versions is None else tuple(self._read_versions())
        binder = Binder(hmac_key=self._settings.hmac_key)
        rows = Deletes(origin, self._entities, versions, binder, state.checkpoint.epoch).rows(ghosts, place)
        self._assembler.place = self._first_place = place + 1
        state.remember("place", place + 1)
        state.deliver(Assembled(rows=rows, through=commit_text(place + 1)))
        return rows

    def _in_order(self, batch: Batch) -> Sequence[Item]:
        """Returns the messages that can be published now, in the order in which they are published."""
        items = self._translated(batch.placed)
        if batch.in_order:
            return items
        if self._whole is None:
            return merged(items, self._assembler.current)
        self._whole.add(items, self._clock())
        ready_items = self._whole.take(self._clock(), batch.behind)
        self._cut.count(self._whole.incomplete())
        self._input.pause(self._whole.ahead())
        return ready_items

    def _translated(self, placed: Sequence[Placed]) -> list[Item]:
        messages = [item.message for item in placed if item.message is not None]
        events: Iterator[Event | Unreadable]
        try:
            events = iter(self._translate(messages))
        except ChangelogError:
            events = map(self._translated_one, messages)
        return [Item(item, None if item.message is None else next(events)) for item in placed]

    def _translated_one(self, message: SourceRecord) -> Event | Unreadable:
        try:
            [event] = self._translate([message])
        except ChangelogError as error:
            return Unreadable(error=error)
        return event

    def _piece(self, batch: Batch, items: Sequence[Item], fed: Fed) -> Piece | None:
        self._stamps.heard(fed.assembled.invalid_stamps, fed.assembled.unstamped)
        self._others.count(fed.other_tables)
        before, state = self._state.checkpoint, self._state
        state.deliver(fed.assembled)
        state.hear(fed.assembled)
        nbytes = self._size.add(items[: fed.consumed])
        self._remember(batch, items, fed.consumed)
        self._snapshot.see(items[: fed.consumed])
        state.remember("snapshot", self._snapshot.progress)
        if self._snapshot.due is not None:
            state.remember("sweep", self._snapshot.due.to_json())
        if state.checkpoint == before:
            return None
        return Piece(
            rows=fed.assembled.rows,
            checkpoint=state.checkpoint,
            nbytes=sum(rows.nbytes for rows in fed.assembled.rows),
            log_bytes=nbytes,
        )

    def _remember(self, batch: Batch, items: Sequence[Item], consumed: int) -> None:
        """Stores in the checkpoint how far the input was read."""
        assembler, state = self._assembler, self._state
        if assembler.open_end is None:
            state.reach(commit_text(assembler.place))
        after = {item.placed.part: item.placed.after for item in items[:consumed]}
        progress = {**_progress(state.checkpoint), **after}
        state.remember("progress", progress)
        state.remember("identity", self._input.identity)
        state.remember("place", assembler.place)
        state.remember("open", None if assembler.open_end is None else assembler.open_end.to_json())
        state.remember("ended", None if assembler.ended is None else assembler.ended.to_json())
        state.remember("whole", sorted(assembler.old_rows.whole))
        state.remember("message_bytes", self._size.mean)
        if assembler.stop is not None:
            state.remember("ahead", [list(span) for span in spans(items[consumed:], progress)])
        elif batch.placed:
            state.remember("ahead", None)

    def activity(self) -> Activity:
        """See `ChangeSource.activity`."""
        return Activity(invalid_stamps=self._stamps.take())

    def end(self) -> str:
        """See `ChangeSource.end`."""
        self._hurried = True
        self._input.settle()
        return commit_text(self._assembler.place + self._input.left(_progress(self._state.checkpoint)))

    def end_of(self, through: str) -> str:
        """Returns where the input ends now, but at least `through`. Another thread may call this."""
        checkpoint = self._state.checkpoint
        return max(through, commit_text(int(checkpoint.source["place"]) + self._input.left(_progress(checkpoint))))

    @property
    def message_bytes(self) -> int:
        """The mean size of messages."""
        return self._size.mean

    def confirm(self, checkpoint: Checkpoint) -> None:
        """See `ChangeSource.confirm`."""
        self._state.confirm(checkpoint)
        self._ended_snapshot = self._sweep is None and self._rows is not None and "sweep" in checkpoint.source
        self._input.confirm(_progress(checkpoint), int(checkpoint.source["place"]) - self._first_place)

    def close(self) -> None:
        """See `ChangeSource.close`."""
        if self._sweep is not None:
            self._sweep.close()
        self._input.close()


def _next_position(checkpoint: Checkpoint, place: int) -> Position:
    """Returns a position that is after all rows of the changelog, but not after the next row to publish."""
    last = checkpoint.position
    return Position(checkpoint.epoch, place, 0) if last is None else Position(last.epoch, last.commit, last.ordinal + 1)


def _progress(checkpoint: Checkpoint) -> Progress:
    """Returns how far the input has been read; empty if the checkpoint stores no progress."""
    progress: Progress = checkpoint.source.get("progress", {})
    return progress


def refuse_other_input(checkpoint: Checkpoint | None, name: str) -> None:
    """Raises ChangelogError (GAP) if the changelog was made from anything but the input `name`."""
    made_from = name if checkpoint is None else checkpoint.source.get("input", "another kind of source")
    if made_from != name:
        message = f"the changelog was made from {made_from}, but the configuration names {name}"
        raise ChangelogError(Kind.GAP, message, hint=OVER_GAP)


class MeanSize:
    """The mean size of about the last 1,000 messages, in bytes (`mean`); 0 if unknown."""

    def __init__(self, mean: int) -> None:
        self.mean = mean

    def add(self, items: Sequence[Item]) -> int:
        """Adds messages. Returns the sum of their sizes."""
        messages = [item.placed.message for item in items if item.placed.message is not None]
        nbytes = sum(len(message.key or b"") + len(message.value or b"") for message in messages)
        steps = sum(item.placed.steps for item in items)
        if steps:
            weight = min(steps / 1000, 1.0) if self.mean else 1.0
            self.mean = round((1 - weight) * self.mean + weight * nbytes / steps)
        return nbytes


class OtherTables:
    """Counts the events of tables that belong to no entity, and logs the counts at a limited rate."""

    def __init__(self) -> None:
        self._unlogged: Counter[str] = Counter()
        self._log_at = 0.0

    def count(self, events: Counter[str]) -> None:
        """Counts events, by table."""
        self._unlogged += events
        if self._unlogged and time.monotonic() >= self._log_at:
            self._log_at = time.monotonic() + TELL_EVERY_S
            tables = dict(self._unlogged.most_common(10))
            _log.warning("events of tables that are not configured", tables=tables, count=self._unlogged.total())
            self._unlogged.clear()


class CutTransactions:
    """Counts transactions that were not complete when they were published, and logs them at a limited rate."""

    def __init__(self) -> None:
        self._count, self._log_at = 0, 0.0

    def count(self, incomplete: Sequence[Incomplete]) -> None:
        """Counts transactions."""
        self._count += len(incomplete)
        if incomplete and time.monotonic() >= self._log_at:
            last = incomplete[-1]
            what = "its end is missing" if last.missing is None else f"{last.missing} of its events are missing"
            _log.warning("transactions are published as they arrived", count=self._count, last=last.name, why=what)
            self._count, self._log_at = 0, time.monotonic() + TELL_EVERY_S


def spans(items: Sequence[Item], progress: Progress) -> Iterator[Span]:
    """Yields a span for each run of consecutive messages from one part: the part, and its progress before and after.

    `progress` has the progress of each part before the first of these messages.
    """
    reached = dict(progress)
    for part, group in groupby(items, lambda item: item.placed.part):
        before, after = reached.get(part), [item.placed.after for item in group][-1]
        reached[part] = after
        yield part, before, after


def _warn_of_added(added: Collection[str]) -> None:
    for name in sorted(added):
        hint = "to publish its older rows, let Debezium make an incremental snapshot of its table"
        _log.warning("an entity was added; its events before now were passed over", entity=name, hint=hint)
