"""Runs the campaign `debezium_judge` with Debezium in Kafka Connect. Our service reads the topics that Debezium writes.

Each table has a topic of its own, so rows of different tables have no order. The rows of each table must be those that
our own source publishes, in the same order.
"""

from tests.campaigns import debezium_judge
from tests.campaigns._pieces import Campaign


def campaign() -> Campaign:
    """Each round uses a new database."""
    return debezium_judge.campaign(topics=True)
