"""Builds the names of a changelog's topics, and of their subjects in a registry (docs/reference/kafka.md).

`prefix` is the setting `prefix` of [sink] in the configuration. The names of all topics of one changelog begin with it.
"""

from changelog.envelope.entity import DEAD, GAPS, SCHEMAS

POSITIONS = "positions"


def topic(prefix: str, entity: str) -> str:
    """Returns the topic of an entity's changelog."""
    return f"{prefix}.{entity}"


def delta_topic(prefix: str, entity: str) -> str:
    """Returns the topic of an entity's deltas.

    No other entity can have a topic of this name, because names of entities have no dot.
    """
    return f"{topic(prefix, entity)}.delta"


def positions_topic(prefix: str) -> str:
    """Returns the topic of checkpoints, which has one partition. A checkpoint's key is the name of its source."""
    return f"{prefix}.{POSITIONS}"


def dead_topic(prefix: str) -> str:
    """Returns the topic of dead letters: messages that an operator set aside, or that were too large."""
    return topic(prefix, DEAD)


def schemas_topic(prefix: str) -> str:
    """Returns the topic that holds the versions of entities' columns. It has one partition."""
    return topic(prefix, SCHEMAS)


def gaps_topic(prefix: str) -> str:
    """Returns the topic that records where changes were lost. It has one partition."""
    return topic(prefix, GAPS)


def subject(prefix: str, entity: str) -> str:
    """Returns the registry's subject for the schemas of an entity's values, by Confluent's TopicNameStrategy."""
    return f"{topic(prefix, entity)}-value"


def key_subject(prefix: str, entity: str) -> str:
    """Returns the registry's subject for the schema of an entity's keys. In our own envelope, keys have no schema."""
    return f"{topic(prefix, entity)}-key"


def delta_subject(prefix: str, entity: str) -> str:
    """Returns the registry's subject for the schema of an entity's deltas."""
    return f"{delta_topic(prefix, entity)}-value"
