"""Handles sets of MySQL's global transaction ids (GTIDs). The module `gtid_encoding` converts them to bytes.

A GTID has a source and a number: `3e11fa47-71ca-11e1-9e33-c80aa9429562:23`. The source is the UUID of the server that
first executed the transaction. Since MySQL 8.3, a tag may follow the UUID: `3e11fa47-…:orders:7`. A set holds, for each
source, intervals of numbers. See "GTID Sets" in the MySQL manual, and `Gtid_set` in the server's documentation.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from changelog.envelope.errors import ChangelogError, Kind

Ints = npt.NDArray[np.int64]

Bounds = tuple[int, ...]
"""Disjoint intervals in ascending order. Each has two entries: its first number, and the first number after it."""

NUMBER_END: Final = (1 << 63) - 1
"""One more than the highest number that a GTID can have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GtidSet:
    """An immutable set of GTIDs.

    `intervals` has the numbers of each source; a source is in lower case, with its tag if it has one. Every source has
    at least one number, and intervals that touch are joined. Therefore two sets with the same GTIDs compare equal.
    """

    intervals: Mapping[str, Bounds]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parses a set as the server prints it, such as `@@gtid_executed`. White space is allowed around each
        punctuation mark.

        Raises ChangelogError (MALFORMED) with the offset of the character that does not fit.
        """
        spans: dict[str, list[tuple[int, int]]] = {}
        at = _end_of_space(text, 0)
        while at < len(text):
            at = _parse_source(text, at, spans)
        return cls(intervals={source: _joined(intervals) for source, intervals in spans.items()})

    @property
    def text(self) -> str:
        """The set as the server prints it, but in one line. UUIDs are sorted. For each UUID, the numbers without a tag
        come first, and then each tag with its numbers.
        """
        parts: list[str] = []
        previous = ""
        for source in sorted(self.intervals):
            uuid, colon, tag = source.partition(":")
            parts.append(colon + tag if uuid == previous else f",{source}")
            parts += _printed(self.intervals[source])
            previous = uuid
        return "".join(parts).removeprefix(",")

    def __bool__(self) -> bool:
        return bool(self.intervals)

    def contains(self, gtid: str) -> bool:
        """Returns whether a GTID is in the set. Raises ChangelogError (MALFORMED) if `gtid` is not a GTID."""
        source, number = parse_gtid(gtid)
        return _is_inside(self.intervals.get(source, ()), number)

    def contains_any(self, head: str, numbers: Ints) -> bool:
        """See `Gtids`."""
        source, _ = parse_gtid(f"{head}1")
        bounds = np.array(self.intervals.get(source, ()), np.int64)
        return bool((np.searchsorted(bounds, numbers, side="right") % 2 == 1).any())

    def missing(self, other: "GtidSet") -> "GtidSet":
        """Returns the GTIDs that `other` has and this set lacks."""
        return other.minus(self)

    def minus(self, other: "GtidSet") -> "GtidSet":
        """Returns the GTIDs that this set has and `other` lacks, like the server's `GTID_SUBTRACT`."""
        intervals = {
            source: rest
            for source, bounds in self.intervals.items()
            if (rest := _without(bounds, other.intervals.get(source, ())))
        }
        return GtidSet(intervals=intervals)

    def is_subset(self, other: "GtidSet") -> bool:
        """Returns whether `other` has all GTIDs of this set, like the server's `GTID_SUBSET`."""
        return not self.minus(other)

    def builder(self) -> "GtidSetBuilder":
        """Returns a builder that begins with this set."""
        return GtidSetBuilder(self)


class GtidSetBuilder:
    """Adds GTIDs to a set. Adding the number directly after the highest one of its source takes constant time."""

    def __init__(self, start: GtidSet) -> None:
        self._bounds = {source: list(bounds) for source, bounds in start.intervals.items()}

    def add(self, gtid: str) -> None:
        """Adds one GTID, unless the set has it. Raises ChangelogError (MALFORMED) if `gtid` is not a GTID."""
        source, number = parse_gtid(gtid)
        _add(self._bounds.setdefault(source, []), number)

    def add_all(self, head: str, numbers: Ints) -> None:
        """Adds the GTIDs whose text is `head`, followed by one of the `numbers`."""
        source, _ = parse_gtid(f"{head}1")
        bounds = self._bounds.get(source, [])
        if len(numbers) and bounds and bounds[-1] == numbers[0] and (np.diff(numbers) == 1).all():
            bounds[-1] = int(numbers[-1]) + 1
        else:
            for number in numbers.tolist():
                _add(bounds, number)
        if bounds:
            self._bounds[source] = bounds

    def build(self) -> GtidSet:
        """Returns the set with everything that was added. The builder can be used further."""
        return GtidSet(intervals={source: tuple(bounds) for source, bounds in self._bounds.items()})


