"""Reads the fields of an event from front to back."""

from changelog.envelope.errors import ChangelogError, Kind

_WIDTHS = {0xFC: 2, 0xFD: 3, 0xFE: 8}
"""Maps the first byte of a length-encoded integer to the size of the number after this byte."""


class Cursor:
    """Reads `data` from `at` up to `end`. A read beyond `end` raises ChangelogError (MALFORMED) with the offset.

    All numbers are little-endian. `what` and `base` are only for error texts: if `data` is a part of something larger,
    such as an event, `what` names the larger thing, and `base` is the offset of `data` in it.
    """

    __slots__ = ("_base", "_what", "at", "data", "end")

    def __init__(
        self, data: bytes | memoryview, *, at: int = 0, end: int | None = None, base: int = 0, what: str = "event"
    ) -> None:
        self.data, self.at = data, at
        self.end = len(data) if end is None else end
        self._base, self._what = base, what

    @property
    def left(self) -> int:
        """The number of bytes that have not been read."""
        return self.end - self.at

    def malformed(self, problem: str, at: int | None = None) -> ChangelogError:
        """Returns an error that names the offset `at`; by default, it names the offset of the next byte."""
        offset = self._base + (self.at if at is None else at)
        return ChangelogError(Kind.MALFORMED, f"the binary log has {problem} (byte {offset} of the {self._what})")

    def skip(self, size: int) -> int:
        """Skips `size` bytes, and returns where they begin."""
        begin = self.at
        if size > self.end - begin:
            raise self.malformed(f"too few bytes for a field: {size} needed, {self.left} left")
        self.at = begin + size
        return begin

    def number(self, size: int) -> int:
        """Reads an unsigned number of `size` bytes."""
        begin = self.skip(size)
        return int.from_bytes(self.data[begin : self.at], "little")

    def signed(self, size: int) -> int:
        """Reads a number of `size` bytes in two's complement."""
        begin = self.skip(size)
        return int.from_bytes(self.data[begin : self.at], "little", signed=True)

    def length(self) -> int:
        """Reads a length-encoded integer: one byte below 251, or a first byte that says how many bytes follow."""
        begin = self.at
        first = self.number(1)
        if first < 0xFB:
            return first
        if first not in _WIDTHS:
            raise self.malformed(f"a length that begins with {first:#x}", begin)
        return self.number(_WIDTHS[first])

    def take(self, size: int) -> bytes:
        """Reads `size` bytes, and returns a copy of them."""
        begin = self.skip(size)
        return bytes(self.data[begin : self.at])

    def rest(self) -> bytes:
        """Reads all remaining bytes, and returns a copy of them."""
        return self.take(self.left)

    def text(self, size: int) -> str:
        """Reads `size` bytes of UTF-8."""
        begin = self.at
        try:
            return self.take(size).decode()
        except UnicodeDecodeError:
            raise self.malformed("a name that is not UTF-8", begin) from None

    def terminated(self, size: int) -> str:
        """Reads `size` bytes of UTF-8, and the zero byte after them."""
        text = self.text(size)
        if self.number(1):
            raise self.malformed("a name without a zero byte after it", self.at - 1)
        return text

    def part(self, size: int) -> "Cursor":
        """Skips `size` bytes, and returns a cursor that reads only these bytes."""
        begin = self.skip(size)
        return Cursor(self.data, at=begin, end=self.at, base=self._base, what=self._what)

    def copy(self) -> "Cursor":
        """Returns another cursor at the same place."""
        return Cursor(self.data, at=self.at, end=self.end, base=self._base, what=self._what)

    def finish(self, name: str) -> None:
        """Raises an error if bytes are left."""
        if self.left:
            raise self.malformed(f"{self.left} extra bytes after {name}")
