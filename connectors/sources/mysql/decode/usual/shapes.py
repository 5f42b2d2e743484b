"""Finds transactions of the usual form by the types of their events.

GTID ── BEGIN ── ROWS_QUERY ── TABLE_MAP ── ROWS ── XID            MySQL:   33  2 ( 29? 19 30|31|32 )+ 16
GTID ── ANNOTATE_ROWS ── TABLE_MAP ── ROWS ── XID                  MariaDB: 162   (160? 19 23|24|25 )+ 16

The numbers are the types of the events, in the notation of regular expressions.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from changelog.connectors.sources.mysql.decode.events.event_types import EventType
from changelog.connectors.sources.mysql.decode.usual.headers import Ints, Octets

_OTHER, _GTID, _BEGIN, _TEXT, _MAP, _ROWS, _XID = range(7)


@dataclass(frozen=True, slots=True, eq=False)
class _Form:
    """The form that usual transactions have in the log of one kind of server.

    `classes` has, for each type of event, its role in a transaction. `follows[a, b]` says whether an event with the
    role b may come directly after one with the role a.
    """

    classes: npt.NDArray[np.uint8]
    follows: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, roles: Mapping[EventType, int], *, begins_with: int) -> Self:
        classes, follows = np.zeros(256, np.uint8), np.zeros((7, 7), bool)
        for kind, role in roles.items():
            classes[kind] = role
        pairs = [(_TEXT, _MAP), (_MAP, _ROWS), (_ROWS, _TEXT), (_ROWS, _MAP), (_ROWS, _XID)]
        pairs += [(begins_with, _TEXT), (begins_with, _MAP), (_GTID, _BEGIN)]
        for pair in pairs:
            follows[pair] = True
        return cls(classes, follows)


_COMMON = {EventType.TABLE_MAP: _MAP, EventType.XID: _XID}
_MYSQL = {
    EventType.GTID: _GTID, EventType.QUERY: _BEGIN, EventType.ROWS_QUERY: _TEXT, EventType.WRITE_ROWS: _ROWS,
    EventType.UPDATE_ROWS: _ROWS, EventType.DELETE_ROWS: _ROWS,
}  # fmt: skip
_MARIADB = {
    EventType.MARIADB_GTID: _GTID, EventType.ANNOTATE_ROWS: _TEXT, EventType.WRITE_ROWS_V1: _ROWS,
    EventType.UPDATE_ROWS_V1: _ROWS, EventType.DELETE_ROWS_V1: _ROWS,
}  # fmt: skip
_FORMS = {
    EventType.GTID: _Form.of(_COMMON | _MYSQL, begins_with=_BEGIN),
    EventType.MARIADB_GTID: _Form.of(_COMMON | _MARIADB, begins_with=_GTID),
}


def transactions(types: Octets) -> tuple[Ints, Ints]:
    """Takes the types of a block's events. Returns the place of each transaction's first event, and the place after its
    last event.

    Finds only transactions of one flavour (MySQL or MariaDB): that of the block's first GTID.
    """
    gtids = np.flatnonzero((types == EventType.GTID) | (types == EventType.MARIADB_GTID))
    if not len(gtids):
        return gtids, gtids
    form = _FORMS[EventType(int(types[gtids[0]]))]
    classes = form.classes[types]
    firsts, ends = np.flatnonzero(classes == _GTID), np.flatnonzero(classes == _XID)
    next_ends = np.searchsorted(ends, firsts)
    firsts, next_ends = firsts[next_ends < len(ends)], next_ends[next_ends < len(ends)]
    lasts = ends[next_ends]
    wrong = np.cumsum(~form.follows[classes[:-1], classes[1:]])
    wrong = np.append(0, wrong)
    has_shape = wrong[firsts] == wrong[lasts]
    return firsts[has_shape], lasts[has_shape] + 1


def statements(types: Octets, firsts: Ints, nexts: Ints) -> tuple[Ints, Ints]:
    """Returns the places of the table maps in these transactions, and the index of each transaction's first table map
    among them.

    The rows that a table map describes are in the event after it.
    """
    steps = np.zeros(len(types) + 1, np.int64)
    steps[firsts] += 1
    steps[nexts] -= 1
    maps = np.flatnonzero((types == EventType.TABLE_MAP) & (np.cumsum(steps[:-1]) > 0))
    return maps, np.searchsorted(maps, firsts)
