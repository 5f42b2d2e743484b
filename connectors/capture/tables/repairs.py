"""Defines the repairs that are under way, as a checkpoint stores them, and how signals change them. Does no I/O.

A signal is a message to the service, for example a request for a repair. A repair makes the changelog of one entity
equal to its table again. It has up to three stages:

    signal ──▶ table ─────────────▶ sweep ───────────────────────────▶ done
               the whole table       keys that the table lacks are deleted
               is read again         if their last row is older than `start`
       └─────▶ keys ──────────────────┘
               the signal's keys
               are looked up

`start` is the position at which the repair began. If the signal named keys, the sweep only looks for those of them that
the table lacks, and deletes them even if their last row is newer than `start`.

**Why the sweep is exact.** When the table has been read, the changelog has a row at or after `start` for each of the
table's keys. So if the last row of a key in the changelog is older than `start`, the table lacked the key when it was
read. Such a key is a *ghost*, unless that row is already a delete. But a ghost may have come back to the table since
then. So each ghost is looked up in the table once more, in a window like any other read of the table (`windows`), and
is deleted only if the table still lacks it.

**Why a crash does no harm.** Each opening of the source continues the stages from a stored checkpoint, and reading the
same rows twice changes no state. The plan of a repair says which tables and keys to read. A new plan takes effect only
when it is durable and the source is opened again; `revision` counts such plans. Reads by the old plan do not count as
progress of the new one (`checkpointing`).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import msgspec

from changelog.connectors.capture.tables.table_progress import ALL_COLUMNS, COMPLETE, is_complete, was_complete
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.position import Position
from changelog.envelope.signal import KEYS_BYTES_MAX, KEYS_MAX, Signal

ENDED_MAX = 32
"""A checkpoint stores the outcomes of at most this many signals, and a repair has at most this many ids."""

Stage = Literal["table", "keys", "sweep"]
Windows = Mapping[str, Any]
"""The `windows` of a checkpoint: by entity, the progress of reading its table (`table_progress`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """The remaining work of repairing one entity.

    - `ids`: the ids of the signals that asked for the repair.
    - `start`: the position at which the repair began, as text.
    - `table`: whether the table is still to be read again.
    - `keys`: the keys that are still to be looked up in the table. `absent`: the keys that were looked up, and that the
      table lacks; they are deleted if the changelog has them.
    - `sweep`: whether the changelog is searched, after the table is read, for keys whose last row is older than
      `start`. Keys that the table lacks are then deleted.
    """

    ids: tuple[str, ...]
    start: str
    table: bool = False
    sweep: bool = False
    keys: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()

    @property
    def stage(self) -> Stage | None:
        """Returns the next stage; None if nothing is left to do. In the stage `table`, keys are looked up as well."""
        if self.table:
            return "table"
        if self.keys:
            return "keys"
        return "sweep" if self.sweep or self.absent else None

    @property
    def nbytes(self) -> int:
        """Returns how many bytes the keys of this repair take in the checkpoint's JSON, not counting quotes."""
        return sum(len(msgspec.json.encode(key)) - len('""') for key in (*self.keys, *self.absent))


@dataclass(frozen=True, slots=True, kw_only=True)
class Repairs:
    """All repairs of a changelog.

    `open` has the unfinished repairs by entity. `paused` has the entities whose tables are not read for now. `ended`
    has the outcomes of the last signals by their ids. `revision` counts the changes of the plan.
    """

    open: Mapping[str, Repair] = field(default_factory=dict)
    paused: frozenset[str] = frozenset()
    ended: Mapping[str, str] = field(default_factory=dict)
    revision: int = 0

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> Self:
        """Parses the result of `to_json`. Raises ChangelogError (MALFORMED)."""
        try:
            return cls(
                open={entity: _parse(repair) for entity, repair in document.get("open", {}).items()},
                paused=frozenset(document.get("paused", ())),
                ended=dict(document.get("ended", {})),
                revision=int(document.get("revision", 0)),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ChangelogError(Kind.MALFORMED, "the checkpoint's repairs cannot be read") from error

    def to_json(self) -> dict[str, Any]:
        """Returns the form that a checkpoint stores; empty if there was never a repair or a signal."""
        if self == Repairs():
            return {}
        return {
            "open": {entity: _json(repair) for entity, repair in self.open.items()},
            "paused": sorted(self.paused),
            "ended": dict(self.ended),
            "revision": self.revision,
        }

    def knows(self, id_: str) -> bool:
        """Returns whether a signal with this id was obeyed already, as far as the stored outcomes show."""
        return id_ in self.ended or any(id_ in repair.ids for repair in self.open.values())

    def anew(self) -> "Repairs":
        """Returns the same repairs in a new revision, so that the source is opened again."""
        return replace(self, revision=self.revision + 1)

    def of(self, entities: Collection[str]) -> "Repairs":
        """Returns only the repairs and the pauses of these entities, but all outcomes."""
        open_repairs = {entity: repair for entity, repair in self.open.items() if entity in entities}
        return replace(self, open=open_repairs, paused=self.paused & set(entities))

    def closed(self, ids: Collection[str], outcome: str) -> "Repairs":
        """Returns the repairs with `outcome` recorded for the signals `ids`. Keeps only the last ENDED_MAX outcomes."""
        outcomes = {**self.ended, **dict.fromkeys(ids, outcome)}
        return replace(self, ended=dict(list(outcomes.items())[-ENDED_MAX:]))

    def progressed(self, windows: Windows, reached: "Reached") -> "Repairs":
        """Returns the repairs that remain after the progress of one opening of the source.

        `windows` has the progress of reading the tables, and `reached` has the progress of the repairs. A sweep can
        begin only when the source opens. So if a sweep is left and this opening has nothing else to do, the result has
        a new revision, which makes the service open the source again.
        """
        repairs = self
        for entity, old_repair in self.open.items():
            repair = _progressed(old_repair, windows.get(entity), reached, entity)
            if repair.stage is None:
                open_repairs = {name: repair_left for name, repair_left in repairs.open.items() if name != entity}
                outcome = "failed" if entity in reached.failed else done(len(old_repair.absent))
                repairs = replace(repairs, open=open_repairs).closed(repair.ids, outcome)
            elif repair != old_repair:
                repairs = replace(repairs, open={**repairs.open, entity: repair})
        sweeps_waiting = repairs.sweeps(windows) - reached.sweeping
        if reached.idle and repairs.revision == reached.revision and (sweeps_waiting or any(reached.swept.values())):
            return repairs.anew()
        return repairs

    def changed(self, before: "Repairs") -> frozenset[str]:
        """Returns the entities whose repair or pause differs between these repairs and `before`."""
        entities = self.open.keys() | before.open.keys()
        changed_entities = {entity for entity in entities if self.open.get(entity) != before.open.get(entity)}
        return frozenset(changed_entities) | (self.paused ^ before.paused)

    def sweeps(self, windows: Windows) -> frozenset[str]:
        """Returns the entities to sweep now.

        An entity is swept if the sweep is its next stage, its table was read completely, and it is not paused.
        """
        entities = (entity for entity, repair in self.open.items() if repair.stage == "sweep")
        return frozenset(entity for entity in entities if is_complete(windows.get(entity))) - self.paused


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupProgress:
    """The progress that one opening of the source made with the key lookups of an entity.

    `keys_left` are the keys that are still to be looked up. `absent` are those that were looked up and that the table
    lacks.
    """

    keys_left: tuple[str, ...]
    absent: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """The progress that one opening of the source made with the repairs.

    `revision` is the revision of the repairs with which the source opened. `idle` says that this opening has nothing
    left to do. `lookups` has the progress of key lookups by entity. `sweeping` has the entities that this opening
    sweeps or has swept. `swept` says, for each entity that it has swept, whether another sweep must follow. For the
    entities in `failed`, the changelog could not be read.
    """

    revision: int
    idle: bool = False
    lookups: Mapping[str, LookupProgress] = field(default_factory=dict)
    sweeping: frozenset[str] = frozenset()
    swept: Mapping[str, bool] = field(default_factory=dict)
    failed: frozenset[str] = frozenset()


def _progressed(old_repair: Repair, progress: Mapping[str, Any] | None, reached: Reached, entity: str) -> Repair:
    repair = old_repair
    if repair.table and is_complete(progress):
        repair = replace(repair, table=False)
    if entity in reached.lookups:
        keys = reached.lookups[entity]
        repair = replace(repair, keys=keys.keys_left, absent=_merged(old_repair.absent, keys.absent))
    if reached.swept.get(entity) is False:
        repair = replace(repair, sweep=False, absent=())
    return repair


def obey(repairs: Repairs, windows: Windows, signal: Signal, position: Position) -> tuple[Repairs, Windows]:
    """Obeys a signal that arrived at `position`. Returns the new repairs and the new progress of tables.

    A signal whose id is known changes nothing. Raises ChangelogError (USAGE) if the changelog does not have the
    signal's entity.
    """
    if repairs.knows(signal.id):
        return repairs, windows
    if signal.entity is not None and signal.entity not in windows:
        raise ChangelogError(Kind.USAGE, "a signal names an entity that the changelog does not have")
    entities = _named(windows, signal.entity)
    match signal.do:
        case "pause":
            return replace(repairs, paused=repairs.paused | entities).closed([signal.id], "done").anew(), windows
        case "resume":
            return replace(repairs, paused=repairs.paused - entities).closed([signal.id], "done").anew(), windows
        case "cancel":
            return cancel(repairs, windows, signal.entity, signal.id)
    assert signal.entity is not None
    return _repaired(repairs, windows, signal, signal.entity, str(position))


def over_gap(repairs: Repairs, entities: Collection[str], position: Position) -> tuple[Repairs, Windows]:
    """Returns the new repairs and the new progress of tables after a gap, where a part of the log was lost.

    The new repairs begin at `position`. They read all tables from the start, and delete the keys that the tables lack.
    So they also complete the repairs that earlier signals asked for.
    """
    new_repairs = {}
    for entity in entities:
        old_ids = repairs.open[entity].ids if entity in repairs.open else ()
        ids = (*old_ids, f"gap-{position.epoch}-{entity}")[-ENDED_MAX:]
        new_repairs[entity] = Repair(ids=ids, start=str(position), table=True, sweep=True)
    return replace(repairs, open=new_repairs).anew(), {entity: {"complete": False} for entity in entities}


def returned(repairs: Repairs, entities: Collection[str], start: Position) -> Repairs:
    """Returns the repairs after `entities` were removed from the configuration and added to it again.

    The changelog has rows from before the removal. Deletes in between were not read from the log, so a sweep has to
    find the keys that were deleted. The new repairs begin at the position `start`.
    """
    repair_by_entity = {entity: Repair(ids=(), start=str(start), table=True, sweep=True) for entity in entities}
    return replace(repairs, open={**repair_by_entity, **repairs.open})


def done(absent: int) -> str:
    """Returns the outcome of a finished repair; `absent` is the number of keys that the table lacks."""
    return f"done, {absent} absent" if absent else "done"


def absent_of(outcome: str) -> int:
    """Returns the number of absent keys in an outcome that `done` returned; 0 for other outcomes."""
    count_text = outcome.removeprefix("done, ").removesuffix(" absent")
    return int(count_text) if count_text.isdecimal() else 0


def _named(windows: Windows, entity: str | None) -> set[str]:
    return set(windows) if entity is None else {entity}


def cancel(repairs: Repairs, windows: Windows, entity: str | None, id_: str) -> tuple[Repairs, Windows]:
    """Cancels the repair of `entity`, or all repairs if it is None. `id_` is the id of the signal that asks for this.

    A table that was complete before its repair counts as complete again. If a table is being read for the first time,
    the reading continues.
    """
    entities, remaining = _named(windows, entity), repairs
    for entity in entities & repairs.open.keys():
        remaining = remaining.closed(repairs.open[entity].ids, "cancelled")
    remaining = replace(remaining, open={name: repair for name, repair in repairs.open.items() if name not in entities})
    new_windows = {name: _left_alone(progress) if name in entities else progress for name, progress in windows.items()}
    return remaining.closed([id_], "done").anew(), new_windows


def _left_alone(progress: Mapping[str, Any]) -> Mapping[str, Any]:
    if is_complete(progress) or not was_complete(progress):
        return progress
    stale = sorted({*progress.get("stale", ()), *progress["again"]} - {ALL_COLUMNS})
    return {**COMPLETE, "stale": stale} if stale else COMPLETE


def _repaired(
    repairs: Repairs, windows: Windows, signal: Signal, entity: str, position: str
) -> tuple[Repairs, Windows]:
    old_repair = repairs.open.get(entity, Repair(ids=(), start=position))
    ids = (*old_repair.ids, signal.id)[-ENDED_MAX:]
    sweeps = signal.do == "rebuild"
    if signal.keys is not None:
        repair_of_keys = replace(old_repair, ids=ids, keys=_merged(old_repair.keys, signal.keys))
        if _fits(repairs, entity, repair_of_keys):
            return replace(repairs, open={**repairs.open, entity: repair_of_keys}).anew(), windows
        sweeps = True
    # The table is read from its start even if an earlier repair has read a part of it: rows of that part may have
    # drifted again since, and the signal may have been sent because of them.
    repair = replace(old_repair, ids=ids, start=position, table=True, sweep=old_repair.sweep or sweeps)
    new_windows = {**windows, entity: _read_again(windows[entity])}
    if repair.sweep:
        repair = replace(repair, keys=(), absent=())
    return replace(repairs, open={**repairs.open, entity: repair}).anew(), new_windows


def read_again(
    repairs: Repairs, windows: Windows, entity: str, start: str, *, sweep: bool, part: Mapping[str, Any] | None
) -> tuple[Repairs, Windows]:
    """Returns the new repairs and the new progress of tables after changes of a table that are not in the log.

    The changes were made before `start`. `part` says what must be read again: None means the whole table, and an empty
    `part` means nothing. Any other `part` describes a part of the table. It has members of an entry of
    `windows`, such as `leaves`. `sweep` says whether keys that the table lacks are deleted.
    """
    old_repair, old_entry = repairs.open.get(entity, Repair(ids=(), start=start)), windows[entity]
    if part is None:
        new_entry = _read_again(old_entry)
    elif is_complete(old_entry):
        stale = {"stale": old_entry["stale"]} if "stale" in old_entry else {}  # outside `part`, rows stay outdated
        new_entry = {"complete": False, "again": [ALL_COLUMNS], **stale, **part} if part else old_entry
    elif part and "leaves" in old_entry:  # keeps the progress in unchanged partitions
        new_entry = {
            **old_entry,
            "leaves": {name: leaf for name, leaf in old_entry["leaves"].items() if name in part["leaves"]},
        }
    else:
        new_entry = old_entry
    table = old_repair.table or not is_complete(new_entry)
    repair = replace(old_repair, start=start, table=table, sweep=old_repair.sweep or sweep)
    return replace(repairs, open={**repairs.open, entity: repair}).anew(), {**windows, entity: new_entry}


def _fits(repairs: Repairs, entity: str, new_repair: Repair) -> bool:
    """Returns whether the pending keys are few enough to be stored in every checkpoint."""
    other_bytes = sum(repair.nbytes for name, repair in repairs.open.items() if name != entity)
    return (
        len(new_repair.keys) + len(new_repair.absent) <= KEYS_MAX and other_bytes + new_repair.nbytes <= KEYS_BYTES_MAX
    )


def _read_again(progress: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the entry for reading a table from its first page, even if a part of it is read already."""
    if not was_complete(progress):
        return {"complete": False}
    again = {*progress.get("stale", ()), *progress.get("again", ()), ALL_COLUMNS}
    return {"complete": False, "again": sorted(again)}


def _merged(old_keys: Collection[str], new_keys: Collection[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*old_keys, *new_keys]))


def _parse(document: Mapping[str, Any]) -> Repair:
    return Repair(
        ids=tuple(document["ids"]),
        start=document["start"],
        table=document["table"],
        sweep=document["sweep"],
        keys=tuple(document["keys"]),
        absent=tuple(document["absent"]),
    )


def _json(repair: Repair) -> dict[str, Any]:
    return {
        "ids": list(repair.ids),
        "start": repair.start,
        "table": repair.table,
        "sweep": repair.sweep,
        "keys": list(repair.keys),
        "absent": list(repair.absent),
    }
