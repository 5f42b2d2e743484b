"""Notes how the rows of served views change, and judges whether an answer of these views fits the changes."""

import threading
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

SLACK_S = 0.05
"""How far the timestamps in the broker's messages and the clock of this process may differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer to a request for one row. `sent_s` is the time at which the request was sent. `row` is the position of
    the row's last change, or None if there is no such row. `reached` and `staleness_s` are the values of the headers
    X-Position and X-Staleness.
    """

    view: str
    key: str
    sent_s: float
    row: str | None
    reached: str
    staleness_s: float


class History:
    """The changes of the rows in some views, and the commits of these changes. `rows` has the position of the last
    change of each existing row, by view and key. Several threads may use this object.
    """

    def __init__(self, views: Iterable[str]) -> None:
        self._lock = threading.Lock()
        self._changes: dict[tuple[str, str], list[tuple[str, bool]]] = {}
        self._commits: list[tuple[float, str]] = []
        self.rows: dict[str, dict[str, str]] = {view: {} for view in views}

    def sending(self, view: str, key: str, position: str, *, is_alive: bool) -> None:
        """Notes a change that counts in a view. The caller has not sent the change yet, but answers may show it from
        now on.
        """
        with self._lock:
            self._changes.setdefault((view, key), []).append((position, is_alive))
            if is_alive:
                self.rows[view][key] = position
            else:
                self.rows[view].pop(key, None)

    def stored(self, at_s: float, position: str) -> None:
        """Notes that all changes up to a position were stored at this time."""
        with self._lock:
            self._commits.append((at_s, position))

    @property
    def last(self) -> str:
        """The position of the last commit."""
        with self._lock:
            return self._commits[-1][1]

    def judge(self, answer: Answer, min_position: str | None) -> None:
        """Raises AssertionError if an answer is older than its headers claim, or older than `min_position`, for which
        the reader asked.
        """
        with self._lock:
            changes = list(self._changes.get((answer.view, answer.key), ()))
            stored_s = answer.sent_s - answer.staleness_s - SLACK_S
            count = bisect_right(self._commits, (stored_s, ""))
            stored_position = self._commits[count - 1][1] if count else ""
        assert stored_position <= answer.reached, f"{stored_position} was stored before, but is not reached: {answer}"
        assert min_position is None or min_position <= answer.reached, f"{min_position} is not reached: {answer}"
        states = _states(changes, answer.reached)
        assert (answer.row or "") in states, f"the row is none of {states}: {answer}"


def _states(changes: list[tuple[str, bool]], reached: str) -> Mapping[str, Any]:
    """Returns the states that a row may have in an answer that includes all changes up to `reached`: its state at this
    position, and all later ones. A state is the position of the row's last change, or an empty text if there is no row.
    """
    count = bisect_right(changes, (reached, True))
    first = max(count - 1, 0)
    states = {position if is_alive else "": None for position, is_alive in changes[first:]}
    return states if count else {"": None, **states}
