"""Finds the change that set each attribute of a row. Compares all versions of the row, one after the other.

A *version* is a whole state of a row, and the change that made this state. Tests compare the result with that of
`changelog.envelope.blame`, so this search is simple and shares no code with `changelog.envelope.blame`.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import Raw

from changelog.envelope.entity import TRUNCATE_KEY
from changelog.envelope.model import MISSING, Missing, Op, Record


@dataclass(slots=True)
class Version:
    """A state of a row (None: there is no row), and the number of the change that made it.

    If `is_made` is False, the change only showed the state, and it is unknown which change made it.
    """

    state: dict[str, Any] | None
    change: int
    is_made: bool = True


def last_life(versions: Sequence[Version]) -> Iterator[Version]:
    """Yields the versions since the row was last created."""
    begin = max((index for index, version in enumerate(versions) if version.state is None), default=-1)
    yield from versions[begin + 1 :]


def versions_in(records: Sequence[Record]) -> Mapping[str, list[Version]]:
    """Returns the versions of each row of an entity, by key. `records` are all records of the entity, in order.

    The number of a change is the index of its record.
    """
    versions: dict[str, list[Version]] = defaultdict(list)
    for number, record in enumerate(records):
        if record.place.key == TRUNCATE_KEY:
            for rows in versions.values():
                rows.append(Version(None, number))
            continue
        rows = versions[record.place.key]
        if record.moved_from is not None:  # the last version at the old key only says that the row left that key
            rows += last_life(versions[record.moved_from.key][:-1])
        state: Any = None if record.envelope.current is None else json.loads(bytes(record.envelope.current))
        op, original = record.envelope.provenance.source.op, record.envelope.original
        is_first_seen = op is Op.UPDATE and (not rows or rows[-1].state is None)
        if is_first_seen and isinstance(original, Raw):
            rows.append(Version(json.loads(bytes(original)), number, is_made=False))
        if state is not None:
            before = next((version.state for version in reversed(rows) if version.state is not None), {})
            unavailable = record.envelope.provenance.source.unavailable
            state |= {name: before[name] for name in unavailable if name in before}
        is_made = op is not Op.READ and not (is_first_seen and not isinstance(original, Raw))
        rows.append(Version(state, number, is_made))
    return versions


@dataclass(frozen=True, slots=True)
class TrueAttribute:
    """An attribute as `true_blame` finds it. Its values are JSON texts with sorted members.

    `before` is MISSING if the attribute had no value before.
    """

    value: str
    before: str | Missing
    change: int
    is_made: bool


def true_blame(versions: Sequence[Version]) -> dict[str, TrueAttribute]:
    """Returns the attributes of a row, by their JSON pointers. `versions` are all versions of the row, in order."""
    life = list(last_life(versions))
    result = {}
    for pointer in [] if not life else leaf_pointers(life[-1].state, ""):
        value = at(life[-1].state, pointer)
        begin = len(life) - 1
        while begin and at(life[begin - 1].state, pointer) == value:
            begin -= 1
        before = at(life[begin - 1].state, pointer) if begin else MISSING
        assert isinstance(value, str)
        result[pointer] = TrueAttribute(value, before, life[begin].change, life[begin].is_made)
    return result


def leaf_pointers(value: Any, pointer: str) -> Iterator[str]:
    """Yields the JSON pointers of the innermost parts of a value, which is itself at `pointer`."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if not parts or not value:
        if pointer:
            yield pointer
        return
    for name, part in parts:
        yield from leaf_pointers(part, f"{pointer}/{str(name).replace('~', '~0').replace('/', '~1')}")


def at(value: Any, pointer: str) -> str | Missing:
    """Returns the JSON at a JSON pointer, with its members sorted. Returns MISSING if nothing is there."""
    for token in pointer.split("/")[1:]:
        name: Any = token.replace("~1", "/").replace("~0", "~")
        if isinstance(value, list):
            name = int(name) if name.isdecimal() and int(name) < len(value) else None
        if name is None or not isinstance(value, dict | list) or (isinstance(value, dict) and name not in value):
            return MISSING
        value = value[name]
    return json.dumps(value, sort_keys=True)


def sorted_text(raw: Raw | Missing | None) -> str | Missing | None:
    """Returns JSON with sorted members, as `at` returns it."""
    return raw if isinstance(raw, Missing | None) else json.dumps(json.loads(bytes(raw)), sort_keys=True)
