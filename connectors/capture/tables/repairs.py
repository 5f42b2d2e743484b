"""The repairs that are under way, as a checkpoint stores them, and how signals change them. Pure.

A repair makes the changelog of one entity equal to its table again. It has up to three stages:

    signal ──▶ table ─────────────▶ sweep ─────────────────────────────▶ done
               the whole table       keys of the changelog from before `start`
               is read again         that the table lacks are deleted
       └─────▶ keys ──────────────────┘  (only those of the signal's keys that the table lacked)
               the signal's keys are looked up

**Why the sweep is exact.** After the table was read, every row that it holds has a row in the changelog at or after
`start`. A key whose last row is older than `start` was therefore not in the table when it was read: it is a ghost,
unless the stream touched it since. Each ghost is looked up in the table once more, under the rule of the windows, and
deleted if it is gone.

**Why a crash does no harm.** Each opening of the source continues the stages from a stored checkpoint, and reading the
same rows twice changes no state. `revision` counts the changes of the plan after which the source must be reopened: a
plan takes effect only once it is durable. What the old plan still reads is not counted as progress (`checkpointing`).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

from changelog.connectors.capture.tables.table_progress import ALL_COLUMNS, COMPLETE, is_complete, was_complete
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.position import Position
from changelog.envelope.signal import KEYS_BYTES_MAX, KEYS_MAX, Signal

ENDED_MAX = 32
"""The most signals whose outcomes a checkpoint stores, and the most ids of one repair."""

Stage = Literal["table", "keys", "sweep"]
Windows = Mapping[str, Any]
"""A checkpoint's `windows`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """What remains to be done for one entity. `ids` are those of the signals that asked for it.

    `table` says that the whole table is read again, from the position `start` on. `keys` must still be looked up in the
    table; `absent` were looked up and are not there. `sweep` says that, once the table is read, the changelog is
    searched for keys from before `start` that the table lacks. Such keys are deleted, and so are `absent` ones.
    """

    ids: tuple[str, ...]
    start: str
    table: bool = False
    sweep: bool = False
    keys: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()

    @property
    def stage(self) -> Stage | None:
        """The next stage; None if nothing is left to do. Keys are looked up while the table is read."""
        if self.table:
            return "table"
        if self.keys:
            return "keys"
        return "sweep" if self.sweep or self.absent else None

    @property
    def nbytes(self) -> int:
        """The size of the keys in UTF-8."""
        return sum(len(key.encode()) for key in (*self.keys, *self.absent))


@dataclass(frozen=True, slots=True, kw_only=True)
class Repairs:
    """All repairs: `open` by entity, the entities whose reading is `paused`, and how the last signals `ended`."""

    open: Mapping[str, Repair] = field(default_factory=dict)
    paused: frozenset[str] = frozenset()
    ended: Mapping[str, str] = field(default_factory=dict)
    revision: int = 0

    @classmethod
    def parse(cls, stored: Mapping[str, Any]) -> Self:
        """Parses the result of `to_json`. Raises ChangelogError (MALFORMED)."""
        try:
            return cls(
                open={entity: _parse(repair) for entity, repair in stored.get("open", {}).items()},
                paused=frozenset(stored.get("paused", ())),
                ended=dict(stored.get("ended", {})),
                revision=int(stored.get("revision", 0)),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ChangelogError(Kind.MALFORMED, "the recovery record's repairs cannot be read") from error

    def to_json(self) -> dict[str, Any]:
        """The form that a checkpoint stores; empty if no signal ever came."""
        if self == Repairs():
            return {}
        return {
            "open": {entity: _json(repair) for entity, repair in self.open.items()},
            "paused": sorted(self.paused),
            "ended": dict(self.ended),
            "revision": self.revision,
        }

    def knows(self, id_: str) -> bool:
        """Whether a signal with this id came before."""
        return id_ in self.ended or any(id_ in repair.ids for repair in self.open.values())

    def anew(self) -> "Repairs":
        """The same repairs in a new revision, for which the source must be reopened."""
        return replace(self, revision=self.revision + 1)

    def of(self, entities: Collection[str]) -> "Repairs":
        """The repairs of these entities only."""
        open_repairs = {entity: repair for entity, repair in self.open.items() if entity in entities}
        return replace(self, open=open_repairs, paused=self.paused & set(entities))

    def closed(self, ids: Collection[str], outcome: str) -> "Repairs":
        """The repairs after these signals ended with this outcome."""
        ended = {**self.ended, **dict.fromkeys(ids, outcome)}
        return replace(self, ended=dict(list(ended.items())[-ENDED_MAX:]))

    def progressed(self, windows: Windows, reached: "Reached") -> "Repairs":
        """The repairs that remain after an opening of the source came this far. It is a new revision if only another
        opening can continue.
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
        """The entities whose repair, or whose pause, differs from `before`."""
        entities = self.open.keys() | before.open.keys()
        changed_entities = {entity for entity in entities if self.open.get(entity) != before.open.get(entity)}
        return frozenset(changed_entities) | (self.paused ^ before.paused)

    def sweeps(self, windows: Windows) -> frozenset[str]:
        """The entities to sweep now: their tables are read completely."""
        entities = (entity for entity, repair in self.open.items() if repair.stage == "sweep")
        return frozenset(entity for entity in entities if is_complete(windows.get(entity))) - self.paused


