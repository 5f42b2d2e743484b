"""Computes the blame of one key from its changes: goes through them in order, and remembers which change set each
attribute.

An attribute belongs to the last change that gave it another value. Values are compared as canonical JSON. Elements of
an array are compared with those at the same index. So a change that inserts an element sets all elements after it, too.

| change | what it sets |
|---|---|
| create | all attributes |
| update | the attributes that differ from the row before |
| create of a row that moved here | attributes that differ from the row before the move (`BlameFold.continue_from`) |
| delete, truncate | nothing: there is no row afterwards |
| read | nothing: an attribute that differs from the row before has an unknown writer |

The row before a change is computed from the earlier changes. In three cases, this row is incomplete or wrong. Then a
value can have been set by a change that the changelog does not have, and the result says that its writer is unknown:

- The first record of the key is not a create. All its values have unknown writers, except those that differ from its
  `original`.
- The `original` of an update or a move differs from the row that the earlier changes left, because changes before this
  one were lost (a gap). The attributes that differ have unknown writers from then on, until another change sets them.
- The database's log did not send a value (it is *unavailable*). Then the value from the earlier changes stays, with its
  writer. If no earlier change has the value, its writer is unknown until the log sends the value with an update. This
  update counts as the writer, because databases leave such a value out until an update sets it.

The first change whose state has a column sets this column, even if the value is null. If a later state lacks the
column, and its change does not name the column as unavailable, the row no longer has the column.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from msgspec import Raw

from changelog.envelope.blame.attributes import Attribute, Blame, Writer, writer_of
from changelog.envelope.blame.leaves import containers, leaves, pointer_of
from changelog.envelope.canonical import dumps
from changelog.envelope.codec.json_codec import members
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import MISSING, Missing, Op, Record


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of the row: its JSON (None if unavailable), and its attributes by pointer."""

    token: bytes | None
    leaves: Mapping[str, Attribute]


@dataclass(frozen=True, slots=True)
class _Before:
    """What is known of the row before a change.

    `absent` applies to each column that is not in `columns`: MISSING if the row did not have the column, None if that
    is unknown.
    """

    columns: Mapping[str, _Column]
    absent: Missing | None


_DELETES: Final = frozenset({Op.DELETE, Op.TRUNCATE})

_UNKNOWN: Final = _Before({}, None)
_NO_ROW: Final = _Before({}, MISSING)


class BlameFold:
    """Takes the records of one key, one after the other, and can return the key's blame after each of them.

    `begins_empty` says that the key certainly had no row before its first record.
    """

    __slots__ = ("_before", "_exists", "_last", "_left", "_state")

    def __init__(self, *, begins_empty: bool = False) -> None:
        self._before = _NO_ROW if begins_empty else _UNKNOWN
        self._exists = False
        self._left = _UNKNOWN  # the row that the last record moved away from this key
        self._last: Writer | None = None
        self._state: Raw | None = None  # the text of the row in the last record, if it is complete

    def add(self, record: Record) -> None:
        """Takes the next record, in the order of the positions. A truncate concerns every key of its entity, so it must
        be added to the fold of every key.

        Raises ChangelogError of kind *malformed*, with the position, if a state is missing or is not a JSON object.
        """
        op = record.envelope.provenance.source.op
        if op is Op.TRUNCATE and not self._exists:
            return  # the key had no row that the truncate could delete
        writer = writer_of(record)
        if op in _DELETES:
            self._left = _UNKNOWN if record.moved_to is None else self._corrected(record, writer)
            self._before, self._exists = _NO_ROW, False
            self._state = None
        else:
            self._before, self._exists = _after(self._row_before(record, writer), record, writer), True
            self._left = _UNKNOWN
            self._state = None if record.envelope.provenance.source.unavailable else record.envelope.current
        self._last = writer

    def continue_from(self, other: "BlameFold") -> None:
        """Takes over the row that moved here from another key. The next record must be the create that this move made.

        `other` has the records of the other key, up to the delete by which the row moved away.
        """
        self._left = other._left

    def result(self) -> Blame:
        """Returns the blame after the records so far."""
        if not self._exists:
            return Blame(current=None, last=self._last, attributes=())
        columns = self._before.columns
        members = [dumps(name) + b":" + column.token for name, column in columns.items() if column.token is not None]
        attributes = (attribute for column in columns.values() for attribute in column.leaves.values())
        return Blame(current=Raw(b"{%b}" % b",".join(members)), last=self._last, attributes=tuple(attributes))

    def _row_before(self, record: Record, writer: Writer) -> _Before:
        """Returns the row before a create, an update or a read."""
        match record.envelope.provenance.source.op:
            case Op.CREATE:
                return _NO_ROW if record.moved_from is None else self._left
            case Op.READ:
                return self._before
        return self._corrected(record, writer)

    def _corrected(self, record: Record, writer: Writer) -> _Before:
        """Returns the row before an update or a move, as the earlier changes left it. If the record's `original` has
        other values, these replace the values from the earlier changes.
        """
        original = record.envelope.original
        if isinstance(original, Missing | None):
            return self._before if self._exists else _UNKNOWN
        if original == self._state:
            return self._before
        tokens, unknown = _tokens(record, original), _unknown(writer)
        if not self._exists:
            columns = {name: _first_shown(name, token, unknown, None) for name, token in tokens.items()}
            return _Before(columns, None if record.envelope.provenance.source.unavailable_original else MISSING)
        columns = {
            name: _column(name, tokens[name], column, unknown) if name in tokens else column
            for name, column in self._before.columns.items()
        }
        return _Before(columns, MISSING)


