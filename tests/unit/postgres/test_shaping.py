"""Tests the error that occurs if the configuration no longer fits the changelog."""

from dataclasses import replace

import pytest

from changelog.connectors.capture.settings_guard import check_settings
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.position import commit_text

SHAPE = {"key": ["id"], "partition_by": ["id"], "partitions": 6, "where": None}
STORED = Checkpoint(
    position=None,
    through=commit_text(1),
    epoch=1,
    source={"system_identifier": "77", "timeline": 1},
    settings={"order": SHAPE, "guest": SHAPE},
)


@pytest.mark.parametrize(
    ("changed", "may_move"),
    [({"partitions": 12}, True), ({"partition_by": ["guest_id"]}, True), ({"where": "id > 5"}, False)],
)
def test_the_error_warns_if_a_key_may_end_up_in_two_partitions(changed: dict[str, object], may_move: bool) -> None:
    shapes = {"order": {**SHAPE, **changed}, "guest": SHAPE}
    with pytest.raises(
        ChangelogError, match=f"entity order has other settings: {next(iter(changed))}; restore the earlier config"
    ) as caught:
        check_settings(STORED, shapes, accept=False)
    assert caught.value.kind is Kind.SETTINGS
    assert ("the rows of one key may be in two partitions" in str(caught.value)) is may_move
    check_settings(STORED, shapes, accept=True)
    with pytest.raises(ChangelogError, match="half published"):
        check_settings(replace(STORED, partial=True), shapes, accept=True)
