"""Locates the values in many JSON objects: reads the first member of all objects at once, then the next, and so on.

No value is parsed, because the offsets of the quotes show where a value begins and ends. For this, the objects must
have no white space between their tokens. Sources write them so.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from changelog.envelope.columnar.splice import INLINE, Bytes

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_QUOTE, _BACKSLASH = ord('"'), ord("\\")
_BRACKETS = {ord("{"): 1, ord("["): 1, ord("}"): -1, ord("]"): -1}
_STRUCTURAL = np.zeros(256, bool)
_STRUCTURAL[[_QUOTE, *_BRACKETS]] = True
_DEPTHS = np.zeros(256, np.int8)
_DEPTHS[list(_BRACKETS)] = list(_BRACKETS.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """One column's JSON token in each row: where the token begins and ends, and which kind of token it is.

    `starts` and `ends` are offsets in the data of a scan. They have no meaning in rows whose token is null or absent.
    `null` also includes the rows whose token is absent.
    """

    starts: Ints
    ends: Ints
    present: Mask
    null: Mask
    quoted: Mask

    def take(self, rows: Ints) -> "Tokens":
        return Tokens(
            starts=self.starts[rows],
            ends=self.ends[rows],
            present=self.present[rows],
            null=self.null[rows],
            quoted=self.quoted[rows],
        )


class ObjectScan:
    """Walks over JSON objects. Each `step` locates the next member in all objects.

    `data` holds the objects' texts and, from the offset `blanks` on, the bytes `suffix`: placeholders that callers use
    instead of a missing token. `nested` says whether a value may be an object or an array.
    """

    def __init__(self, texts: pa.StringArray, *, nested: bool, suffix: bytes) -> None:
        offsets, data = raw(texts)
        self.blanks = len(data)
        self.data = b"".join((data, suffix, bytes(INLINE)))
        self.buffer: Bytes = np.frombuffer(self.data, np.uint8)
        self._ends = offsets[1:]
        self.backslashes = np.flatnonzero(self.buffer == _BACKSLASH) if b"\\" in data else np.empty(0, np.int64)
        quotes = self._quotes(nested=nested)
        bounds = np.searchsorted(quotes, np.append(0, self._ends))
        self._at, self._last = bounds[:-1].copy(), bounds[1:]
        self._quotes_at = np.append(quotes, np.full(4, self.blanks))
        self._sound = np.ones(len(texts), bool)

    def _quotes(self, *, nested: bool) -> Ints:
        """Returns the offsets of the quotes around names and values, without escaped quotes. Quotes inside nested
        objects and arrays are left out, too.
        """
        text = self.buffer[: self.blanks]
        if not nested:
            return self._unescaped(np.flatnonzero(text == _QUOTE))
        offsets = np.flatnonzero(_STRUCTURAL[text])
        quotes = text[offsets] == _QUOTE
        if len(self.backslashes):
            structural = np.ones(len(offsets), bool)
            structural[quotes] = ~self._escaped(offsets[quotes])
            offsets, quotes = offsets[structural], quotes[structural]
        inside = np.cumsum(quotes) % 2 == 1
        depths = np.cumsum(np.where(inside, 0, _DEPTHS[text[offsets]]), dtype=np.int64)
        outer: Ints = offsets[quotes & (depths == 1)]
        return outer

    def _unescaped(self, quotes: Ints) -> Ints:
        return quotes[~self._escaped(quotes)] if len(self.backslashes) else quotes

    def _escaped(self, quotes: Ints) -> Mask:
        """Returns a mask of the quotes that come after an odd number of backslashes."""
        odd = np.zeros(len(quotes), bool)
        before = quotes - 1
        open_ = np.flatnonzero(self.buffer[before] == _BACKSLASH)
        while len(open_):
            odd[open_] = ~odd[open_]
            before[open_] -= 1
            open_ = open_[self.buffer[before[open_]] == _BACKSLASH]
        return odd

    def step(self, label: bytes) -> Tokens:
        """Reads the next member of each object, if the member begins with `label`, such as `"name":`. Returns the
        tokens of the values.

        If an object's next member begins with another label, the token of this object is absent, and the next step
        looks at the same member again.
        """
        at, quotes, buffer = self._at, self._quotes_at, self.buffer
        before = quotes[at]
        texts = windows(buffer, len(label))
        present = (at < self._last) & (texts[np.minimum(before, len(texts) - 1)] == np.void(label))
        starts = before + len(label)
        if not present.all():
            starts[~present] = self.blanks
        first = buffer[starts]
        quoted = first == _QUOTE
        following = at + 2 * present + 2 * quoted
        ends = np.where(following < self._last, quotes[following], self._ends) - 1
        self._sound &= ~present | (first > ord(" ")) & np.where(
            quoted, quotes[at + 3] + 1 == ends, buffer[ends - 1] > ord(" ")
        )
        self._at = following
        null = ~present | (first == ord("n"))
        return Tokens(starts=starts, ends=ends, present=present, null=null, quoted=quoted)

    def done(self) -> Mask:
        """Returns a mask of the objects that have no white space, and whose members were all read."""
        done: Mask = self._sound & (self._at == self._last)
        return done


def raw(texts: pa.StringArray) -> tuple[Ints, bytes]:
    """Returns offsets and bytes. The bytes are those of all texts. The offsets say where each text begins, and where
    the last one ends.
    """
    _, offsets_buffer, data = texts.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32, len(texts) + 1, texts.offset * 4).astype(np.int64)
    if data is None:
        return offsets, b""
    return offsets - offsets[0], data.slice(offsets[0], offsets[-1] - offsets[0]).to_pybytes()


def windows(buffer: Bytes, length: int) -> npt.NDArray[np.void]:
    """Returns a view that has, at each index, the `length` bytes of the buffer from this index on."""
    return np.ndarray((len(buffer) - length + 1,), f"V{length}", buffer=buffer, strides=(1,))
