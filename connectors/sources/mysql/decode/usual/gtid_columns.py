"""Decodes many GTID events at once, if they have the form in which servers usually write them.

`frequent_events` decodes single events of these forms, and explains the forms.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

import numpy as np
import numpy.typing as npt

from changelog.connectors.sources.mysql.decode.events.event_types import EventType
from changelog.connectors.sources.mysql.decode.events.header import HEADER_BYTES
from changelog.connectors.sources.mysql.decode.usual.headers import WINDOW_BYTES, Headers, Ints, Octets

Mask = npt.NDArray[np.bool_]

_HEAD = ("header", f"V{HEADER_BYTES}")
_MYSQL = np.dtype(
    [
        _HEAD, ("flags", "u1"), ("uuid", "V16"), ("number", "<i8"), ("clock", "u1"), ("stamps", "<q", 2),
        ("committed_us", "<i8"),
    ]
)  # fmt: skip
_MARIADB = np.dtype([_HEAD, ("sequence", "<u8"), ("domain_id", "<u4"), ("flags", "u1")])
_NUMBER_MAX = 2**63 - 1
_LOGICAL_CLOCK = 2
_TIMESTAMP_BYTES, _VERSION_BYTES, _COMMIT_ID_BYTES = 7, 4, 8
_TIMESTAMP_MASK = (1 << 8 * _TIMESTAMP_BYTES) - 1
_LENGTH_MAX, _TWO_BYTES = 0xFA, 0xFC
_HIGH_BIT = 0x80
_STANDALONE, _GROUP_COMMIT, _XA = 1, 2, 64 | 128


@dataclass(frozen=True, slots=True, kw_only=True)
class GtidColumns:
    """The GTIDs of several events. Each array has one element for each event.

    The text of a GTID consists of two parts: its head, which is the element of `heads` that `head_codes` chooses, and
    its number. `committed_at` is when the transaction was committed, in microseconds since 1970 UTC. If `is_usual` is
    false for an event, its other elements mean nothing.
    """

    is_usual: Mask
    heads: Sequence[str]
    head_codes: Ints
    numbers: Ints
    committed_at: Ints


def gtid_columns(headers: Headers, events: Ints, checksum_bytes: int) -> GtidColumns:
    """Decodes GTID events. `events` has their indexes in the block; all are from MySQL, or all are from MariaDB."""
    window, ends = headers.window(events), headers.sizes[events] - checksum_bytes
    if len(events) and headers.types[events[0]] == EventType.GTID:
        return _mysql(window, ends, headers.timestamps_s[events])
    return _mariadb(window, ends, headers, events)


def _mysql(window: Octets, ends: Ints, timestamps_s: Ints) -> GtidColumns:
    fields = _fields(window, _MYSQL)
    size_at = _MYSQL.itemsize - 8 + _TIMESTAMP_BYTES
    first = window[:, size_at]
    size_bytes = np.where(first <= _LENGTH_MAX, 1, 3)
    committed_us = fields["committed_us"] & _TIMESTAMP_MASK
    highest = window[np.arange(len(window)), np.clip(ends - 1, 0, WINDOW_BYTES - 1)]
    is_usual = (ends == size_at + size_bytes + _VERSION_BYTES) & ((first <= _LENGTH_MAX) | (first == _TWO_BYTES))
    is_usual &= (fields["clock"] == _LOGICAL_CLOCK) & (fields["number"] > 0) & (fields["number"] < _NUMBER_MAX)
    is_usual &= (window[:, size_at - 1] < _HIGH_BIT) & (highest < _HIGH_BIT)
    head_codes, uuids = _codes(np.ascontiguousarray(fields["uuid"]))
    return GtidColumns(
        is_usual=is_usual,
        heads=[f"{UUID(bytes=uuid)}:" for uuid in uuids],
        head_codes=head_codes,
        numbers=fields["number"].astype(np.int64),
        committed_at=np.where(committed_us > 0, committed_us, timestamps_s * 1_000_000),
    )


def _mariadb(window: Octets, ends: Ints, headers: Headers, events: Ints) -> GtidColumns:
    fields = _fields(window, _MARIADB)
    rest_at = _MARIADB.itemsize + np.where(fields["flags"] & _GROUP_COMMIT > 0, _COMMIT_ID_BYTES, 0)
    places = np.arange(WINDOW_BYTES)
    rest = (places >= rest_at[:, None]) & (places < ends[:, None])
    is_usual = (fields["flags"] & (_XA | _STANDALONE) == 0) & (rest_at <= ends) & (ends <= WINDOW_BYTES)
    is_usual &= ~(rest & (window != 0)).any(axis=1) & (fields["sequence"] < _NUMBER_MAX)
    pairs = np.stack([fields["domain_id"], headers.server_ids[events]], axis=1).astype("<u4")
    head_codes, heads = _codes(pairs.view("V8")[:, 0])
    return GtidColumns(
        is_usual=is_usual,
        heads=["{}-{}-".format(*struct.unpack("<II", head)) for head in heads],
        head_codes=head_codes,
        numbers=fields["sequence"].astype(np.int64),
        committed_at=headers.timestamps_s[events] * 1_000_000,
    )


def _fields(window: Octets, form: np.dtype[np.void]) -> npt.NDArray[np.void]:
    fields: npt.NDArray[np.void] = np.ascontiguousarray(window[:, : form.itemsize]).view(form)[:, 0]
    return fields


def _codes(sources: npt.NDArray[np.void]) -> tuple[Ints, Sequence[bytes]]:
    """Returns the code of each value, and the value of each code. Usually all values are the same."""
    size = sources.itemsize
    if (
        len(sources)
        and (sources.view(np.uint8).reshape(-1, size) == np.frombuffer(sources[0].tobytes(), np.uint8)).all()
    ):
        return np.zeros(len(sources), np.int64), [sources[0].tobytes()]
    codes: dict[bytes, int] = {}
    numbered = [codes.setdefault(source, len(codes)) for source in sources.tolist()]
    return np.array(numbered, np.int64), list(codes)
