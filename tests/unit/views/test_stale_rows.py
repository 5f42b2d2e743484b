"""Tests when copies of rows are refused because they are too old. Standbys have such copies.

A reader can allow stale rows, and still require a position or limit their age.
"""

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from changelog.connectors.views.http.answers import POSITION, RefusalError
from changelog.connectors.views.http.questions import Freshness
from changelog.connectors.views.http.waiting import refuse_stale
from changelog.connectors.views.served import Completeness
from changelog.envelope.position import Position

OLD = Position(1, 5, 0)


def refusal(freshness: Freshness, *, age_s: float = 3.0) -> RefusalError | None:
    """Returns the error for a copy that is complete up to `OLD`, or None if the copy is not refused.

    The copy was last known to be complete `age_s` seconds ago.
    """
    moment = SimpleNamespace(reached=Completeness(position=OLD, at_s=time.time() - age_s))
    try:
        refuse_stale(cast(Any, moment), freshness)
    except RefusalError as error:
        return error
    return None


@pytest.mark.parametrize(
    ("freshness", "reason"),
    [
        (Freshness(allows_stale=True), None),
        (Freshness(allows_stale=True, position=OLD, max_lag_s=60), None),
        (Freshness(allows_stale=True, position=Position(1, 6, 0)), "their copy has not reached"),
        (Freshness(allows_stale=True, commit=6), "their copy has not reached this place"),
        (Freshness(allows_stale=True, max_lag_s=2), "their copy was last written 3.0 s ago"),
        (Freshness(max_lag_s=2), None),  # such rows do not come from a copy, and were checked before they were read
    ],
)
def test_a_copy_that_is_too_old_is_refused(freshness: Freshness, reason: str | None) -> None:
    error = refusal(freshness)
    if reason is None:
        assert error is None
    else:
        assert error is not None
        assert (error.status, reason in error.message) == (503, True)
        assert error.headers is not None
        assert error.headers[POSITION] == str(OLD)
