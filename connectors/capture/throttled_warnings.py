"""Counts ignored signals, invalid stamps and changes without a stamp, and warns about them at a limited rate.

A signal is a message to the service. A stamp says who makes a change.
"""

import time
from collections import Counter
from collections.abc import Sequence

import structlog

from changelog.envelope.errors import ChangelogError

TELL_EVERY_S = 10.0
"""The time between warnings, in seconds.

Any role of the database can write invalid signals and stamps. Without this limit, it could fill the service's log.
"""

PROBLEMS_MAX, OTHER_PROBLEMS = 10, "something else"
"""How many different problems of stamps are named at each warning, and the name that all other problems share.

A problem may contain names from the stamp. The stamp's writer can choose these names, so without PROBLEMS_MAX the
number of different problems would have no limit.
"""

_log = structlog.get_logger("source")


class IgnoredSignals:
    """Counts ignored signals: invalid ones, wrongly signed ones, and those for something that does not exist."""

    def __init__(self) -> None:
        self._count = 0
        self._unlogged: Counter[str] = Counter()
        self._log_at = 0.0

    def ignored(self, why: ChangelogError) -> None:
        """Counts a signal that was ignored because of `why`."""
        self._count += 1
        self._unlogged[why.message] += 1
        if time.monotonic() >= self._log_at:
            self._log_at = time.monotonic() + TELL_EVERY_S
            for message, count in self._unlogged.items():
                _log.warning("signals ignored", why=message, count=count)
            self._unlogged.clear()

    def take(self) -> int:
        """Returns how many signals were ignored since the last call."""
        count, self._count = self._count, 0
        return count


class Stamps:
    """Counts invalid provenance stamps, and changes without a stamp if their entity's policy is to warn."""

    def __init__(self) -> None:
        self._invalid = 0
        self._unlogged_problems: dict[str, tuple[int, int]] = {}
        """For each problem, the number of stamps that have it, and the last transaction that had such a stamp."""
        self._unlogged_changes: Counter[str] = Counter()
        self._log_at = 0.0

    def heard(self, invalid: Sequence[tuple[str, int]], unstamped: Counter[str]) -> None:
        """Counts the invalid stamps, and the changes without a stamp, in the part of the database's log just read.

        `invalid` has the problem of each invalid stamp and the id of its transaction. `unstamped` has the number of
        changes without a stamp, by entity.
        """
        self._invalid += len(invalid)
        for problem, transaction in invalid:
            is_named = problem in self._unlogged_problems or len(self._unlogged_problems) < PROBLEMS_MAX
            why = problem if is_named else OTHER_PROBLEMS
            count, _ = self._unlogged_problems.get(why, (0, 0))
            self._unlogged_problems[why] = count + 1, transaction
        self._unlogged_changes += unstamped
        if not (self._unlogged_problems or self._unlogged_changes) or time.monotonic() < self._log_at:
            return
        self._log_at = time.monotonic() + TELL_EVERY_S
        for why, (count, transaction) in self._unlogged_problems.items():
            _log.warning("provenance stamps not valid", why=why, count=count, last_transaction=str(transaction))
        for entity, count in self._unlogged_changes.items():
            _log.warning("changes without a provenance stamp", entity=entity, count=count)
        self._unlogged_problems.clear()
        self._unlogged_changes.clear()

    def take(self) -> int:
        """Returns how many stamps were invalid since the last call."""
        count, self._invalid = self._invalid, 0
        return count
