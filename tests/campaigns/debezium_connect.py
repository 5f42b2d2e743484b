"""The campaign `debezium_judge`, with Debezium in Kafka Connect and its topics between Debezium and our service.

There is a topic for each table, so rows of several tables have no order. Within each table, the service must publish
the rows of our own reader.
"""

from tests.campaigns import debezium_judge
from tests.campaigns._pieces import Campaign


def campaign() -> Campaign:
    """A round is a new database."""
    return debezium_judge.campaign(topics=True)
