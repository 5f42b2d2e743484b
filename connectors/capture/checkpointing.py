"""How a checkpoint moves on while a source is open: by rows, table reads, versions of columns, and signals.

A checkpoint is true once all rows before it are durable, so every change of it is given together with the rows that it
is true of. What is to be read from tables is planned when a source opens, from the checkpoint that it opens from; a
signal, or a column that is filled again, changes the plan in the *checkpoint* alone, and the source that opens next
takes it up:

    opened from          a signal arrives         it is durable            the source opens again
    revision 4   ───▶    revision 5        ───▶   confirmed 5       ───▶   and does what 5 says
                         (reads on by 4)          `is_outdated`

So there is one way to begin a repair, to go on with it after a crash, and to end it. In between, what the old plan
still reads of an entity whose plan has changed counts for nothing: the entity is in `replanned`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import structlog

from changelog.connectors.capture.assembly.assembled import Assembled
from changelog.connectors.capture.rows.row_records import Change
from changelog.connectors.capture.tables.repairs import Reached, Repairs, obey, returned
from changelog.connectors.capture.tables.table_progress import from_start, is_complete, restated
from changelog.connectors.capture.throttled_warnings import Ignored
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError
from changelog.envelope.position import Position
from changelog.envelope.signal import Signing, parse
from changelog.envelope.versions import Announced, Version

_log = structlog.get_logger("source")


Stretch = Callable[[str], tuple[int, Mapping[str, Any]]]
"""Gives the epoch of a checkpoint that reaches this `through`, and the members of its `source` that go with that."""


def resumed(
    stored: Checkpoint | None,
    entities: Sequence[Entity],
    *,
    through: str,
    epoch: int,
    settings: Mapping[str, Any],
    source: Mapping[str, Any],
    joined: bool,
    held: Callable[[], Collection[str]],
) -> Checkpoint:
    """The checkpoint that an opening goes on from: `stored`, or that of a new changelog, with what holds now.

    `settings` and `source` replace what was stored, and entities without stored windows are to be read. `joined` says
    that the log continues the one that the changelog was made from; if not, every table is read from its start.
    `held` gives the entities that the changelog has rows of, also those that are no longer configured; it is called if
    entities were added. One that was configured before, left, and comes back may have lost rows meanwhile: it is swept.
    """
    windows = {} if stored is None else stored.windows
    if not joined:
        windows = {name: from_start(entry) for name, entry in windows.items()}
    before = replace(stored or Checkpoint(position=None, through=through, epoch=epoch), through=through, epoch=epoch)
    repairs = Repairs.parse(before.repairs).of(settings)
    added = [entity.name for entity in entities if entity.name not in windows]
    if stored is not None and added:
        repairs = returned(repairs, {*held()}.intersection(added), before.complete_before)
    return replace(
        before,
        windows={entity.name: windows.get(entity.name, {"complete": False}) for entity in entities},
        settings=settings,
        repairs=repairs.to_json(),
        source=source,
    )


class Checkpointing:
    """The checkpoint of one opening, and the repairs in it.

    `name` is the service's: a signal may name another. `signing` gives what a signal of a transaction must be signed
    with, None where none must be. Of the entities in `asking`, restated columns are noted and not read again.
    `stretch` says which epoch a place in the log belongs to.
    `reach` is called with `signal:heard`, so that tests can crash there.
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
        """As it is now; a source replaces the members that are its own."""
        self.replanned: set[str] = set()
        """The entities of which something else is to be read than this opening was planned for."""
        self.signals = Ignored()
        self._repairs = Repairs.parse(checkpoint.repairs)
        self._opened = self._confirmed = self._repairs.revision
        self._interrupted = False
        self._name, self._signing, self._asking = name, signing, asking
        self._stretch, self._reach = stretch, reach

    @property
    def repairs(self) -> Repairs:
        """What is being repaired."""
        return self._repairs

    def confirm(self, durable: Checkpoint) -> None:
        """This checkpoint is durable."""
        self._confirmed = int(durable.repairs.get("revision", 0))

    def is_outdated(self, *, sweeping: bool) -> bool:
        """Whether another plan is durable, so that the source has to open again.

        A sweep that is under way is waited for, unless somebody wants it to end: each begins at the changelog's start.
        """
        return self._confirmed != self._opened and (self._interrupted or not sweeping)

    def deliver(self, assembled: Assembled) -> None:
        """The rows of a block are delivered, and its whole transactions passed."""
        if assembled.rows:
            last = Position.parse(assembled.rows[-1].column("position")[-1].as_py())
            self.checkpoint = replace(self.checkpoint, position=last, partial=assembled.partial)
        if assembled.through is not None:
            self.checkpoint = replace(self.checkpoint, partial=assembled.partial)
            self.reach(assembled.through)

    def reach(self, through: str) -> None:
        """The log up to here is delivered, or has nothing to publish. It never goes back."""
        through = max(through, self.checkpoint.through)
        epoch, members = self._stretch(through)
        source = {**self.checkpoint.source, **members}
        self.checkpoint = replace(self.checkpoint, through=through, epoch=epoch, source=source)

    def remember(self, member: str, value: object) -> None:
        """A member of what the checkpoint keeps for the source; it is left out where there is nothing to keep."""
        source = {**self.checkpoint.source, member: value}
        if not value:
            del source[member]
        self.checkpoint = replace(self.checkpoint, source=source)

    def hear(self, assembled: Assembled) -> None:
        """What a block said beside its rows: versions of columns, and signals."""
        for announced in assembled.announced:
            self.announce(announced)
        for content, change in assembled.signals:
            self.obey(content, change)

    def progress(self, read: Mapping[str, Any], reached: Reached) -> None:
        """How far the reading of tables is: `read` by entity, as `Windows.progress` gives it, and the repairs.

        `reached` must leave out the entities in `replanned`.
        """
        windows = {
            entity: stored if is_complete(stored) or entity in self.replanned else read.get(entity, stored)
            for entity, stored in self.checkpoint.windows.items()
        }
        self._repairs = self._repairs.progressed(windows, reached)
        self._put(windows)

    def announce(self, announced: Announced) -> None:
        """An entity has this version of its columns: a table whose stored rows no longer hold is read again.

        What an operator let pass and this did not use is forgotten: it holds for one change of an entity.
        """
        version = announced.version
        _log.info("columns announced", entity=version.entity, version=version.number, restated=version.restated)
        position = str(announced.record.envelope.provenance.source.position)
        accepted = self.checkpoint.accepted
        left = {name: at for name, at in accepted.items() if name != version.entity or at > position}
        self.checkpoint = replace(self.checkpoint, accepted=left)
        if version.restated and is_complete(self.checkpoint.windows.get(version.entity)):
            self._restate(version)

    def _restate(self, version: Version) -> None:
        read = version.entity not in self._asking
        if read:
            self._repairs = self._repairs.anew()
            self.replanned.add(version.entity)
        windows = self.checkpoint.windows
        stored = restated(windows[version.entity], version.restated, read=read)
        self._put({**windows, version.entity: stored})

    def obey(self, content: bytes, change: Change) -> None:
        """A message that may be a signal: from anybody, so that it never stops the service."""
        try:
            signal = parse(content, self._signing(change.transaction.xid))
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
        """What the source itself noticed changes the checkpoint and the repairs, its own members included."""
        self.checkpoint, repairs = change(self.checkpoint, self._repairs)
        self._plan(repairs)

    def _plan(self, repairs: Repairs) -> None:
        if repairs is self._repairs:
            return
        self.replanned |= repairs.changed(self._repairs)
        self._repairs = repairs

    def _put(self, windows: Mapping[str, Any]) -> None:
        self.checkpoint = replace(self.checkpoint, windows=windows, repairs=self._repairs.to_json())
