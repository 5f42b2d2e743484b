"""Signals that are not obeyed, stamps that are none and changes without one: counted, and told now and then."""

import time
from collections import Counter
from collections.abc import Sequence

import structlog

from changelog.envelope.errors import ChangelogError

TELL_EVERY_S = 10.0
"""How often the log tells: any role may write signals and stamps that are none, and must not fill it."""

PROBLEMS_MAX, OTHER_PROBLEMS = 10, "something else"
"""So many problems of stamps are told apart: who writes them may name their members as they like."""

_log = structlog.get_logger("source")


class Ignored:
    """What came that was no signal, was wrongly signed, or asked for what there is not."""

    def __init__(self) -> None:
        self._count = 0
        self._untold: Counter[str] = Counter()
        self._tell_at = 0.0

    def ignored(self, why: ChangelogError) -> None:
        """One more."""
        self._count += 1
        self._untold[why.message] += 1
        if time.monotonic() >= self._tell_at:
            self._tell_at = time.monotonic() + TELL_EVERY_S
            for message, count in self._untold.items():
                _log.warning("signals ignored", why=message, count=count)
            self._untold.clear()

    def take(self) -> int:
        """How many came since this was asked last."""
        count, self._count = self._count, 0
        return count


class Stamps:
    """Provenance stamps that were not valid as a whole, and changes without one where the policy is to warn."""

    def __init__(self) -> None:
        self._invalid = 0
        self._untold_invalid: dict[str, tuple[int, int]] = {}  # by what is wrong: how many, and the last transaction
        self._untold: Counter[str] = Counter()
        self._tell_at = 0.0

    def heard(self, invalid: Sequence[tuple[str, int]], unstamped: Counter[str]) -> None:
        """These came: what is wrong with each stamp and its transaction, and the changes by entity."""
        self._invalid += len(invalid)
        for problem, transaction in invalid:
            known = problem in self._untold_invalid or len(self._untold_invalid) < PROBLEMS_MAX
            why = problem if known else OTHER_PROBLEMS
            count, _ = self._untold_invalid.get(why, (0, 0))
            self._untold_invalid[why] = count + 1, transaction
        self._untold += unstamped
        if not (self._untold_invalid or self._untold) or time.monotonic() < self._tell_at:
            return
        self._tell_at = time.monotonic() + TELL_EVERY_S
        for why, (count, transaction) in self._untold_invalid.items():
            _log.warning("provenance stamps not valid", why=why, count=count, last_transaction=str(transaction))
        for entity, count in self._untold.items():
            _log.warning("changes without a provenance stamp", entity=entity, count=count)
        self._untold_invalid.clear()
        self._untold.clear()

    def take(self) -> int:
        """How many stamps were not valid since this was asked last."""
        count, self._invalid = self._invalid, 0
        return count
