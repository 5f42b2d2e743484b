"""Runs the campaign `debezium_judge`, and kills Java, the service that runs Java, and its connections again and again.

The changelog of this service must have the same rows as the changelog of our own source, each exactly once.
"""

from tests.campaigns import debezium_judge
from tests.campaigns._pieces import Campaign

CHANGES = 3_000
KILLS = 10


def campaign() -> Campaign:
    """Each round uses a new database, and makes ten faults while the database is written to."""
    return debezium_judge.campaign(CHANGES, kills=KILLS)
