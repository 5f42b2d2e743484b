"""Draws random changes of rows. A `World` has the messages of these changes, and the versions (the successive states)
of each row.

The *blame* of a row names the change that set each of the row's values. Tests compute it both from the versions and
from the messages, and compare the two results.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from changelog.envelope.blame import Blame, BlameFold
from changelog.envelope.entity import TRUNCATE_KEY
from changelog.envelope.model import MISSING, Missing, Op, Place, Record
from tests.unit.blame.search import Version, last_life
from tests.unit.records import record

KEYS = ("1", "2", "3")
COLUMNS = ("a", "b/c", "d~e")

scalars = st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(["", "x", "é", "\n", 0.5, 1.0])
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("xy/"), inner, max_size=2)
)


@dataclass(slots=True)
class World:
    """The versions and the partition of each row, by its key, and the messages of all changes.

    The messages of change n have commit n.
    """

    versions: dict[str, list[Version]] = field(default_factory=dict)
    partitions: dict[str, int] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    change: int = 0

    def state(self, key: str) -> dict[str, Any] | None:
        """Returns the present state of a row, or None if there is no row."""
        return self.versions[key][-1].state if self.versions.get(key) else None

    def set(self, key: str, state: dict[str, Any] | None) -> None:
        """Adds a version of the row with this key."""
        self.versions.setdefault(key, []).append(Version(state, self.change))

    def publish(self, op: Op, key: str, **fields: Any) -> None:
        """Adds a message about the present change, whose number is `self.change`."""
        message = record(
            op,
            fields.get("current"),
            fields.get("original", MISSING),
            commit=self.change,
            ordinal=fields.get("ordinal", 0),
            key=key,
            service=f"service-{self.change % 3}",
            unavailable=fields.get("unavailable", ()),
            unavailable_original=fields.get("unavailable_original", ()),
            partition=fields.get("partition", self.partitions.get(key, 0)),
            moved_to=fields.get("moved_to"),
            moved_from=fields.get("moved_from"),
        )
        self.records.append(message)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Draws a world in which no change is lost, and in which each row begins with a create."""
    world = World()
    for _ in range(draw(st.integers(1, 14))):
        world.change += 1
        key = draw(st.sampled_from(KEYS))
        present = world.state(key)
        if present is None:
            _create(world, key, draw(_states()))
            continue
        act = draw(st.sampled_from(["update"] * 4 + ["move", "move", "partition", "delete", "read", "truncate"]))
        free = [name for name in KEYS if world.state(name) is None]
        if act == "move" and free:
            _move(world, key, draw(st.sampled_from(free)), draw(_next_state(present)), draw)
        elif act == "partition":
            _move(world, key, key, draw(_next_state(present)), draw)
        elif act == "delete":
            world.publish(Op.DELETE, key, original=draw(_originals(present, {}))[0])
            world.set(key, None)
        elif act == "read":
            world.publish(Op.READ, key, current=_text(present))
        elif act == "truncate":
            _truncate(world)
        else:
            _update(world, key, draw(_next_state(present)), draw)
    return world


def _create(world: World, key: str, state: dict[str, Any]) -> None:
    world.publish(Op.CREATE, key, current=_text(state))
    world.set(key, state)


def _update(world: World, key: str, state: dict[str, Any], draw: st.DrawFn) -> None:
    before = world.state(key) or {}
    hidden = draw(_hidden(before, state))
    original, lacking = draw(_originals(before, hidden))
    current = _text({name: value for name, value in state.items() if name not in hidden})
    world.publish(Op.UPDATE, key, current=current, original=original, unavailable=hidden, unavailable_original=lacking)
    world.set(key, state)


def _move(world: World, key: str, to: str, state: dict[str, Any], draw: st.DrawFn) -> None:
    before = world.state(key) or {}
    hidden = draw(_hidden(before, state))
    original, lacking = draw(_originals(before, hidden))
    old_place = Place(key=key, partition=world.partitions.get(key, 0))
    new_place = Place(key=to, partition=old_place.partition + 1)
    world.publish(Op.DELETE, key, original=original, unavailable_original=lacking, moved_to=new_place)
    world.partitions[to] = new_place.partition
    current = _text({name: value for name, value in state.items() if name not in hidden})
    world.publish(Op.CREATE, to, current=current, unavailable=hidden, ordinal=1, moved_from=old_place)
    if to != key:
        world.versions[to] = [*world.versions.get(to, []), *last_life(world.versions[key])]
        world.set(key, None)
    world.set(to, state)


def _truncate(world: World) -> None:
    for partition in (0, 1):
        world.publish(Op.TRUNCATE, TRUNCATE_KEY, original=None, partition=partition)
    for key in world.versions:
        if world.state(key) is not None:
            world.set(key, None)


def _states() -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from(COLUMNS), values, max_size=3)


@st.composite
def _next_state(draw: st.DrawFn, state: dict[str, Any]) -> dict[str, Any]:
    """Draws the next state of a row: some columns change, a column is added or dropped, or nothing changes.

    If an object changes, some of its members may keep their values.
    """
    changed = draw(_states())
    parts = {
        name: value | changed[name]
        for name, value in state.items()
        if isinstance(value, dict) and isinstance(changed.get(name), dict)
    }
    dropped = draw(st.sampled_from([None, None, *COLUMNS]))
    return {name: value for name, value in {**state, **changed, **parts}.items() if name != dropped}


@st.composite
def _hidden(draw: st.DrawFn, before: dict[str, Any], after: dict[str, Any]) -> tuple[str, ...]:
    """Draws some of the columns that did not change. The database's log leaves these out."""
    same = [name for name in after if name in before and _text(before[name]) == _text(after[name])]
    return tuple(name for name in same if draw(st.booleans()))


@st.composite
def _originals(draw: st.DrawFn, before: dict[str, Any], hidden: Any) -> tuple[str | Missing, tuple[str, ...]]:
    """Draws which columns of the old row are in the database's log. Returns the old row with these columns, and the
    names of the others. If the log has no old row, returns MISSING and no names.
    """
    lacking = (*hidden, *(name for name in before if name not in hidden and draw(st.booleans())))
    lacking = tuple(name for name in before if name in lacking)
    if draw(st.booleans()) or len(lacking) == len(before):
        return MISSING, ()
    return _text({name: value for name, value in before.items() if name not in lacking}), lacking


def _text(value: Any) -> str:
    return json.dumps(value)


def folded(records: Sequence[Record]) -> dict[str, Blame]:
    """Returns the blame of every key, from the records of all keys in order."""
    folds = {item.place.key: BlameFold() for item in records if item.place.key != TRUNCATE_KEY}
    for item in records:
        if item.place.key == TRUNCATE_KEY:
            for fold in folds.values():
                fold.add(item)
            continue
        fold = folds[item.place.key]
        if item.moved_from is not None:
            fold.continue_from(folds[item.moved_from.key])
        fold.add(item)
    return {key: fold.result() for key, fold in folds.items()}
