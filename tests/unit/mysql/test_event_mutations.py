"""Runs the campaign `event_mutations` for a few rounds. `event_mutations.run` can run any number of rounds."""

import pytest

from tests.unit.mysql.event_mutations import run


@pytest.mark.campaign
def test_changed_events_are_decoded_or_refused(seed: int) -> None:
    outcomes = run(20_000, seed)
    assert min(outcomes["decoded"], outcomes["refused"]) > 1_000
