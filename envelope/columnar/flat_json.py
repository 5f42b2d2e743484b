"""Cuts a column of flat JSON objects into members, all rows at once, without a Python object for each value.

In flat JSON without white space, `,"` appears between two members, and otherwise only if a string ends in a comma. The
parts between are *pieces*. Rows of a table have the same names in the same order, a `Form`. If every piece begins with
its name, the row fits the form. The caller has to check that the rest of a piece is one value.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from changelog.envelope.columnar.splice import INLINE, Bytes, splice

Mask = npt.NDArray[np.bool_]
Places = npt.NDArray[np.int64]
"""Indices of bytes in a buffer: one row for each member, one column for each object."""

_PIECE: Final = re.compile(rb'([^"\\]*)":(?:"[^"\\]*"|[-+.0-9A-Za-z]+)')
_LOOKED_AT: Final = 8
_WORD: Final = 8
_COMMA, _QUOTE, _OPEN, _CLOSE, _OPEN_LIST = b',"{}['


@dataclass(frozen=True, slots=True, eq=False)
class FlatObjects:
    """The objects that fit: in the bytes `data`, where each piece begins, and where its value begins and ends.

    `fits` and `bounds` (where each object begins, and the last one ends) cover all given objects; the other arrays
    cover only those that fit.
    """

    fits: Mask
    data: Bytes
    bounds: Places
    begins: Places
    values: Places
    ends: Places

    def shallow(self) -> Mask:
        """A mask of the given objects that have only one opening bracket: their first byte, if they fit."""
        raw = self.data.tobytes()
        if self.fits.all() and raw.count(b"{") == len(self.fits) and b"[" not in raw:
            return self.fits
        opening = np.flatnonzero((self.data == _OPEN) | (self.data == _OPEN_LIST))
        single: Mask = np.diff(np.searchsorted(opening, self.bounds)) == 1
        return single

    def pieces(self) -> pa.BinaryArray:
        """The pieces of all objects, one after another, if all objects fit. They are slices: nothing is copied."""
        places = np.append(self.begins.T.ravel(), len(self.data) - INLINE).astype(np.int32)
        buffers = [None, pa.py_buffer(places), pa.py_buffer(self.data)]
        return pa.Array.from_buffers(pa.binary(), self.begins.size, buffers)

    def tokens(self, which: Any) -> pa.StringArray:
        """The values at the indices `which`, at least one."""
        begins, ends = self.values[which], self.ends[which]
        return splice(self.data, len(begins), [(begins.astype(np.int32), (ends - begins).astype(np.int32))])


@dataclass(frozen=True, slots=True)
class Form:
    """The names of a flat object's members, in order. All differ, and none contains an escape."""

    names: tuple[bytes, ...]

    @classmethod
    def of(cls, text: bytes) -> Self | None:
        """The form of an object; None if it is not flat, or not plain enough."""
        if text[:1] != b"{" or text[-1:] != b"}":
            return None
        pieces = [_PIECE.fullmatch(piece) for piece in text[2:-1].split(b',"')]
        names = tuple(piece[1] for piece in pieces if piece)
        return cls(names) if len(set(names)) == len(pieces) else None

    @classmethod
    def among(cls, texts: pa.StringArray) -> Self | None:
        """The first form among the first few texts, which hold no null."""
        forms = (cls.of(text.encode()) for text in texts[:_LOOKED_AT].to_pylist())
        return next(filter(None, forms), None)

    def cut(self, texts: pa.StringArray) -> FlatObjects:
        """Cuts objects, none of them null, into members."""
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
                at = np.minimum(names + place, len(windows) - 1)  # objects past the end did not match before
                named &= windows[at].view("<u8") & mask == word
        if not named.all():
            fits[fits] = named
            begins, values, ends = begins[:, named], values[:, named], ends[:, named]
        return FlatObjects(fits, data, bounds, begins, values, ends)


def _bytes_of(texts: pa.StringArray) -> tuple[Bytes, Places]:
    """The padded bytes of the texts, and where each text begins and the last one ends."""
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
    """The text as words for a comparison: the offset of each word, a mask of its bits that count, and their values."""
    words = []
    for place in range(0, len(text), _WORD):
        part = text[place : place + _WORD]
        mask, word = (int.from_bytes(content, "little") for content in (b"\xff" * len(part), part))
        words.append((place, np.uint64(mask), np.uint64(word)))
    return words
