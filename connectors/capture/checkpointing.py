"""While a source is open, keeps its checkpoint up to date with rows, table reads, new versions of columns, and signals.

A checkpoint is valid only after all rows before it are durable. A source therefore returns a changed checkpoint
together with the rows that have to be durable first. When a source opens, its checkpoint says which tables to read:
the plan. A signal (a message to the service, such as a request for a repair) or a new version of columns may change the
plan. The change is made in the *checkpoint* alone, as a new revision, and takes effect when the source opens again:

    opened from          a signal arrives         5 is durable             the source opens again
    revision 4   ───▶    revision 5        ───▶   confirmed 5       ───▶   and follows revision 5
                         (still follows 4)        `is_outdated`

So the start of a repair, its continuation after a crash and its end all work in the same way: the source opens and
follows its checkpoint. Until the source opens again, it reads tables by the old plan. If an entity's plan has changed,
the entity is in `replanned`, and such reads of its table do not count as progress.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import structlog

from changelog.connectors.capture.assembly.assembled import Assembled
from changelog.connectors.capture.rows.row_records import Change
from changelog.connectors.capture.tables.repairs import Reached, Repairs, obey, returned
from changelog.connectors.capture.tables.table_progress import from_start, is_complete, restated
from changelog.connectors.capture.throttled_warnings import IgnoredSignals
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError
from changelog.envelope.position import Position
from changelog.envelope.signal import Signing, parse
from changelog.envelope.versions import Announced, Version

_log = structlog.get_logger("source")


Stretch = Callable[[str], tuple[int, Mapping[str, Any]]]
"""Takes the `through` of a checkpoint: the place in the database's log up to which the changelog is complete.
Returns the epoch of this place, and the members of the checkpoint's `source` that belong to this epoch. (An epoch is
the first part of a position.)
"""


def resumed(
    checkpoint: Checkpoint | None,
    entities: Sequence[Entity],
    *,
    through: str,
    epoch: int,
    settings: Mapping[str, Any],
    source: Mapping[str, Any],
    joined: bool,
    held_entities: Callable[[], Collection[str]],
) -> Checkpoint:
    """Returns the checkpoint with which a source opens: the stored one, or a new one if there is none, brought up to
    date.

    `through`, `epoch`, `settings` and `source` replace the stored members. The tables of entities without stored
    windows (the progress of table reads) will be read. `joined` says that the log continues the log from which the
    changelog was made. If it does not, a table that is not complete is read from its start. `held_entities` returns the
    entities that have rows in the changelog, including entities that are no longer configured. It is called only if
    entities were added. If an added entity has rows in the changelog, it was configured earlier, and its table may have
    lost rows since then. So a sweep searches the changelog for keys that the table lacks.
    """
    windows = {} if checkpoint is None else checkpoint.windows
    if not joined:
        windows = {name: from_start(entry) for name, entry in windows.items()}
    base = replace(checkpoint or Checkpoint(position=None, through=through, epoch=epoch), through=through, epoch=epoch)
    repairs = Repairs.parse(base.repairs).of(settings)
    added = [entity.name for entity in entities if entity.name not in windows]
    if checkpoint is not None and added:
        repairs = returned(repairs, {*held_entities()}.intersection(added), base.complete_before)
    return replace(
        base,
        windows={entity.name: windows.get(entity.name, {"complete": False}) for entity in entities},
        settings=settings,
        repairs=repairs.to_json(),
        source=source,
    )


class Checkpointing:
    """The checkpoint of a source that is open, and the repairs in it.

    `name` is the name of this service; signals that name another service are ignored. `signing` takes the number that a
    signal's signature must cover, and returns how the signal must be signed; None if no signature is needed. Columns
    are *restated* if a change of the table gave them new values, which older rows of the changelog lack. Then the table
    is read again. But if the entity is in `asking`, an operator decides when to read its table, and the checkpoint only
    lists the restated columns. `stretch` says which epoch a place in the log belongs to. `reach` is called at the fail
    point `signal:heard`, so that tests can crash the service there.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        name: str,
        signing: Callable[[int], Signing | None],
        asking: Collection[str],
        stretch: Stretch,
        reach: Callable[[str], None],
    ) -> None:
        self.checkpoint = checkpoint
        """The present checkpoint. A source replaces the members that only it understands."""
        self.replanned: set[str] = set()
        """The entities whose plan has changed since the source was opened."""
        self.signals = IgnoredSignals()
        self._repairs = Repairs.parse(checkpoint.repairs)
        self._opened = self._confirmed = self._repairs.revision
        self._interrupted = False
        self._name, self._signing, self._asking = name, signing, asking
        self._stretch, self._reach = stretch, reach

    @property
    def repairs(self) -> Repairs:
        """The present repairs."""
        return self._repairs

    def confirm(self, durable: Checkpoint) -> None:
        """Records that the checkpoint `durable` is durable."""
        self._confirmed = int(durable.repairs.get("revision", 0))

    def is_outdated(self, *, sweeping: bool) -> bool:
        """Returns whether a changed plan is durable, so that the source has to be opened again.

        Returns False while the source is `sweeping`, because a sweep cannot be continued: each sweep begins at the
        start of the changelog. But if a signal asked for a pause or a cancellation, the sweep is interrupted.
        """
        return self._confirmed != self._opened and (self._interrupted or not sweeping)

    def deliver(self, assembled: Assembled) -> None:
        """Records that a block of the log is delivered: its rows, and its finished transactions."""
        if assembled.rows:
            last = Position.parse(assembled.rows[-1].column("position")[-1].as_py())
            self.checkpoint = replace(self.checkpoint, position=last, partial=assembled.partial)
        if assembled.through is not None:
            self.checkpoint = replace(self.checkpoint, partial=assembled.partial)
            self.reach(assembled.through)

    def reach(self, through: str) -> None:
        """Records that the log up to `through` is delivered or has nothing to publish. Never moves `through` back."""
        through = max(through, self.checkpoint.through)
        epoch, members = self._stretch(through)
        source = {**self.checkpoint.source, **members}
        self.checkpoint = replace(self.checkpoint, through=through, epoch=epoch, source=source)

    def remember(self, member: str, value: object) -> None:
        """Sets a member of the checkpoint's `source`; removes it if `value` is empty."""
        source = {**self.checkpoint.source, member: value}
        if not value:
            del source[member]
        self.checkpoint = replace(self.checkpoint, source=source)

    def hear(self, assembled: Assembled) -> None:
        """Records a block's new versions of columns, writes log lines about altered columns, and obeys the block's
        signals.
        """
        for altered in assembled.altered:
            _log.info(
                "columns changed",
                table=altered.table,
                position=str(altered.position),
                added=altered.added,
                dropped=altered.dropped,
                retyped=altered.retyped,
            )
        for announced in assembled.announced:
            self.announce(announced)
        for content, change, number in assembled.signals:
            self.obey(content, change, number)

    def progress(self, tables: Mapping[str, Any], reached: Reached) -> None:
        """Records the progress of table reads and repairs.

        `tables` has the progress of each table by entity, as `Windows.progress` returns it. `reached` has the progress
        of the repairs, without the entities in `replanned`.
        """
        windows = {
            entity: entry if is_complete(entry) or entity in self.replanned else tables.get(entity, entry)
            for entity, entry in self.checkpoint.windows.items()
        }
        self._repairs = self._repairs.progressed(windows, reached)
        self._put(windows)

    def announce(self, announced: Announced) -> None:
        """Records a new version of an entity's columns.

        If the version restates columns, and the entity's table was complete, the table is read again, unless the entity
        is in `asking`. An acceptance (`Checkpoint.accepted`) is for one change of columns. So the entity's acceptance
        is removed, unless its position is after the version's.
        """
        version = announced.version
        _log.info("columns announced", entity=version.entity, version=version.number, restated=version.restated)
        position = str(announced.record.envelope.provenance.source.position)
        accepted = self.checkpoint.accepted
        later = {name: at for name, at in accepted.items() if name != version.entity or at > position}
        self.checkpoint = replace(self.checkpoint, accepted=later)
        if version.restated and is_complete(self.checkpoint.windows.get(version.entity)):
            self._restate(version)

    def _restate(self, version: Version) -> None:
        reads_table = version.entity not in self._asking
        if reads_table:
            self._repairs = self._repairs.anew()
            self.replanned.add(version.entity)
        windows = self.checkpoint.windows
        progress = restated(windows[version.entity], version.restated, reads_table=reads_table)
        self._put({**windows, version.entity: progress})

    def obey(self, content: bytes, change: Change, number: int) -> None:
        """Obeys a message if it is a valid signal to this service.

        The signature must cover `number`. Anybody may write such a message, so an invalid message is counted and never
        stops the service.
        """
        try:
            signal = parse(content, self._signing(number))
            if signal.service not in (None, self._name):
                return
            repairs, windows = obey(self._repairs, self.checkpoint.windows, signal, change.position())
        except ChangelogError as error:
            self.signals.ignored(error)
            return
        self._plan(repairs)
        self._put(windows)
        self._interrupted |= signal.do in ("pause", "cancel")
        self._reach("signal:heard")
        _log.info("signal", do=signal.do, entity=signal.entity, id=signal.id, position=str(change.position()))

    def settle(self, change: Callable[[Checkpoint, Repairs], tuple[Checkpoint, Repairs]]) -> None:
        """Replaces the checkpoint and the repairs by those that `change` makes of them.

        A source calls this after it has noticed that a table was changed without a record in the log.
        """
        self.checkpoint, repairs = change(self.checkpoint, self._repairs)
        self._plan(repairs)

    def _plan(self, repairs: Repairs) -> None:
        if repairs is self._repairs:
            return
        self.replanned |= repairs.changed(self._repairs)
        self._repairs = repairs

    def _put(self, windows: Mapping[str, Any]) -> None:
        self.checkpoint = replace(self.checkpoint, windows=windows, repairs=self._repairs.to_json())
