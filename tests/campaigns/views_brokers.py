"""Runs the campaign `views` with three brokers. Each broker has all topics. A round may also kill a broker."""

from tests.campaigns import views
from tests.campaigns._pieces import Campaign

FAULTS = ("broker", "broker", *views.FAULTS)


def campaign() -> Campaign:
    """See `views.campaign`."""
    return views.campaign(faults=FAULTS, brokers=3)