@dataclass(frozen=True, slots=True, kw_only=True)
class LookedUp:
    """How far an opening came with its key lookups: the keys `left` to look up, and those that the table lacks."""

    left: tuple[str, ...]
    absent: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """How far an opening of the source came with the repairs at this `revision`; `idle` if it has nothing left to do.

    `sweeping` are the entities that it sweeps. `swept` are those that it has swept, with whether there is more to
    sweep. For `failed` ones the changelog could not be read.
    """

    revision: int
    idle: bool = False
    looked_up: Mapping[str, LookedUp] = field(default_factory=dict)
    sweeping: frozenset[str] = frozenset()
    swept: Mapping[str, bool] = field(default_factory=dict)
    failed: frozenset[str] = frozenset()


def _progressed(old_repair: Repair, stored: Mapping[str, Any] | None, reached: Reached, entity: str) -> Repair:
    repair = old_repair
    if repair.table and is_complete(stored):
        repair = replace(repair, table=False)
    if entity in reached.looked_up:
        keys = reached.looked_up[entity]
        repair = replace(repair, keys=keys.left, absent=_merged(old_repair.absent, keys.absent))
    if reached.swept.get(entity) is False:
        repair = replace(repair, sweep=False, absent=())
    return repair


def obey(repairs: Repairs, windows: Windows, signal: Signal, position: Position) -> tuple[Repairs, Windows]:
    """The repairs and the progress of tables after a signal at `position`.

    Raises ChangelogError (USAGE) if the changelog does not have the signal's entity.
    """
    if repairs.knows(signal.id):
        return repairs, windows
    if signal.entity is not None and signal.entity not in windows:
        raise ChangelogError(Kind.USAGE, "a signal is of an entity that the changelog does not have")
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
    """The repairs after a gap at `position`, which may have held any change.

    All tables are read from their first page, and keys that they lack are deleted. This also does what pending signals
    asked for.
    """
    new_repairs = {}
    for entity in entities:
        old_ids = repairs.open[entity].ids if entity in repairs.open else ()
        ids = (*old_ids, f"gap-{position.epoch}-{entity}")[-ENDED_MAX:]
        new_repairs[entity] = Repair(ids=ids, start=str(position), table=True, sweep=True)
    return replace(repairs, open=new_repairs).anew(), {entity: {"complete": False} for entity in entities}


def returned(repairs: Repairs, entities: Collection[str], start: Position) -> Repairs:
    """These entities are configured again, and their tables are read from `start` on.

    The changelog has rows of theirs from before they left. What was deleted since is not in the log that is read, so
    a sweep finds it.
    """
    opened = {entity: Repair(ids=(), start=str(start), table=True, sweep=True) for entity in entities}
    return replace(repairs, open={**opened, **repairs.open})


