"""Tests that a reader of stored checkpoints stops, even if other services write to their topic all the time."""

from typing import Any, cast

from confluent_kafka import Message, TopicPartition

from changelog.connectors.kafka.client import Client
from changelog.connectors.sinks.kafka.reading.positions import read_stored
from tests.unit.records import checkpoint

END = 5


class GrowingTopic:
    """A consumer of a topic that has `END` messages before the first poll.

    Whenever the consumer reads a message, the topic gets another one. So a poll never finds the end of the topic.
    """

    def __init__(self) -> None:
        self.offset = -1

    def assign(self, partitions: list[TopicPartition]) -> None:
        assert [part.offset for part in partitions] == [0]

    def poll(self, _timeout_s: float) -> Message:
        self.offset += 1
        assert self.offset < 2 * END, "the reader follows the growing topic past the end"
        text = checkpoint(self.offset + 1).to_json()
        return Message(topic="shop.positions", partition=0, offset=self.offset, key=b"shop", value=text)

    def get_watermark_offsets(self, _part: TopicPartition, *, cached: bool) -> tuple[int, int]:
        assert cached, "the end must come from the messages, without a request"
        return 0, END + self.offset

    def close(self) -> None:
        """Does nothing."""


class GrowingClient:
    """A client whose only consumer is `topic`."""

    def __init__(self) -> None:
        self.topic = GrowingTopic()

    def reader(self) -> Any:
        return self.topic


def test_reading_ends_at_the_end_that_came_with_the_first_message() -> None:
    client = GrowingClient()
    assert read_stored(cast(Client, client), "shop", "shop") == (checkpoint(END), 0.0)
    assert client.topic.offset == END - 1
