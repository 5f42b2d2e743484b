"""Defines which Kafka topics the service reads Debezium's events from."""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from changelog.connectors.kafka.client import Client


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsSettings:
    """Which topics to read.

    The service reads all topics that match a pattern of `include` and no pattern of `exclude`. It also reads the topic
    `transactions`, to which Debezium writes the BEGIN and the END of each transaction. The service commits offsets to
    the consumer group `group` only for tools that show how far it has read; it never reads them back.
    """

    client: Client
    include: Sequence[str]
    exclude: Sequence[str] = ()
    group: str
    transactions: str | None = None

    def matches(self, topic: str) -> bool:
        """Returns whether to read the topic. Kafka's own topics, which begin with `__`, must be named exactly."""
        if topic == self.transactions:
            return True
        if topic.startswith("__") and topic not in self.include:
            return False
        included, excluded = (
            any(fnmatchcase(topic, pattern) for pattern in patterns) for patterns in (self.include, self.exclude)
        )
        return included and not excluded