def done(absent: int) -> str:
    """The outcome of a repair that is done: `absent` of the signal's keys are not in the table."""
    return f"done, {absent} absent" if absent else "done"


def absent_of(outcome: str) -> int:
    """The number in an outcome of `done`."""
    count_text = outcome.removeprefix("done, ").removesuffix(" absent")
    return int(count_text) if count_text.isdecimal() else 0


def _named(windows: Windows, entity: str | None) -> set[str]:
    return set(windows) if entity is None else {entity}


def cancel(repairs: Repairs, windows: Windows, entity: str | None, id_: str) -> tuple[Repairs, Windows]:
    """Cancels the repair of an entity, or all if it is None; `id_` is that of the signal.

    A table that was complete before its repair counts as complete again; a first reading continues.
    """
    entities, remaining = _named(windows, entity), repairs
    for entity in entities & repairs.open.keys():
        remaining = remaining.closed(repairs.open[entity].ids, "cancelled")
    remaining = replace(remaining, open={name: repair for name, repair in repairs.open.items() if name not in entities})
    new_windows = {name: _left_alone(stored) if name in entities else stored for name, stored in windows.items()}
    return remaining.closed([id_], "done").anew(), new_windows


def _left_alone(stored: Mapping[str, Any]) -> Mapping[str, Any]:
    if is_complete(stored) or not was_complete(stored):
        return stored
    stale = sorted({*stored.get("stale", ()), *stored["again"]} - {ALL_COLUMNS})
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
    # What an earlier repair has read already is read again: the reason for this signal may be newer.
    repair = replace(old_repair, ids=ids, start=position, table=True, sweep=old_repair.sweep or sweeps)
    new_windows = {**windows, entity: _read_again(windows[entity])}
    if repair.sweep:
        repair = replace(repair, keys=(), absent=())
    return replace(repairs, open={**repairs.open, entity: repair}).anew(), new_windows


def read_again(
    repairs: Repairs, windows: Windows, entity: str, start: str, *, sweep: bool, part: Mapping[str, Any] | None
) -> tuple[Repairs, Windows]:
    """The repairs and the progress of tables if changes of a table before the position `start` are not in the log.

    `part` is an entry for `windows` by which only a part of the table is read: empty if no part is, None for the whole
    table. `sweep` says that keys that the table lacks are deleted.
    """
    old_repair, old_entry = repairs.open.get(entity, Repair(ids=(), start=start)), windows[entity]
    if part is None:
        new_entry = _read_again(old_entry)
    elif is_complete(old_entry):
        stale = {"stale": old_entry["stale"]} if "stale" in old_entry else {}  # the other parts stay as they are
        new_entry = {"complete": False, "again": [ALL_COLUMNS], **stale, **part} if part else old_entry
    elif part and "leaves" in old_entry:  # keeps what is read already, except for partitions that changed
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
    """Whether the pending keys are few enough to be stored in every checkpoint."""
    other_bytes = sum(repair.nbytes for name, repair in repairs.open.items() if name != entity)
    return (
        len(new_repair.keys) + len(new_repair.absent) <= KEYS_MAX and other_bytes + new_repair.nbytes <= KEYS_BYTES_MAX
    )


def _read_again(stored: Mapping[str, Any]) -> Mapping[str, Any]:
    """The entry of a table that is read from its first page, even if a part of it is read already."""
    if not was_complete(stored):
        return {"complete": False}
    again = {*stored.get("stale", ()), *stored.get("again", ()), ALL_COLUMNS}
    return {"complete": False, "again": sorted(again)}


def _merged(old_keys: Collection[str], new_keys: Collection[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*old_keys, *new_keys]))


def _parse(stored: Mapping[str, Any]) -> Repair:
    return Repair(
        ids=tuple(stored["ids"]),
        start=stored["start"],
        table=stored["table"],
        sweep=stored["sweep"],
        keys=tuple(stored["keys"]),
        absent=tuple(stored["absent"]),
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