def parse_gtid(text: str) -> tuple[str, int]:
    """Returns the source and the number of one GTID. Raises ChangelogError (MALFORMED) for any other text."""
    written, _, digits = text.rpartition(":")
    source = _source(written)
    if source is None or not _DIGITS.fullmatch(digits):
        raise ChangelogError(Kind.MALFORMED, f"{text!r} is not a MySQL GTID, such as {_EXAMPLE}")
    number = int(digits)
    if not 1 <= number < NUMBER_END:
        raise ChangelogError(Kind.MALFORMED, f"{text!r} is not a MySQL GTID: the number is out of range")
    return source, number


@lru_cache(maxsize=256)
def _source(text: str) -> str | None:
    """Returns a source in lower case; None if the text is not a source."""
    return text.lower() if _SOURCE.fullmatch(text) else None


def _parse_source(text: str, at: int, spans: dict[str, list[tuple[int, int]]]) -> int:
    """Adds the intervals of the UUID at `at`, and of its tags, to `spans`. Returns where the next UUID starts."""
    match = _UUID.match(text, at)
    if match is None:
        raise _malformed(at)
    source = uuid = match[0].lower()
    at = match.end()
    part = _PART.match(text, at)
    while part is not None:
        if part["tag"]:
            source = f"{uuid}:{part['tag'].lower()}"
        spans.setdefault(source, []).append(_interval(part))
        at = part.end()
        part = _PART.match(text, at)
    end = _SEPARATOR.match(text, at)
    if end is None or at == match.end():
        raise _malformed(at)
    return end.end()


def _interval(part: re.Match[str]) -> tuple[int, int]:
    first = int(part["first"])
    last = int(part["last"] or first)
    if not 1 <= first <= last < NUMBER_END:
        raise _malformed(part.start("first"))
    return first, last + 1


def _joined(spans: Iterable[tuple[int, int]]) -> Bounds:
    bounds: list[int] = []
    for start, end in sorted(spans):
        if bounds and start <= bounds[-1]:
            bounds[-1] = max(bounds[-1], end)
        else:
            bounds += (start, end)
    return tuple(bounds)


def _printed(bounds: Bounds) -> Iterable[str]:
    for start, end in zip(bounds[::2], bounds[1::2], strict=True):
        yield f":{start}" if end == start + 1 else f":{start}-{end - 1}"


def _is_inside(bounds: Bounds | list[int], number: int) -> bool:
    """Returns whether an interval contains `number`: then the count of bounds at or below `number` is odd."""
    return bisect_right(bounds, number) % 2 == 1


def _without(mine: Bounds, theirs: Bounds) -> Bounds:
    bounds: list[int] = []
    for point in sorted({*mine, *theirs}):
        inside = _is_inside(mine, point) and not _is_inside(theirs, point)
        if inside != (len(bounds) % 2 == 1):
            bounds.append(point)
    return tuple(bounds)


def _add(bounds: list[int], number: int) -> None:
    if bounds and bounds[-1] == number:
        bounds[-1] = number + 1
    elif not _is_inside(bounds, number):
        _insert(bounds, number)


def _insert(bounds: list[int], number: int) -> None:
    """Adds a number that is in no interval. The number may extend the interval before it or after it, or join both."""
    index = bisect_right(bounds, number)
    extends_left = index > 0 and bounds[index - 1] == number
    extends_right = index < len(bounds) and bounds[index] == number + 1
    start = [] if extends_left else [number]
    end = [] if extends_right else [number + 1]
    bounds[index - extends_left : index + extends_right] = start + end


def _end_of_space(text: str, at: int) -> int:
    return len(text) - len(text[at:].lstrip())


def _malformed(offset: int) -> ChangelogError:
    return ChangelogError(Kind.MALFORMED, f"a text is not a set of MySQL GTIDs: unexpected text at character {offset}")


_EXAMPLE = "3e11fa47-71ca-11e1-9e33-c80aa9429562:23"
_HEX_UUID = "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_TAG = "[a-zA-Z_][a-zA-Z0-9_]{0,31}"
_UUID = re.compile(_HEX_UUID)
_SOURCE = re.compile(f"{_HEX_UUID}(?::{_TAG})?")
_DIGITS = re.compile("[0-9]{1,19}")
_PART = re.compile(rf"\s*:\s*(?:(?P<tag>{_TAG})\s*:\s*)?(?P<first>[0-9]{{1,19}})(?:\s*-\s*(?P<last>[0-9]{{1,19}}))?")
_SEPARATOR = re.compile(r"\s*(?:,\s*|\Z)")
