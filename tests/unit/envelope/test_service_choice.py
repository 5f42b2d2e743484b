"""Tests `ServiceChoice`, which includes or leaves out changes according to the service that made them."""

import pytest

from changelog.envelope.errors import ChangelogError
from changelog.envelope.service_choice import ALL_SERVICES, ServiceChoice, refuse_contradiction

NAMES = ("", "order-api", "nightly-batch")


@pytest.mark.parametrize(
    ("choice", "included"),
    [
        (ALL_SERVICES, NAMES),
        (ServiceChoice(drop=("nightly-batch",)), ("", "order-api")),
        (ServiceChoice(keep=("nightly-batch",)), ("nightly-batch",)),
        (ServiceChoice(keep=("nightly-batch",), drop=("order-api",)), ("nightly-batch",)),
        (ServiceChoice(keep=("",)), ("",)),
    ],
)
def test_services_are_included_by_name(choice: ServiceChoice, included: tuple[str, ...]) -> None:
    assert tuple(name for name in NAMES if choice.includes(name)) == included


def test_a_service_that_is_both_kept_and_dropped_is_refused() -> None:
    refuse_contradiction(ServiceChoice(keep=("a",), drop=("b",)))
    with pytest.raises(ChangelogError, match="a service is both kept and dropped; leave one out"):
        refuse_contradiction(ServiceChoice(keep=("a", "b"), drop=("b",)))
