"""Runs 20,000 rounds of `event_mutations`: the decoder must decode mutated events, or refuse them."""

import pytest

from tests.unit.mysql.event_mutations import run


@pytest.mark.campaign
def test_mutated_events_are_decoded_or_refused(seed: int) -> None:
    outcomes = run(20_000, seed)
    assert min(outcomes["decoded"], outcomes["refused"]) > 1_000
