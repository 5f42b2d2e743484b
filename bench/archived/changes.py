"""Generates changes of orders, millions in a few seconds, as Arrow batches with the changelog's columns.

Changes are numbered. The change with the number c has the key `c * STEP % key_count`. So the changes go through all
keys in a scattered order, and then through all keys again in the same order. The first change of a key creates the row;
all later changes update it.

Every text is made from a template, into which numbers are written with a fixed number of digits. So all texts of a kind
have the same length. The *version* of a row says how many changes the row had before. All parts that look random are
hashes of the key and the version. So the `original` of a change (the row before it) can be computed without the
previous change.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from changelog.envelope.columnar.batch import SCHEMA

STEP = 7_654_321
"""The distance from the key of one change to the key of the next, modulo `key_count`. It and `key_count` must have no
common divisor greater than 1; otherwise, the changes would leave out some keys.
"""

CHANGES_A_TRANSACTION = 5
CHANGES_A_REQUEST = 20
DAYS = 100
BEGIN = datetime(2026, 8, 13, tzinfo=UTC)

Numbers = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_DECIMALS, _HEX, _HEX_UPPER = (
    np.frombuffer("".join(format(n, form) for n in range(count)).encode(), np.uint8).reshape(count, 4)
    for form, count in (("04d", 10_000), ("04x", 65_536), ("04X", 65_536))
)
"""A matrix for each kind of digits. Row N of a matrix has the bytes of the number N, written with four digits."""

_STATE = (
    '{"id":"{key:10}","status":"{word:6}","customer":"c-{customer:8}","currency":"EUR","total":"{total:6}.00",'
    '"lines":[{"sku":"sku-{sku:8}","quantity":"{quantity:2}","price":"{price:4}.90"},{"sku":"sku-{other:8}",'
    '"quantity":"01","price":"0019.50"}],"address":{"street":"Lindenstrasse {house:3}","city":"Berlin",'
    '"zip":"{zip:5}"},"note":"{note:32}","version":"{version:2}"}'
)
_PROVENANCE = (
    '{"apiVersion":"v2","serviceName":"order-api","identifier":"{request:16}","source":{"connector":"postgres",'
    '"name":"booking","database":"app","table":"public.order","op":"{op:6}","position":"{position:34}",'
    '"transaction":"{transaction:10}","committedAt":"{time:26}Z"}}'
)
_SLOT = re.compile(r"\{(\w+):(\d+)\}")


@dataclass(frozen=True, slots=True)
class World:
    """The size of the changelog: how many changes it has, and how many different keys."""

    changes: int
    key_count: int

    @property
    def day_changes(self) -> int:
        """How many changes each of the `DAYS` days has."""
        return self.changes // DAYS

    def of_keys(self, first: int, end: int, begin: int, until: int) -> Numbers:
        """Returns the numbers of some changes, sorted by key and then by number.

        A change is included if its number is at least `begin` and below `until`, and its key at least `first` and below
        `end`.
        """
        inverse = pow(STEP, -1, self.key_count)
        lowest = np.arange(first, end, dtype=np.int64) * inverse % self.key_count
        numbers = lowest[:, None] + np.arange(begin // self.key_count, -(-until // self.key_count)) * self.key_count
        flat = numbers.ravel()
        return flat[(flat >= begin) & (flat < until)]

    def by_key(self, begin: int, until: int) -> Numbers:
        """Returns the numbers from `begin` up to, but not including, `until`. They are sorted by the keys of their
        changes, and then by number.
        """
        numbers = np.arange(begin, until, dtype=np.int64)
        return numbers[np.argsort(self.keys(numbers), kind="stable")]

    def keys(self, numbers: Numbers) -> Numbers:
        """Returns the keys of the changes with these numbers."""
        return numbers % self.key_count * STEP % self.key_count

    def rows(self, numbers: Numbers) -> pa.RecordBatch:
        """Returns the changes with these numbers, as a batch of `SCHEMA`."""
        count = len(numbers)
        keys, versions = self.keys(numbers), numbers // self.key_count
        committed = numbers // CHANGES_A_TRANSACTION
        micros = int(BEGIN.timestamp()) * 1_000_000 + committed * (
            DAYS * 86_400_000_000 // (self.changes // CHANGES_A_TRANSACTION)
        )
        key, transaction, request = _digits(keys, 10), _digits(committed, 10), request_of(numbers)
        position = _filled("00000001/{commit:16}/{ordinal:8}", count)(
            commit=_hexes(committed, 16, _HEX_UPPER),
            ordinal=_hexes(numbers % CHANGES_A_TRANSACTION * 2, 8, _HEX_UPPER),
        )
        op = np.where(versions[:, None] == 0, _constant("create"), _constant("update"))
        time = np.datetime_as_string(micros.astype("datetime64[us]")).astype("S26").view(np.uint8).reshape(count, 26)
        provenance = _filled(_PROVENANCE, count)(
            request=request, op=op, position=position, transaction=transaction, time=time
        )
        columns = {
            "entity": pa.array(["order"]).take(pa.array(np.zeros(count, np.int32))),
            "partition": pa.array((keys % 3).astype(np.int32)),
            "key": _texts(key),
            "op": _texts(op),
            "position": _texts(position),
            "transaction": _texts(transaction),
            "committed_at": pa.array(micros).cast(SCHEMA.field("committed_at").type),
            "api_version": pa.array(["v2"]).take(pa.array(np.zeros(count, np.int32))),
            "service_name": pa.array(["order-api"]).take(pa.array(np.zeros(count, np.int32))),
            "identifier": _texts(request),
            "provenance": _texts(provenance),
            "current": _texts(_states(key, keys, versions)),
            "original": _texts(_states(key, keys, versions - 1), versions == 0),
            "moved": pa.nulls(count, pa.utf8()),
            "context": pa.nulls(count, pa.utf8()),
        }
        return pa.RecordBatch.from_arrays([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def request_of(numbers: Numbers) -> Bytes:
    """Returns the identifiers of the requests that made these changes, as the bytes of their texts."""
    return _hexes(_hashed(numbers // CHANGES_A_REQUEST, 99), 16)


def _states(key: Bytes, keys: Numbers, versions: Numbers) -> Bytes:
    same, other = _hashed(keys, 1), _hashed(keys * 64 + versions, 2)
    return _filled(_STATE, len(keys))(
        key=key,
        word=np.frombuffer(b"placedpackedclosedopened", np.uint8).reshape(4, 6)[versions % 4],
        customer=_digits(same % 10**8, 8),
        total=_digits(other % 10**6, 6),
        sku=_hexes(same >> 7, 8),
        quantity=_digits(other % 90, 2),
        price=_digits(same % 10**4, 4),
        other=_hexes(same >> 31, 8),
        house=_digits(same % 999, 3),
        zip=_digits(same % 10**5, 5),
        note=np.hstack([_hexes(other, 16), _hexes(_hashed(other, 3), 16)]),
        version=_digits(versions, 2),
    )


def _filled(template: str, count: int) -> Callable[..., Bytes]:
    """Returns a function that fills the slots `{name:width}` of `count` copies of a template."""
    places = {}
    plain, end = "", 0
    for slot in _SLOT.finditer(template):
        plain += template[end : slot.start()]
        places[slot[1]] = slice(len(plain), len(plain) + int(slot[2]))
        plain, end = plain + " " * int(slot[2]), slot.end()
    rows = np.tile(_constant(plain + template[end:]), (count, 1))

    def fill(**values: Bytes) -> Bytes:
        for name, value in values.items():
            rows[:, places[name]] = value
        return rows

    return fill


def _constant(text: str) -> Bytes:
    return np.frombuffer(text.encode(), np.uint8)


def _digits(numbers: Numbers, width: int) -> Bytes:
    return _by_fours(numbers, width, _DECIMALS)


def _hexes(numbers: Numbers, width: int, digits: Bytes = _HEX) -> Bytes:
    return _by_fours(numbers, width, digits)


def _by_fours(numbers: Numbers, width: int, fours: Bytes) -> Bytes:
    """Converts numbers to digits, four at a time. `fours` is the matrix for the kind of digits, such as `_HEX`."""
    groups = []
    for _ in range(-(-width // 4)):
        numbers, group = np.divmod(numbers, len(fours))
        groups.append(fours[group])
    return np.hstack(groups[::-1])[:, -width:]


def _hashed(numbers: Numbers, seed: int) -> Numbers:
    """Hashes each number to a number from 0 to 2^63 - 1, by the finalizer of SplitMix64."""
    mixed = numbers.astype(np.uint64) + np.uint64(seed * 0x9E3779B97F4A7C15 % (1 << 64))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ mixed >> np.uint64(shift)) * np.uint64(factor)
    return ((mixed ^ mixed >> np.uint64(31)) >> np.uint64(1)).astype(np.int64)


def _texts(rows: Bytes, nulls: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """Returns the texts whose bytes are the rows of a matrix. Where `nulls` is true, returns null instead."""
    count, width = rows.shape
    ends = pa.py_buffer(np.arange(0, (count + 1) * width, width, dtype=np.int32))
    valid = None if nulls is None else pa.py_buffer(np.packbits(~nulls, bitorder="little"))
    return pa.Array.from_buffers(pa.utf8(), count, [valid, ends, pa.py_buffer(np.ascontiguousarray(rows))])
