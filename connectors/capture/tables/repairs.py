"""What is being repaired, as a checkpoint keeps it, and what a signal changes of it. Pure.

A repair makes the changelog of one entity equal to its table again. It has up to three stages:

    signal ──▶ table ─────────────▶ sweep ─────────────────────────────▶ done
               the whole table       what the changelog holds from before
               is read again         `start`, and the table lacks, is deleted
       └─────▶ keys ──────────────────┘  (of asked keys: only those that the table lacked)
               asked keys are looked up

**Why the sweep is exact.** After the table was read, every row that it holds has a row in the changelog at or after
`start`. A key whose last row is older than `start` was therefore not in the table when it was read: it is a ghost,
unless the stream touched it since. Each ghost is looked up in the table once more, under the rule of the windows, and
deleted if it is gone.

**Why a crash does no harm.** Each stage is taken up by an opening of the source from a stored checkpoint, and reading
the same rows twice changes no state. `revision` counts the changes of the plan after which the source is opened again:
a plan counts only once it is durable. What the old plan still reads counts for nothing (`checkpointing`).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

from changelog.connectors.capture.tables.table_progress import ALL_COLUMNS, COMPLETE, is_complete, was_complete
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.position import Position
from changelog.envelope.signal import KEYS_BYTES_MAX, KEYS_MAX, Signal

ENDED_MAX = 32
"""Signals of which a checkpoint keeps how they ended; so many ids a repair has at most, too."""

Stage = Literal["table", "keys", "sweep"]
Windows = Mapping[str, Any]
"""A checkpoint's `windows`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """What is left to do of one entity; `ids` are the signals that asked for it, `start` where the table's begins.

    `table`: the whole table is read again. `keys` are to be looked up in it, `absent` were and are not there. `sweep`:
    what the changelog holds from before `start`, or of `absent` keys, is looked up in the table, once that is read.
    """

    ids: tuple[str, ...]
    start: str
    table: bool = False
    sweep: bool = False
    keys: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()

    @property
    def stage(self) -> Stage | None:
        """What is done next; None when nothing is left. Keys are looked up while the table is read."""
        if self.table:
            return "table"
        if self.keys:
            return "keys"
        return "sweep" if self.sweep or self.absent else None

    @property
    def nbytes(self) -> int:
        """UTF-8 of the keys."""
        return sum(len(key.encode()) for key in (*self.keys, *self.absent))


@dataclass(frozen=True, slots=True, kw_only=True)
class Repairs:
    """All repairs: `open` by entity, the entities whose tables are not read for now, how the last signals ended."""

    open: Mapping[str, Repair] = field(default_factory=dict)
    paused: frozenset[str] = frozenset()
    ended: Mapping[str, str] = field(default_factory=dict)
    revision: int = 0

    @classmethod
    def parse(cls, stored: Mapping[str, Any]) -> Self:
        """What `to_json` gave. Raises ChangelogError (MALFORMED)."""
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
        """What a checkpoint keeps; nothing where no signal ever came."""
        if self == Repairs():
            return {}
        return {
            "open": {entity: _json(repair) for entity, repair in self.open.items()},
            "paused": sorted(self.paused),
            "ended": dict(self.ended),
            "revision": self.revision,
        }

    def knows(self, id_: str) -> bool:
        """Whether a signal of this id came before."""
        return id_ in self.ended or any(id_ in repair.ids for repair in self.open.values())

    def anew(self) -> "Repairs":
        """The source is to be opened anew."""
        return replace(self, revision=self.revision + 1)

    def of(self, entities: Collection[str]) -> "Repairs":
        """Those of these entities alone."""
        left = {entity: repair for entity, repair in self.open.items() if entity in entities}
        return replace(self, open=left, paused=self.paused & set(entities))

    def closed(self, ids: Collection[str], outcome: str) -> "Repairs":
        """These signals ended so."""
        ended = {**self.ended, **dict.fromkeys(ids, outcome)}
        return replace(self, ended=dict(list(ended.items())[-ENDED_MAX:]))

    def progressed(self, windows: Windows, reached: "Reached") -> "Repairs":
        """What is left, by how far an opening of the source came; anew, where only another one can go on."""
        repairs = self
        for entity, before in self.open.items():
            repair = _progressed(before, windows.get(entity), reached, entity)
            if repair.stage is None:
                left = {name: other for name, other in repairs.open.items() if name != entity}
                outcome = "failed" if entity in reached.failed else done(len(before.absent))
                repairs = replace(repairs, open=left).closed(repair.ids, outcome)
            elif repair != before:
                repairs = replace(repairs, open={**repairs.open, entity: repair})
        waiting = repairs.sweeps(windows) - reached.sweeping
        if reached.idle and repairs.revision == reached.revision and (waiting or any(reached.swept.values())):
            return repairs.anew()
        return repairs

    def changed(self, before: "Repairs") -> frozenset[str]:
        """The entities of which something else is to be done than before."""
        named = self.open.keys() | before.open.keys()
        other = {entity for entity in named if self.open.get(entity) != before.open.get(entity)}
        return frozenset(other) | (self.paused ^ before.paused)

    def sweeps(self, windows: Windows) -> frozenset[str]:
        """The entities of which it is time to look for what their tables lack: those are read by now."""
        due = (entity for entity, repair in self.open.items() if repair.stage == "sweep")
        return frozenset(entity for entity in due if is_complete(windows.get(entity))) - self.paused


@dataclass(frozen=True, slots=True, kw_only=True)
class LookedUp:
    """How far an opening came with the keys that it looks up: those that are left, and those that are not there."""

    left: tuple[str, ...]
    absent: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """How far an opening of the source, at this `revision` of the repairs, came; `idle` once it has no more to do.

    `sweeping` are the entities that it sweeps; `swept` those that it is done with: whether there is more to sweep. Of
    the `failed` ones the changelog cannot be read.
    """

    revision: int
    idle: bool = False
    looked_up: Mapping[str, LookedUp] = field(default_factory=dict)
    sweeping: frozenset[str] = frozenset()
    swept: Mapping[str, bool] = field(default_factory=dict)
    failed: frozenset[str] = frozenset()


def _progressed(before: Repair, stored: Mapping[str, Any] | None, reached: Reached, entity: str) -> Repair:
    repair = before
    if repair.table and is_complete(stored):
        repair = replace(repair, table=False)
    if entity in reached.looked_up:
        keys = reached.looked_up[entity]
        repair = replace(repair, keys=keys.left, absent=_merged(before.absent, keys.absent))
    if reached.swept.get(entity) is False:
        repair = replace(repair, sweep=False, absent=())
    return repair


def obey(repairs: Repairs, windows: Windows, signal: Signal, position: Position) -> tuple[Repairs, Windows]:
    """What becomes of the repairs, and of the reading of tables, by a signal that stands at `position`.

    Raises ChangelogError (USAGE) when it is of an entity that the changelog does not have.
    """
    if repairs.knows(signal.id):
        return repairs, windows
    if signal.entity is not None and signal.entity not in windows:
        raise ChangelogError(Kind.USAGE, "a signal is of an entity that the changelog does not have")
    named = _named(windows, signal.entity)
    match signal.do:
        case "pause":
            return replace(repairs, paused=repairs.paused | named).closed([signal.id], "done").anew(), windows
        case "resume":
            return replace(repairs, paused=repairs.paused - named).closed([signal.id], "done").anew(), windows
        case "cancel":
            return cancel(repairs, windows, signal.entity, signal.id)
    assert signal.entity is not None
    return _repaired(repairs, windows, signal, signal.entity, str(position))


def over_gap(repairs: Repairs, entities: Collection[str], position: Position) -> tuple[Repairs, Windows]:
    """Every table is read from its first page, and what the changelog holds beyond it is deleted: a gap at `position`
    may have held any change. Signals that were not done yet are done by that.
    """
    opened = {}
    for entity in entities:
        asked = repairs.open[entity].ids if entity in repairs.open else ()
        ids = (*asked, f"gap-{position.epoch}-{entity}")[-ENDED_MAX:]
        opened[entity] = Repair(ids=ids, start=str(position), table=True, sweep=True)
    return replace(repairs, open=opened).anew(), {entity: {"complete": False} for entity in entities}


def done(absent: int) -> str:
    """How a repair ended of which the table lacked so many of the asked keys."""
    return f"done, {absent} absent" if absent else "done"


def absent_of(outcome: str) -> int:
    """How many of the asked keys the table lacked, by what `done` gave."""
    number = outcome.removeprefix("done, ").removesuffix(" absent")
    return int(number) if number.isdecimal() else 0


def _named(windows: Windows, entity: str | None) -> set[str]:
    return set(windows) if entity is None else {entity}


def cancel(repairs: Repairs, windows: Windows, entity: str | None, id_: str) -> tuple[Repairs, Windows]:
    """Without the repairs of an entity, None for all; `id_` is who asked for it.

    Tables that were whole before are taken as whole again; a first reading goes on.
    """
    named, others = _named(windows, entity), repairs
    for entity in named & repairs.open.keys():
        others = others.closed(repairs.open[entity].ids, "cancelled")
    others = replace(others, open={name: repair for name, repair in repairs.open.items() if name not in named})
    left = {name: _left_alone(stored) if name in named else stored for name, stored in windows.items()}
    return others.closed([id_], "done").anew(), left


def _left_alone(stored: Mapping[str, Any]) -> Mapping[str, Any]:
    if is_complete(stored) or not was_complete(stored):
        return stored
    stale = sorted({*stored.get("stale", ()), *stored["again"]} - {ALL_COLUMNS})
    return {**COMPLETE, "stale": stale} if stale else COMPLETE


def _repaired(
    repairs: Repairs, windows: Windows, signal: Signal, entity: str, position: str
) -> tuple[Repairs, Windows]:
    before = repairs.open.get(entity, Repair(ids=(), start=position))
    ids = (*before.ids, signal.id)[-ENDED_MAX:]
    sweeps = signal.do == "rebuild"
    if signal.keys is not None:
        asked = replace(before, ids=ids, keys=_merged(before.keys, signal.keys))
        if _fits(repairs, entity, asked):
            return replace(repairs, open={**repairs.open, entity: asked}).anew(), windows
        sweeps = True
    # What an earlier repair has read already is read again: the reason for this signal may be newer.
    repair = replace(before, ids=ids, start=position, table=True, sweep=before.sweep or sweeps)
    read = {**windows, entity: _read_again(windows[entity])}
    if repair.sweep:
        repair = replace(repair, keys=(), absent=())
    return replace(repairs, open={**repairs.open, entity: repair}).anew(), read


def read_again(
    repairs: Repairs, windows: Windows, entity: str, start: str, *, sweep: bool, part: Mapping[str, Any] | None
) -> tuple[Repairs, Windows]:
    """What becomes of both where changes of a table are not in the log before the position `start`.

    `part` is the entry of a table in `windows` by which only a part of it is left to read; empty where nothing is, and
    None for the whole table. `sweep`: what the changelog holds and the table lacks is deleted.
    """
    before, stored = repairs.open.get(entity, Repair(ids=(), start=start)), windows[entity]
    if part is None:
        read = _read_again(stored)
    elif is_complete(stored):
        stale = {"stale": stored["stale"]} if "stale" in stored else {}  # the other parts stay as they are
        read = {"complete": False, "again": [ALL_COLUMNS], **stale, **part} if part else stored
    elif part and "leaves" in stored:  # what is read already, but for partitions that are no longer as they were
        read = {**stored, "leaves": {name: leaf for name, leaf in stored["leaves"].items() if name in part["leaves"]}}
    else:
        read = stored
    table = before.table or not is_complete(read)
    repair = replace(before, start=start, table=table, sweep=before.sweep or sweep)
    return replace(repairs, open={**repairs.open, entity: repair}).anew(), {**windows, entity: read}


def _fits(repairs: Repairs, entity: str, asked: Repair) -> bool:
    """Whether the keys that are pending are few enough to stand in every checkpoint."""
    others = sum(repair.nbytes for name, repair in repairs.open.items() if name != entity)
    return len(asked.keys) + len(asked.absent) <= KEYS_MAX and others + asked.nbytes <= KEYS_BYTES_MAX


def _read_again(stored: Mapping[str, Any]) -> Mapping[str, Any]:
    """From its first page, also where a part of the table is read already."""
    if not was_complete(stored):
        return {"complete": False}
    again = {*stored.get("stale", ()), *stored.get("again", ()), ALL_COLUMNS}
    return {"complete": False, "again": sorted(again)}


def _merged(before: Collection[str], more: Collection[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*before, *more]))


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
