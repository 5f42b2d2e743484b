"""How topics are named (docs/reference/kafka.md)."""

from envelope.entity import DEAD, GAPS, SCHEMAS

POSITIONS = "positions"


def topic(prefix: str, entity: str) -> str:
    """The topic of an entity's changelog."""
    return f"{prefix}.{entity}"


def delta_topic(prefix: str, entity: str) -> str:
    """The topic of an entity's deltas; no entity's own can have its name."""
    return f"{topic(prefix, entity)}.delta"


def positions_topic(prefix: str) -> str:
    """The topic of one partition that holds each source's checkpoint, by the source's name."""
    return f"{prefix}.{POSITIONS}"


def dead_topic(prefix: str) -> str:
    """The topic of what was set aside."""
    return topic(prefix, DEAD)


def schemas_topic(prefix: str) -> str:
    """The topic of one partition that holds the versions of entities' columns."""
    return topic(prefix, SCHEMAS)


def gaps_topic(prefix: str) -> str:
    """The topic of one partition that says where changes were lost."""
    return topic(prefix, GAPS)


def subject(prefix: str, entity: str) -> str:
    """The registry's subject for the schemas of an entity's values: Confluent's TopicNameStrategy."""
    return f"{topic(prefix, entity)}-value"


def delta_subject(prefix: str, entity: str) -> str:
    """The subject for the schema of an entity's deltas."""
    return f"{delta_topic(prefix, entity)}-value"
