"""Locates many values in one buffer of text that the server printed, by the start and the length of each."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from changelog.connectors.capture.rows.row_change import UNCHANGED, Value
from changelog.envelope.columnar.splice import Offsets

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Data = bytes | bytearray


@dataclass(frozen=True, slots=True, kw_only=True)
class TextColumns:
    """The start and length, in a buffer, of each value as the server printed it.

    Each member is a matrix of shape (columns, rows). A null has length 0. `unsent` marks the values that the log does
    not have, because they did not change; it is None if the log has all values.
    """

    starts: Offsets
    lengths: Offsets
    null: Mask
    unsent: Mask | None = None

    @property
    def count(self) -> int:
        """The number of rows."""
        return int(self.starts.shape[1])

    @classmethod
    def empty(cls, width: int, count: int) -> Self:
        """Returns matrices for `width` columns and `count` rows, to be filled; no value is null."""
        shape = (width, count)
        return cls(starts=np.empty(shape, np.int32), lengths=np.empty(shape, np.int32), null=np.zeros(shape, bool))

    @classmethod
    def joined(cls, first: Self, second: Self) -> Self:
        """Returns the rows of `first`, then those of `second`. Neither may have unsent values."""
        assert first.unsent is second.unsent is None
        names = ("starts", "lengths", "null")
        return cls(**{name: np.concatenate([getattr(first, name), getattr(second, name)], axis=1) for name in names})

    def part(self, begin: int, end: int) -> "TextColumns":
        """Returns the rows with the numbers `begin` to `end` - 1, without a copy."""
        rows = slice(begin, end)
        unsent = None if self.unsent is None else self.unsent[:, rows]
        return TextColumns(
            starts=self.starts[:, rows], lengths=self.lengths[:, rows], null=self.null[:, rows], unsent=unsent
        )

    def take(self, index: Ints) -> "TextColumns":
        """Returns the rows whose numbers are in `index`."""
        unsent = None if self.unsent is None else self.unsent[:, index]
        return TextColumns(
            starts=self.starts[:, index], lengths=self.lengths[:, index], null=self.null[:, index], unsent=unsent
        )

    def row(self, data: Data, number: int) -> list[Value]:
        """Returns the values of row `number`; `data` is the buffer."""
        with memoryview(data) as view:
            values: list[Value] = [
                None if null else bytes(view[start : start + length])
                for start, length, null in zip(
                    self.starts[:, number].tolist(),
                    self.lengths[:, number].tolist(),
                    self.null[:, number].tolist(),
                    strict=True,
                )
            ]
        for place in () if self.unsent is None else np.flatnonzero(self.unsent[:, number]).tolist():
            values[place] = UNCHANGED
        return values

    def fill(self, other: "TextColumns", mask: Mask) -> None:
        """Replaces the values that `mask` selects by those of `other`, which are in the same buffer."""
        if mask.any():
            np.copyto(self.starts, other.starts, where=mask)
            np.copyto(self.lengths, other.lengths, where=mask)
            np.copyto(self.null, other.null, where=mask)
