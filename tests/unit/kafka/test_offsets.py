"""Tests when partitions' leaders are asked for offsets again, and what an unknown offset means. No broker runs here."""

import itertools
from collections.abc import Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition

from changelog.connectors.kafka import offsets
from changelog.connectors.kafka.client import Admin
from changelog.envelope.errors import ChangelogError, Kind

PART = ("order", 0)


class Brokers:
    """Stands in for an admin client. Each request for offsets gets the next answer; the last answer is repeated."""

    def __init__(self, answers: Sequence[int | KafkaError]) -> None:
        self._answers = list(answers)
        self.calls: list[str] = []
        self.timeouts_s: list[float] = []

    def await_answer(self, _action: str) -> None:
        pass

    def refresh(self, timeout_s: float) -> None:
        self.calls.append("refresh")

    def list_offsets(
        self, requests: dict[TopicPartition, Any], *, request_timeout: float, **_: object
    ) -> dict[TopicPartition, Future[Any]]:
        self.calls.append("offsets")
        self.timeouts_s.append(request_timeout)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        future: Future[Any] = Future()
        if isinstance(answer, KafkaError):
            future.set_exception(KafkaException(answer))
        else:
            future.set_result(SimpleNamespace(offset=answer))
        return dict.fromkeys(requests, future)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsets, "_ASK_AGAIN_S", 0.001)
    monkeypatch.setattr(offsets, "TIMEOUT_S", 0.1)


def ends(brokers: Brokers) -> dict[offsets.Part, int]:
    return offsets.ends(cast(Admin, brokers), [PART])


def test_an_unknown_offset_is_not_an_end() -> None:
    brokers = Brokers([OFFSET_INVALID, 7])
    assert ends(brokers) == {PART: 7}
    assert brokers.calls == ["offsets", "refresh", "offsets"]
    with pytest.raises(
        ChangelogError, match="asking Kafka for offsets: the leader of partition order-0 does not"
    ) as caught:
        ends(Brokers([OFFSET_INVALID]))
    assert caught.value.kind is Kind.CONNECTION


def test_no_message_since_a_time_is_not_an_unknown_offset() -> None:
    assert offsets.since(cast(Admin, Brokers([OFFSET_INVALID, -1])), {PART: 5}) == {PART: None}


def test_who_leads_a_partition_is_asked_again_after_an_error() -> None:
    brokers = Brokers([KafkaError(KafkaError.FENCED_LEADER_EPOCH), 7])
    assert ends(brokers) == {PART: 7}
    assert brokers.calls == ["offsets", "refresh", "offsets"]


def test_later_requests_may_take_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = itertools.count(step=4)  # each look at the clock is 4 s after the one before
    monkeypatch.setattr(offsets, "TIMEOUT_S", 15.0)
    monkeypatch.setattr(offsets, "time", SimpleNamespace(monotonic=lambda: next(seconds), sleep=lambda _: None))
    brokers = Brokers([OFFSET_INVALID])
    with pytest.raises(ChangelogError):
        ends(brokers)
    assert brokers.timeouts_s == [5.0, 15.0]


def test_a_refusal_is_not_repeated() -> None:
    brokers = Brokers([KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), 7])
    with pytest.raises(ChangelogError) as caught:
        ends(brokers)
    assert (caught.value.kind, brokers.calls) == (Kind.ACCESS, ["offsets"])
    assert isinstance(caught.value.__cause__, KafkaException)
