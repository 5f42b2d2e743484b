"""Tests that settings on which the changelog's content depends cannot be changed by accident."""

from dataclasses import replace

import pytest

from changelog.connectors.capture.settings_guard import check_settings
from changelog.envelope.errors import ChangelogError, Kind
from tests.unit.records import checkpoint

ORDER = {"key": ["id"], "partitions": 4}


def refusal(stored: dict[str, object], configured: dict[str, object]) -> str:
    with pytest.raises(ChangelogError) as caught:
        check_settings(replace(checkpoint(1), settings={"order": stored}), {"order": configured}, accept=False)
    assert caught.value.kind is Kind.SETTINGS
    return caught.value.message


def test_unchanged_settings_and_new_entities_are_allowed() -> None:
    check_settings(replace(checkpoint(1), settings={"order": ORDER}), {"order": ORDER, "guest": {}}, accept=False)


def test_the_error_names_the_changed_setting() -> None:
    assert refusal(ORDER, {**ORDER, "partitions": 5}).endswith("entity order has other settings: partitions")


def test_a_change_from_json_to_avro_or_back_is_refused() -> None:
    avro = {**ORDER, "codec": "avro"}
    assert refusal(ORDER, avro).endswith("entity order has other settings: codec")
    assert refusal(avro, ORDER).endswith("entity order has other settings: codec")


def test_a_change_cannot_be_accepted_in_the_middle_of_a_transaction() -> None:
    stored = replace(checkpoint(1), settings={"order": ORDER})
    check_settings(stored, {"order": {**ORDER, "codec": "avro"}}, accept=True)
    with pytest.raises(ChangelogError, match="half published"):
        check_settings(replace(stored, partial=True), {"order": {**ORDER, "codec": "avro"}}, accept=True)
