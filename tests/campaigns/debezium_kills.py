"""Runs the campaign `debezium_judge`, and makes Debezium fail again and again: kills its Java process or the service
that runs it, or ends its sessions in the database.

The changelog of this service must have the same rows as the changelog of our own source, each exactly once.
"""

from tests.campaigns import debezium_judge
from tests.campaigns._pieces import Campaign

CHANGES = 3_000
KILLS = 10


def campaign() -> Campaign:
    """Each round uses a new database, and makes ten faults while sessions write to it."""
    return debezium_judge.campaign(CHANGES, kills=KILLS)
