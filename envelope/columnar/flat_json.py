"""Flat JSON objects of a column, cut into their members at once, without a Python object a value.

In flat JSON without blanks, `,"` stands between two members, and else only where a string ends in a comma: what is cut
there are *pieces*. Rows of a table have the same names in the same order, a `Form`: where each piece begins with its
name, the names are those of the form. Whether a piece's rest is one value is left to who reads it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from envelope.columnar.splice import INLINE, Bytes, splice

Mask = npt.NDArray[np.bool_]
Places = npt.NDArray[np.int64]
"""Of bytes in a buffer, one row a member, one column an object."""

_PIECE: Final = re.compile(rb'([^"\\]*)":(?:"[^"\\]*"|[-+.0-9A-Za-z]+)')
_LOOKED_AT: Final = 8
_WORD: Final = 8
_COMMA, _QUOTE, _OPEN, _CLOSE, _OPEN_LIST = b',"{}['


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """The objects that fit: where each piece begins, where its value does, and where that ends, in the bytes `data`.

    `fits` and `bounds` (where each begins, and the last one ends) tell of all that were given, the others of those
    alone that fit.
    """

    fits: Mask
    data: Bytes
    bounds: Places
    begins: Places
    values: Places
    ends: Places

    def shallow(self) -> Mask:
        """Which of all that were given have no opening bracket but the first, their first byte if they fit."""
        raw = self.data.tobytes()
        if self.fits.all() and raw.count(b"{") == len(self.fits) and b"[" not in raw:
            return self.fits
        opening = np.flatnonzero((self.data == _OPEN) | (self.data == _OPEN_LIST))
        found: Mask = np.diff(np.searchsorted(opening, self.bounds)) == 1
        return found

    def pieces(self) -> pa.BinaryArray:
        """The pieces of all objects, one behind the other, if all fit: as slices, nothing is copied."""
        places = np.append(self.begins.T.ravel(), len(self.data) - INLINE).astype(np.int32)
        buffers = [None, pa.py_buffer(places), pa.py_buffer(self.data)]
        return pa.Array.from_buffers(pa.binary(), self.begins.size, buffers)

    def tokens(self, which: Any) -> pa.StringArray:
        """The values at `which` indices of the places, at least one."""
        begins, ends = self.values[which], self.ends[which]
        return splice(self.data, len(begins), [(begins.astype(np.int32), (ends - begins).astype(np.int32))])


@dataclass(frozen=True, slots=True)
class Form:
    """The names of flat objects' members, in order: all different, and none with an escape."""

    names: tuple[bytes, ...]

    @classmethod
    def of(cls, text: bytes) -> Self | None:
        """That of an object; None where it is not flat, or not as plain as it should be."""
        if text[:1] != b"{" or text[-1:] != b"}":
            return None
        found = [_PIECE.fullmatch(piece) for piece in text[2:-1].split(b',"')]
        names = tuple(piece[1] for piece in found if piece)
        return cls(names) if len(set(names)) == len(found) else None

    @classmethod
    def among(cls, texts: pa.StringArray) -> Self | None:
        """That of one of the first texts, none of them null."""
        found = (cls.of(text.encode()) for text in texts[:_LOOKED_AT].to_pylist())
        return next(filter(None, found), None)

    def cut(self, texts: pa.StringArray) -> Cut:
        """The members of objects, none of them null."""
        data, bounds = _bytes_of(texts)
        first, last = bounds[:-1], bounds[1:] - 1
        commas = np.flatnonzero(data[:-1] == _COMMA)
        commas = commas[data[commas + 1] == _QUOTE]
        before = np.searchsorted(commas, bounds)
        fits = (last - first > 1) & (np.diff(before) == len(self.names) - 1)
        fits &= (data[first] == _OPEN) & (data[first + 1] == _QUOTE) & (data[last] == _CLOSE)
        begins = _begins(first[fits], commas, before[:-1][fits], len(self.names))
        ends = np.concatenate([begins[1:], last[None, fits]])
        values = np.empty_like(begins)
        named = np.ones(begins.shape[1], np.bool_)
        windows = np.ndarray((len(data) - _WORD + 1,), f"V{_WORD}", buffer=data, strides=(1,))
        for number, name in enumerate(self.names):
            label = name + b'":'
            names = begins[number] + 2
            values[number] = names + len(label)
            named &= values[number] < ends[number]
            for place, mask, word in _words(label):
                at = np.minimum(names + place, len(windows) - 1)  # beyond is what is no match already
                named &= windows[at].view("<u8") & mask == word
        if not named.all():
            fits[fits] = named
            begins, values, ends = begins[:, named], values[:, named], ends[:, named]
        return Cut(fits, data, bounds, begins, values, ends)


def _bytes_of(texts: pa.StringArray) -> tuple[Bytes, Places]:
    """The texts' bytes, padded, and where each begins and the last one ends."""
    _, offsets, content = texts.buffers()
    bounds = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1].astype(np.int64)
    data = np.empty(bounds[-1] - bounds[0] + INLINE, np.uint8)
    data[-INLINE:] = 0
    if content is not None:
        data[:-INLINE] = np.frombuffer(content, np.uint8)[bounds[0] : bounds[-1]]
    return data, bounds - bounds[0]


def _begins(first: Places, commas: Places, before: Places, count: int) -> Places:
    inner = commas[before + np.arange(count - 1)[:, None]]
    return np.concatenate([first[None], inner])


def _words(text: bytes) -> Sequence[tuple[int, np.uint64, np.uint64]]:
    """The text as words of a buffer: where each begins, which bits count, and what they are."""
    found = []
    for place in range(0, len(text), _WORD):
        part = text[place : place + _WORD]
        mask, word = (int.from_bytes(each, "little") for each in (b"\xff" * len(part), part))
        found.append((place, np.uint64(mask), np.uint64(word)))
    return found
