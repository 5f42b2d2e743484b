"""Cuts a column of flat JSON objects into members, for all rows at once, without a Python object for each value.

A *flat* object has no value that is an object or an array. In a flat object without white space, the two bytes `,"` are
between every two members. Elsewhere, they occur only if a string ends in a comma. The parts between these bytes are
called *pieces*. Objects that are rows of one table have the same names in the same order. These names are their *form*.
An object *fits* a form if it has as many pieces as the form has names, and each piece begins with its name. The caller
has to check that the rest of each piece is exactly one value.
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
ByteOffsets = npt.NDArray[np.int64]
"""Offsets of bytes in a buffer. In a matrix of offsets, each row is for one member, and each column for one object."""

_PIECE: Final = re.compile(rb'([^"\\]*)":(?:"[^"\\]*"|[-+.0-9A-Za-z]+)')
_TEXTS_TRIED_MAX: Final = 8
_WORD: Final = 8
_COMMA, _QUOTE, _OPEN, _CLOSE, _OPEN_LIST = b',"{}['


@dataclass(frozen=True, slots=True, eq=False)
class FlatObjects:
    """JSON objects that were cut into pieces. All offsets are in the bytes `data`.

    `fits` says, for each object that was given to `Form.cut`, whether it fits the form. `bounds` says where each of
    these objects begins, and where the last one ends. The other arrays cover only the objects that fit: `begins` says
    where each piece begins; `values` and `ends` say where the value of a piece begins and ends.
    """

    fits: Mask
    data: Bytes
    bounds: ByteOffsets
    begins: ByteOffsets
    values: ByteOffsets
    ends: ByteOffsets

    def shallow(self) -> Mask:
        """Returns a mask of the objects that have only one opening bracket, among all that were given to `Form.cut`.

        If such an object fits, this bracket is its first byte, so none of its values is an object or an array.
        """
        raw = self.data.tobytes()
        if self.fits.all() and raw.count(b"{") == len(self.fits) and b"[" not in raw:
            return self.fits
        opening = np.flatnonzero((self.data == _OPEN) | (self.data == _OPEN_LIST))
        single: Mask = np.diff(np.searchsorted(opening, self.bounds)) == 1
        return single

    def pieces(self) -> pa.BinaryArray:
        """Returns the pieces of all objects, one object after another, without copying their bytes. All objects must
        fit.
        """
        offsets = np.append(self.begins.T.ravel(), len(self.data) - INLINE).astype(np.int32)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(self.data)]
        return pa.Array.from_buffers(pa.binary(), self.begins.size, buffers)

    def tokens(self, which: Any) -> pa.StringArray:
        """Returns the JSON of some values. `which` is an index into `values`, and must select at least one value."""
        begins, ends = self.values[which], self.ends[which]
        return splice(self.data, len(begins), [(begins.astype(np.int32), (ends - begins).astype(np.int32))])


@dataclass(frozen=True, slots=True)
class Form:
    """The names of a flat object's members, in order. All names differ, and none contains an escape."""

    names: tuple[bytes, ...]

    @classmethod
    def of(cls, text: bytes) -> Self | None:
        """Returns the form of an object.

        Returns None if the object is not plain. A plain object has no white space between tokens, no value that is an
        object or an array, no escape in a name or a string, and no name twice.
        """
        if text[:1] != b"{" or text[-1:] != b"}":
            return None
        pieces = [_PIECE.fullmatch(piece) for piece in text[2:-1].split(b',"')]
        names = tuple(piece[1] for piece in pieces if piece)
        return cls(names) if len(set(names)) == len(pieces) else None

    @classmethod
    def among(cls, texts: pa.StringArray) -> Self | None:
        """Returns the form of the first object that has one. No text may be null.

        Only the first few texts are tried. Returns None if none of these has a form.
        """
        forms = (cls.of(text.encode()) for text in texts[:_TEXTS_TRIED_MAX].to_pylist())
        return next(filter(None, forms), None)

    def cut(self, texts: pa.StringArray) -> FlatObjects:
        """Cuts objects into pieces. No text may be null."""
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
            for offset, mask, word in _words(label):
                # Without the minimum, some indexes would exceed the buffer. For those, `named` is false already.
                at = np.minimum(names + offset, len(windows) - 1)
                named &= windows[at].view("<u8") & mask == word
        if not named.all():
            fits[fits] = named
            begins, values, ends = begins[:, named], values[:, named], ends[:, named]
        return FlatObjects(fits, data, bounds, begins, values, ends)


def _bytes_of(texts: pa.StringArray) -> tuple[Bytes, ByteOffsets]:
    """Returns the bytes of all texts, followed by `INLINE` zeros; and the offsets at which each text begins and the
    last one ends.
    """
    _, offsets, content = texts.buffers()
    bounds = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1].astype(np.int64)
    data = np.empty(bounds[-1] - bounds[0] + INLINE, np.uint8)
    data[-INLINE:] = 0
    if content is not None:
        data[:-INLINE] = np.frombuffer(content, np.uint8)[bounds[0] : bounds[-1]]
    return data, bounds - bounds[0]


def _begins(first: ByteOffsets, commas: ByteOffsets, before: ByteOffsets, count: int) -> ByteOffsets:
    inner = commas[before + np.arange(count - 1)[:, None]]
    return np.concatenate([first[None], inner])


def _words(text: bytes) -> Sequence[tuple[int, np.uint64, np.uint64]]:
    """Divides a text into words of 8 bytes, which can be compared as numbers.

    Returns, for each word, its offset in the text, a mask of the bits that belong to the text, and the value of these
    bits.
    """
    words = []
    for offset in range(0, len(text), _WORD):
        part = text[offset : offset + _WORD]
        mask, word = (int.from_bytes(content, "little") for content in (b"\xff" * len(part), part))
        words.append((offset, np.uint64(mask), np.uint64(word)))
    return words
