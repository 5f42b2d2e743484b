"""Builds the names of a changelog's topics, and of their subjects in a registry (docs/reference/kafka.md).

`prefix` is the setting `prefix` of [sink] in the configuration. The names of all topics of one changelog begin with
this prefix.
"""

from changelog.envelope.entity import DEAD, GAPS, SCHEMAS

POSITIONS = "positions"

_GENERATION = ".G"
"""The text between the name of an entity's first topic and the number of a later generation: `app.orders.G2`.

No other changelog has a topic of such a name. One with the prefix `app.orders` would need an entity `G2`, but names of
entities have no capital letters."""


def topic(prefix: str, entity: str, generation: int = 1) -> str:
    """Returns the topic of one generation of an entity's changelog.

    Each `changelog repartition` ends the entity's topic and begins the next generation in a new one. No other entity
    can have a topic of this name, because names of entities have no dot and no capital letter.
    """
    first = f"{prefix}.{entity}"
    return first if generation == 1 else f"{first}{_GENERATION}{generation}"


def entity_of(prefix: str, topic_name: str) -> str:
    """Returns the entity of a topic. `topic_name` is a result of `topic`."""
    return topic_name[len(prefix) + 1 :].partition(".")[0]


def first_topic(topic_name: str) -> str:
    """Returns the first topic of an entity. `topic_name` is the name of any of its topics."""
    return topic_name if generation_of(topic_name) == 1 else topic_name.rpartition(_GENERATION)[0]


def generation_of(topic_name: str) -> int:
    """Returns the generation of a topic. `topic_name` is a result of `topic`."""
    _, separator, number = topic_name.rpartition(_GENERATION)
    return int(number) if separator and number.isdecimal() else 1


def delta_topic(changelog_topic: str) -> str:
    """Returns the topic with the deltas of `changelog_topic`, which is one topic of an entity.

    No other entity can have a topic of this name, because names of entities have no dot.
    """
    return f"{changelog_topic}.delta"


def positions_topic(prefix: str) -> str:
    """Returns the topic of checkpoints. It has one partition. A checkpoint's key is the name of its source."""
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
    return f"{delta_topic(topic(prefix, entity))}-value"
