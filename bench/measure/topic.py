"""Creates, reads and deletes a Kafka topic for benchmarks. Only messages of committed transactions are read."""

import time
from collections.abc import Mapping

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

TIMEOUT_S = 30.0
COUNT_S_MAX = 300.0
COUNT_BATCH = 10_000


class Topic:
    """The topic `name` on a broker. It need not exist yet."""

    def __init__(self, servers: str, name: str, partitions: int) -> None:
        self.name = name
        self._client: dict[str, str | int | float | bool] = {"bootstrap.servers": servers, "log_level": 0}
        self._partitions = [TopicPartition(name, number) for number in range(partitions)]
        self._admin = AdminClient(self._client)

    def create(self) -> None:
        """Creates the topic, with the broker's default settings."""
        for result in self._admin.create_topics([NewTopic(self.name, len(self._partitions))]).values():
            result.result()

    def delete(self) -> None:
        """Deletes the topic, which frees its disk space."""
        for result in self._admin.delete_topics([self.name], operation_timeout=TIMEOUT_S).values():
            result.result()

    def ends(self) -> Mapping[int, int]:
        """Returns, for each partition, the offset at which readers of committed messages stop.

        If a partition has no leader yet, because the topic is new, asks again for at most `TIMEOUT_S` seconds.
        """
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            latest = {partition: OffsetSpec.latest() for partition in self._partitions}  # type: ignore[no-untyped-call]
            answers = self._admin.list_offsets(
                latest, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=TIMEOUT_S
            )
            try:
                return {partition.partition: answer.result().offset for partition, answer in answers.items()}
            except KafkaException as error:
                is_without_leader = error.args[0].code() == KafkaError.NOT_LEADER_FOR_PARTITION
                if not is_without_leader or time.monotonic() > deadline:
                    raise
            time.sleep(0.1)

    def visible(self) -> int:
        """Returns how many offsets the topic has for committed messages and for the markers that end transactions. Does
        not read the messages.
        """
        return sum(self.ends().values())

    def consumer(self, offsets: Mapping[int, int]) -> Consumer:
        """Returns a consumer that reads the committed messages, in each partition from its offset in `offsets` on."""
        consumer = Consumer(
            {
                **self._client,
                "group.id": "bench",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
            }
        )
        consumer.assign([TopicPartition(self.name, number, offset) for number, offset in offsets.items()])
        return consumer

    def count(self) -> int:
        """Reads all committed messages, and returns their number. After `COUNT_S_MAX` seconds, gives up and
        returns how many it has read so far.
        """
        consumer = self.consumer({partition.partition: 0 for partition in self._partitions})
        count, ended = 0, 0
        deadline = time.monotonic() + COUNT_S_MAX
        while ended < len(self._partitions) and time.monotonic() < deadline:
            messages: list[Message] = consumer.consume(COUNT_BATCH, timeout=1.0)
            ends = sum(message.error() is not None for message in messages)
            count, ended = count + len(messages) - ends, ended + ends
        consumer.close()
        return count
