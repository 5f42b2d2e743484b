"""Retries calls to Kafka until Kafka answers them, and logs the wait.

If a topic has too few in-sync replicas, the client retries without saying why. So while a call waits, we ask the
cluster whether a topic has too few. A separate thread asks, because the cluster may not answer this question either.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Event, Thread

import structlog
from confluent_kafka import KafkaError, KafkaException, Producer

from changelog.connectors.kafka.client import Client
from changelog.connectors.sinks.kafka.admin.send_messages import ProduceCall
from changelog.connectors.sinks.kafka.admin.topics import IN_SYNC_HINT, Topic, TopicState, read
from changelog.envelope.errors import ChangelogError

CALL_S = 4.0
"""The seconds that one call waits for its answer. After that, the wait is logged and the call is repeated."""

LOG_AGAIN_S = 30.0
"""The seconds between two log lines about the same wait."""

_TRANSACTIONS = Topic(name="__transaction_state", partitions=0, settings={})
"""The topic in which brokers store the states of transactions; it has its own `min.insync.replicas`."""

_FULL_WAIT_S = 0.05

_log = structlog.get_logger("kafka")


class Insistence:
    """Retries a call for as many seconds as `patience_s` returns, counted from the first attempt.

    `patience_s` is called at each failure, so that a stopping service can shorten the time. `topics` returns the topics
    that are being written.
    """

    def __init__(self, client: Client, topics: Callable[[], Sequence[Topic]], patience_s: Callable[[], float]) -> None:
        self._client, self._topics, self._patience_s = client, topics, patience_s
        self._thread: Thread | None = None

    def insist(self, action: str, call: Callable[[float], object]) -> None:
        """Repeats `call` until it returns, or until the time is over. `call` receives a timeout in seconds.

        `action` describes the call in log lines, as in "committing to Kafka". Raises KafkaException when the time is
        over, or at once if repeating the call cannot help.
        """
        began = log_at = time.monotonic()
        answered = Event()
        try:
            while True:
                try:
                    call(CALL_S)
                except KafkaException as error:
                    now = time.monotonic()
                    if not error.args[0].retriable() or now - began >= self._patience_s():
                        raise
                    if now >= log_at:
                        log_at = now + LOG_AGAIN_S
                        _log.warning("kafka does not answer yet", doing=action, why=error.args[0].str())
                        self._start_thread(answered)
                else:
                    return
        finally:
            answered.set()

    def _start_thread(self, answered: Event) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = Thread(target=self._log_lacking, args=(answered,), name="kafka-replicas", daemon=True)
            self._thread.start()

    def _log_lacking(self, answered: Event) -> None:
        """Logs one topic that lacks in-sync replicas, and the number of other such topics.

        Logs nothing if the call was `answered` while the cluster was asked.
        """
        lacking = {name: state for name, state in self._topic_states().items() if state.may_lack_replicas}
        if not lacking or answered.is_set():
            return
        name, state = next(iter(lacking.items()))
        _log.warning(
            "kafka waits for in-sync replicas",
            topic=name,
            in_sync=state.in_sync,
            needed=state.in_sync_min,
            other_topics=len(lacking) - 1,
            hint=IN_SYNC_HINT,
        )

    def _topic_states(self) -> dict[str, TopicState]:
        """Asks the cluster for the states of the topics, in two requests. Leaves out the topics of a failed request."""
        answers: dict[str, TopicState] = {}
        # The requests are separate, because we often have no right to describe `__transaction_state`.
        for topics in (self._topics(), [_TRANSACTIONS]):
            with suppress(ChangelogError):
                answers |= read(self._client.admin(), topics)
        return answers


def queue(producer: Producer, call: ProduceCall, timeout_s: float) -> None:
    """Queues a message. Raises a retriable KafkaException if the producer's queue stays full for `timeout_s`."""
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
