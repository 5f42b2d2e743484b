"""The names of topics (docs/reference/kafka.md)."""

from changelog.envelope.entity import DEAD, GAPS, SCHEMAS

POSITIONS = "positions"


def topic(prefix: str, entity: str) -> str:
    """The topic of an entity's changelog."""
    return f"{prefix}.{entity}"


def delta_topic(prefix: str, entity: str) -> str:
    """The topic of an entity's deltas. No entity can have a topic of that name, because entities have no dot."""
    return f"{topic(prefix, entity)}.delta"


def positions_topic(prefix: str) -> str:
    """The topic, with one partition, that holds each source's checkpoint under the source's name."""
    return f"{prefix}.{POSITIONS}"


def dead_topic(prefix: str) -> str:
    """The topic of messages that were set aside."""
    return topic(prefix, DEAD)


def schemas_topic(prefix: str) -> str:
    """The topic, with one partition, that holds the versions of entities' columns."""
    return topic(prefix, SCHEMAS)


def gaps_topic(prefix: str) -> str:
    """The topic, with one partition, that records where changes were lost."""
    return topic(prefix, GAPS)


def subject(prefix: str, entity: str) -> str:
    """The registry's subject for the schemas of an entity's values: Confluent's TopicNameStrategy."""
    return f"{topic(prefix, entity)}-value"


def delta_subject(prefix: str, entity: str) -> str:
    """The registry's subject for the schema of an entity's deltas."""
    return f"{delta_topic(prefix, entity)}-value"
