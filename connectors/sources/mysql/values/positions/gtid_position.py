"""Handles MariaDB's positions in the binary log: a position is the last global transaction id (GTID) of each domain.

A GTID of MariaDB has a domain, the id of the server that first executed the transaction, and a sequence number:
`0-1-100`. Within a domain, the log usually has increasing sequence numbers (with `gtid_strict_mode`, always).
Transactions of different domains have no order. See "Global Transaction ID" in MariaDB's documentation.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from changelog.envelope.errors import ChangelogError, Kind

Ints = npt.NDArray[np.int64]

_GTID: Final = re.compile(r"([0-9]{1,10})-([0-9]{1,10})-([0-9]{1,20})")
_SEPARATOR: Final = re.compile(r"\s*(?:,\s*|\Z)")
_EXAMPLE: Final = "0-1-100"


@dataclass(frozen=True, slots=True, kw_only=True)
class GtidPosition:
    """An immutable position: for each domain, the server id and the sequence number of the last transaction."""

    domains: Mapping[int, tuple[int, int]]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parses a list of GTIDs, such as `@@gtid_binlog_pos` or `@@gtid_binlog_state`. If a domain has several GTIDs,
        the last one is used.

        Raises ChangelogError (MALFORMED) with the offset of the character that does not fit.
        """
        gtids: list[tuple[int, int, int]] = []
        at = len(text) - len(text.lstrip())
        while at < len(text):
            match = _GTID.match(text, at)
            gtid = None if match is None else _numbers(match)
            separator = None if match is None else _SEPARATOR.match(text, match.end())
            if gtid is None or separator is None:
                raise ChangelogError(
                    Kind.MALFORMED, f"a text is not a list of MariaDB GTIDs: unexpected text at character {at}"
                )
            gtids.append(gtid)
            at = separator.end()
        return cls.of(gtids)

    @classmethod
    def of(cls, gtids: Iterable[tuple[int, int, int]]) -> Self:
        """Returns the position at the last GTID (domain, server id, sequence number) of each domain.

        A GTID_LIST event has a GTID for each server in each domain. The last one of a domain is its newest.
        """
        return cls(domains={domain: (server, sequence) for domain, server, sequence in gtids})

    @property
    def text(self) -> str:
        """The position as the server prints it: GTIDs with commas between them, in the order of their domains."""
        return ",".join(f"{domain}-{server}-{sequence}" for domain, (server, sequence) in sorted(self.domains.items()))

    def __bool__(self) -> bool:
        return bool(self.domains)

    def contains(self, gtid: str) -> bool:
        """Returns whether the position is at this GTID, or after it in the same domain. The server id is ignored.

        Raises ChangelogError (MALFORMED) if `gtid` is not a GTID.
        """
        domain, _, sequence = parse_gtid(gtid)
        return domain in self.domains and sequence <= self.domains[domain][1]

    def contains_any(self, head: str, numbers: Ints) -> bool:
        """See `Gtids`."""
        return self.contains(f"{head}{numbers.min()}")

    def missing(self, other: "GtidPosition") -> "GtidPosition":
        """Returns the last GTIDs of `other` in the domains in which `other` is ahead of this position."""
        ahead = {
            domain: (server, sequence)
            for domain, (server, sequence) in other.domains.items()
            if domain not in self.domains or self.domains[domain][1] < sequence
        }
        return GtidPosition(domains=ahead)

    def is_subset(self, other: "GtidPosition") -> bool:
        """Returns whether `other` is at least as far as this position in all of this position's domains."""
        return not other.missing(self)

    def builder(self) -> "GtidPositionBuilder":
        """Returns a builder that begins at this position."""
        return GtidPositionBuilder(self)


class GtidPositionBuilder:
    """Advances a position by GTIDs, each in constant time."""

    def __init__(self, start: GtidPosition) -> None:
        self._domains = dict(start.domains)

    def add(self, gtid: str) -> None:
        """Makes a GTID the last one of its domain, even if its sequence number is not the highest. The server does the
        same.

        Raises ChangelogError (MALFORMED) if `gtid` is not a GTID.
        """
        domain, server, sequence = parse_gtid(gtid)
        self._domains[domain] = server, sequence

    def add_all(self, head: str, numbers: Ints) -> None:
        """Adds the GTIDs whose text is `head`, followed by one of the `numbers`. The last one becomes the last GTID of
        its domain.
        """
        for number in numbers[-1:].tolist():
            self.add(f"{head}{number}")

    def build(self) -> GtidPosition:
        """Returns the position after everything that was added. The builder can be used further."""
        return GtidPosition(domains=dict(self._domains))


def parse_gtid(text: str) -> tuple[int, int, int]:
    """Returns a GTID's domain, server id and sequence number. Raises ChangelogError (MALFORMED) for any other text."""
    match = _GTID.fullmatch(text)
    numbers = None if match is None else _numbers(match)
    if numbers is None:
        raise ChangelogError(Kind.MALFORMED, f"{text!r} is not a MariaDB GTID, such as {_EXAMPLE}")
    return numbers


def _numbers(match: re.Match[str]) -> tuple[int, int, int] | None:
    """Returns the three numbers of a GTID; None if one is too large.

    The first two may have 32 bits, and the last may have 64.
    """
    domain, server, sequence = (int(part) for part in match.groups())
    fits = domain < 1 << 32 and server < 1 << 32 and sequence < 1 << 64
    return (domain, server, sequence) if fits else None
