"""Runs the campaign `debezium_judge` with Debezium in Kafka Connect, whose topics our service reads.

There is one topic for each table, so rows of different tables have no order. The rows of each table must be those of
our own source, in the same order.
"""

from tests.campaigns import debezium_judge
from tests.campaigns._pieces import Campaign


def campaign() -> Campaign:
    """Each round uses a new database."""
    return debezium_judge.campaign(topics=True)
