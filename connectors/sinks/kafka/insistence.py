"""Calls to Kafka that are made again until they are answered, and what the log says meanwhile.

A client tries again by itself, and silently, what a broker refuses for want of in-sync replicas. So a call that waits
is looked into: by a thread of its own, since the cluster may leave that question without an answer, too.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Event, Thread
from typing import Any

import structlog
from confluent_kafka import KafkaError, KafkaException, Producer

from connectors.sinks.kafka.admin.topics import IN_SYNC_HINT, Found, Topic, read
from connectors.sinks.kafka.client import Client
from envelope.errors import ChangelogError

CALL_S = 4.0
"""How long one call waits for its answer; then the log says that it waits."""

SAY_AGAIN_S = 30.0
"""How often the log says it again while the same wait goes on."""

_TRANSACTIONS = Topic(name="__transaction_state", partitions=0, settings={})
"""Where the brokers keep the states of transactions: it has a `min.insync.replicas` of its own."""

_FULL_WAIT_S = 0.05

ProduceCall = tuple[Any, ...]
"""The arguments of `Producer.produce`: topic, value, key, partition, no callback twice, milliseconds, headers."""

_log = structlog.get_logger("kafka")


class Insistence:
    """Makes calls again, as they are, for `patience_s` seconds, which it asks for at each failure.

    `topics` gives those that are written to.
    """

    def __init__(self, client: Client, topics: Callable[[], Sequence[Topic]], patience_s: Callable[[], float]) -> None:
        self._client, self._topics, self._patience_s = client, topics, patience_s
        self._looking: Thread | None = None

    def insist(self, doing: str, call: Callable[[float], object]) -> None:
        """Makes a call, which is told how many seconds it may take, until it is answered or patience ends.

        `doing` is for the log, as in "committing to Kafka". Raises KafkaException.
        """
        began = say_at = time.monotonic()
        answered = Event()
        try:
            while True:
                try:
                    call(CALL_S)
                except KafkaException as error:
                    now = time.monotonic()
                    if not error.args[0].retriable() or now - began >= self._patience_s():
                        raise
                    if now >= say_at:
                        say_at = now + SAY_AGAIN_S
                        _log.warning("kafka does not answer yet", doing=doing, why=error.args[0].str())
                        self._look(answered)
                else:
                    return
        finally:
            answered.set()

    def _look(self, answered: Event) -> None:
        if self._looking is None or not self._looking.is_alive():
            self._looking = Thread(target=self._say_lacking, args=(answered,), name="kafka-replicas", daemon=True)
            self._looking.start()

    def _say_lacking(self, answered: Event) -> None:
        """Logs which topics lack in-sync replicas, unless the call has been `answered` by then."""
        lacking = {name: found for name, found in self._read().items() if found.may_lack_replicas}
        if not lacking or answered.is_set():
            return
        name, found = next(iter(lacking.items()))
        _log.warning(
            "kafka waits for in-sync replicas",
            topic=name,
            in_sync=found.in_sync,
            needed=found.in_sync_min,
            other_topics=len(lacking) - 1,
            hint=IN_SYNC_HINT,
        )

    def _read(self) -> dict[str, Found]:
        """The topics as they are, as far as the cluster answers and we may ask."""
        answers: dict[str, Found] = {}
        for topics in (self._topics(), [_TRANSACTIONS]):  # rights to the second are often missing
            with suppress(ChangelogError):
                answers |= read(self._client.admin(), topics)
        return answers


def queue(producer: Producer, call: ProduceCall, timeout_s: float) -> None:
    """Raises KafkaException, to be tried again, when the producer's queue is full all the while."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            producer.produce(*call)
        except BufferError as error:
            if time.monotonic() >= deadline:
                raise KafkaException(KafkaError(KafkaError._QUEUE_FULL, retriable=True)) from error
            producer.poll(_FULL_WAIT_S)
        else:
            return
