"""Asks Kafka for the ids of topics and of the cluster. A topic that was deleted and created again has another id."""

from collections.abc import Set

from confluent_kafka import KafkaError, KafkaException, TopicCollection, Uuid

from changelog.connectors.kafka.client import TIMEOUT_S, Admin, error_of

_NO_ID = str(Uuid(0, 0))
"""The id that a broker before Kafka 2.8 returns, because it has no topic ids."""


def read_ids(admin: Admin, topics: Set[str]) -> dict[str, str]:
    """Returns the id of each topic that exists. The result is empty if the broker has no topic ids."""
    ids = {}
    for name, answer in admin.describe_topics(TopicCollection(list(topics)), request_timeout=TIMEOUT_S).items():
        try:
            ids[name] = str(answer.result().topic_id)
        except KafkaException as error:
            # A broker gives this answer if the topic was deleted, or was created only a moment ago.
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise error_of(error.args[0], "asking Kafka for the topics' ids") from error
    return {name: topic_id for name, topic_id in ids.items() if topic_id != _NO_ID}


def read_cluster_id(admin: Admin) -> str:
    """Returns the id of the cluster."""
    try:
        return str(admin.describe_cluster(request_timeout=TIMEOUT_S).result().cluster_id)
    except KafkaException as error:
        raise error_of(error.args[0], "asking Kafka for its cluster") from error
