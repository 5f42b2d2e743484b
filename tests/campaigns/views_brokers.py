"""The campaign `views` with three brokers, each of which has all topics. A round may also kill a broker."""

from tests.campaigns import views
from tests.campaigns._pieces import Campaign

FAULTS = ("broker", "broker", *views.FAULTS)


def campaign() -> Campaign:
    """Ten rounds share the instances, the writer and the readers; all share the brokers."""
    return views.campaign(faults=FAULTS, brokers=3)