def _after(before: _Before, record: Record, writer: Writer) -> _Before:
    """Returns the row after a create, an update or a read. `before` is the row before it."""
    tokens = _tokens(record, record.envelope.current)
    unavailable = record.envelope.provenance.source.unavailable
    newcomer = writer if before.absent is MISSING else _unknown(writer)
    columns = {}
    for name in _order(before.columns, tokens, unavailable):
        column, token = before.columns.get(name), tokens.get(name)
        if token is None:
            columns[name] = _never_sent(name, _unknown(writer)) if column is None else column
        elif column is None:
            columns[name] = _first_shown(name, token, newcomer, before.absent)
        elif column.token == token:
            columns[name] = column
        else:
            columns[name] = _column(name, token, column, writer)
    return _Before(columns, MISSING)


def _order(columns: Iterable[str], tokens: Iterable[str], unavailable: Sequence[str]) -> Iterable[str]:
    """Returns the names of a row's columns in the order in which the blame lists them.

    This is the order of the record's state. The state lacks unavailable columns; they keep the place that they had in
    the row before.
    """
    if not unavailable:
        return tokens
    names = {*tokens, *unavailable}
    return dict.fromkeys([*(name for name in columns if name in names), *tokens, *unavailable])


def _never_sent(name: str, writer: Writer) -> _Column:
    pointer = pointer_of(name)
    return _Column(None, {pointer: Attribute(pointer=pointer, value=None, before=None, writer=writer)})


def _first_shown(name: str, token: bytes, writer: Writer, before: Missing | None) -> _Column:
    values = leaves(pointer_of(name), token)
    return _Column(
        token,
        {at: Attribute(pointer=at, value=Raw(value), before=before, writer=writer) for at, value in values.items()},
    )


def _column(name: str, token: bytes, before: _Column, writer: Writer) -> _Column:
    """Returns a column after a change by `writer`. `before` is the column before the change, and `token` is its JSON
    after the change. Leaves that did not change keep their writers.
    """
    if token == before.token:
        return before
    pointer = pointer_of(name)
    if before.token is None:
        is_written = writer.stamp is not None
        return _first_shown(name, token, writer if is_written else before.leaves[pointer].writer, None)
    earlier = _Earlier(pointer, before)
    return _Column(token, {at: earlier.next(at, value, writer) for at, value in leaves(pointer, token).items()})


@dataclass(slots=True)
class _Earlier:
    """A column before a change. `pointer` is the pointer of the whole column."""

    pointer: str
    column: _Column
    _containers: Mapping[str, bytes] | None = None

    def next(self, pointer: str, value: bytes, writer: Writer) -> Attribute:
        """Returns the attribute at `pointer` after the change. If its value is the same as before the change, the
        attribute keeps its writer.
        """
        same = self.column.leaves.get(pointer)
        if same is not None and same.value == Raw(value):
            return same
        before = self._container(pointer) if same is None else same.value
        return Attribute(pointer=pointer, value=Raw(value), before=before, writer=writer)

    def _container(self, pointer: str) -> Raw | Missing:
        """Returns the object or array at the pointer before the change; MISSING if the pointer did not exist."""
        if self._containers is None:
            self._containers = containers(self.pointer, self.column.token or b"")
        value = self._containers.get(pointer)
        return MISSING if value is None else Raw(value)


def _tokens(record: Record, state: Raw | None) -> Mapping[str, bytes]:
    try:
        return members(bytes(state or b""))
    except ValueError:
        source = record.envelope.provenance.source
        message = f"the state of a change ({source.op}) is not a JSON object"
        raise ChangelogError(Kind.MALFORMED, message, position=source.position) from None


def _unknown(writer: Writer) -> Writer:
    return replace(writer, stamp=None)
