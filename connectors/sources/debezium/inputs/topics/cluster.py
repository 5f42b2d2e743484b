"""Asks the brokers about the topics that an input reads: their ids, their partitions, and the bounds of the offsets."""

from changelog.connectors.kafka.client import Admin
from changelog.connectors.kafka.offsets import begins, written_ends
from changelog.connectors.kafka.topic_ids import read_ids
from changelog.connectors.sources.debezium.inputs.topics.lineage import InputTopic, InputTopics
from changelog.connectors.sources.debezium.inputs.topics.settings import TopicsSettings


def read_states(admin: Admin, settings: TopicsSettings) -> dict[str, InputTopic]:
    """Returns the topics that match the settings, by name. Raises ChangelogError."""
    names = {name: topic for name, topic in sorted(admin.topics().items()) if settings.matches(name)}
    ids = read_ids(admin, names.keys()) if names else {}
    return {
        name: InputTopic(id=ids.get(name, ""), partitions=len(topic.partitions))
        for name, topic in names.items()
        if topic.partitions
    }


def read_topics(admin: Admin, settings: TopicsSettings) -> InputTopics:
    """Returns the topics that match the settings, with the first offset and the end of each partition.

    Raises ChangelogError.
    """
    states = read_states(admin, settings)
    parts = InputTopics(states=states, begins={}, ends={}).parts
    return InputTopics(states=states, begins=begins(admin, parts), ends=written_ends(admin, parts))
