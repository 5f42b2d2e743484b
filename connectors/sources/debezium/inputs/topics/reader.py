"""Reads committed messages of topics, from the offsets of a checkpoint. The consumer joins no consumer group.

It only commits its offsets under the name of a group, so that tools can show its lag.
"""

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, cast

import structlog
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as KafkaMessage

from changelog.connectors.kafka.client import error_of, translated
from changelog.connectors.kafka.offsets import Part, ends
from changelog.connectors.sources.debezium.inputs import Batch, Placed, Progress, Span
from changelog.connectors.sources.debezium.inputs.topics.cluster import read_states, read_topics
from changelog.connectors.sources.debezium.inputs.topics.lineage import (
    ORDER_HINT,
    InputTopic,
    changes,
    offsets,
    order_problem,
    part_name,
    part_of,
    problems,
    refuse,
)
from changelog.connectors.sources.debezium.inputs.topics.messages import message_of, size
from changelog.connectors.sources.debezium.inputs.topics.settings import TopicsSettings
from changelog.envelope.errors import ChangelogError, Kind

CHECK_INTERVAL_S = 10.0
"""The seconds between two checks of the topics: whether there are new topics, and whether the known topics have
changed.

Only this check shows that a topic was created again, or has more partitions. It also shows that no broker answers: a
consumer would wait for the brokers without an error.
"""

MESSAGES_MAX, BYTES_MAX = 8192, 8 << 20
"""A batch ends once it has at least this many messages or bytes."""

_STEP = 512
_SILENCE_S = 30.0

_DEFAULTS: Mapping[str, Any] = {
    "queued.max.messages.kbytes": 16 << 10,  # shared by all partitions of a consumer; the default is 64 MiB
    "fetch.queue.backoff.ms": 20,
}

_log = structlog.get_logger("debezium")


class TopicsInput:
    """The opened input that reads from topics; see `changelog.connectors.sources.debezium.inputs.Input`.

    `identity`, `progress` and `ahead` come from the checkpoint; `identity` and `progress` are None for a new changelog.
    `ahead` names the messages that were read, but not published because an error stopped the source. `read` returns
    them first, in the order that `ahead` gives. The constructor raises ChangelogError: GAP if the topics do not
    continue the changelog, and the errors of connecting.
    """

    def __init__(
        self,
        settings: TopicsSettings,
        identity: Mapping[str, Any] | None,
        progress: Progress | None,
        ahead: Sequence[Span] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._clock = settings, clock
        self._admin = settings.client.admin()
        topics = read_topics(self._admin, settings)
        configured = {name for name in identity or {} if settings.matches(name)}
        refuse(problems(identity, progress, topics, configured))
        problem = order_problem(settings.transactions, topics.states)
        if problem is not None:
            raise ChangelogError(Kind.PRECONDITION, problem, hint=ORDER_HINT)
        self._states: Mapping[str, InputTopic] = topics.states
        self.identity: Mapping[str, Any] = {name: state.to_json() for name, state in topics.states.items()}
        self._first_offsets = offsets(progress or {}, topics)
        self._reached = dict(self._first_offsets)
        self._behind, self._paused = set(self._first_offsets), frozenset[Part]()
        self._ahead = [(part_of(part), int(end)) for part, _, end in ahead if part_of(part) in self._first_offsets]
        self._buffer: deque[Placed] = deque()
        self._next_check_at = clock() + CHECK_INTERVAL_S
        self._may_commit = True
        self._confirmed: Progress = {}
        self._consumer = settings.client.reader(
            group=settings.group,
            defaults=_DEFAULTS,
            # By default, a consumer whose offset is gone would silently continue at another offset.
            auto_offset_reset="error",
        )
        with translated("reading topics"):
            self._consumer.assign([TopicPartition(*part, offset) for part, offset in self._first_offsets.items()])
        _log.info("reading topics", topics=len(self._states), partitions=len(self._first_offsets))

    @property
    def progress(self) -> Progress:
        """See `Input`."""
        return {part_name(part): offset for part, offset in self._first_offsets.items()}

    def read(self, timeout_s: float, gather_s: float) -> Batch:
        """See `Input`. Raises ChangelogError (ALTERED) if there are new topics, so that the source opens again."""
        self._check_if_due()
        if self._ahead:
            return Batch(placed=self._read_ahead(), more=True, in_order=True)
        if self._buffer:
            placed, self._buffer = list(self._buffer), deque()
            return self._batch(placed, more=True)
        return self._gathered(timeout_s, gather_s)

    def _gathered(self, timeout_s: float, gather_s: float) -> Batch:
        if not self._first_offsets:
            time.sleep(timeout_s)  # a consumer without partitions must not be polled
            return Batch(placed=())
        placed = new = self._polled(timeout_s)
        deadline, nbytes = time.monotonic() + gather_s, 0
        while new:
            nbytes += sum(size(item.message) for item in new)
            if len(placed) >= MESSAGES_MAX or nbytes >= BYTES_MAX:
                return self._batch(placed, more=True)
            new = self._polled(max(deadline - time.monotonic(), 0.0))
            placed = [*placed, *new]
        return self._batch(placed)

    def _batch(self, placed: Sequence[Placed], *, more: bool = False) -> Batch:
        return Batch(placed=placed, more=more, behind=frozenset(map(part_name, self._behind)))

    def _polled(self, timeout_s: float) -> list[Placed]:
        with translated("reading topics"):
            first = self._consumer.poll(timeout_s)
            answers = [] if first is None else [first, *self._consumer.consume(_STEP, 0)]
        return [placed for answer in answers if (placed := self._placed(answer)) is not None]

    def _placed(self, answer: KafkaMessage) -> Placed | None:
        """Returns the client's answer as a `Placed`, whose steps are the offsets by which the part advanced; None if it
        did not advance.

        An answer is a message, or says that a partition was read to its end. That end may be several offsets after the
        last message, because the end of a Kafka transaction takes up an offset without a message.
        """
        part, error = (answer.topic() or "", cast(int, answer.partition())), answer.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            self._raise(error)
            return None
        (self._behind.add if error is None else self._behind.discard)(part)
        after = cast(int, answer.offset()) + (error is None)
        steps = after - self._reached.get(part, after)
        if steps <= 0:
            return None
        self._reached[part] = after
        message = None if error is not None else message_of(answer)
        return Placed(part=part_name(part), message=message, after=after, steps=steps)

    def _raise(self, error: KafkaError) -> None:
        if error.code() == KafkaError._AUTO_OFFSET_RESET:  # the next opening finds which offsets are lost
            raise ChangelogError(Kind.ALTERED, f"reading topics: {error.str()}")
        if not error.retriable() and error.code() != KafkaError._ALL_BROKERS_DOWN:
            raise error_of(error, "reading topics")

    def _read_ahead(self) -> list[Placed]:
        """Reads the messages that `ahead` names, and returns them in the order of `ahead`.

        Messages that retention or compaction has removed in the meantime are missing.
        """
        offsets: dict[Part, int] = {}
        for part, end in self._ahead:
            offsets[part] = max(end, offsets.get(part, 0))
        arrived: dict[Part, deque[Placed]] = {part: deque() for part in offsets}
        others: list[Placed] = []
        deadline = time.monotonic() + _SILENCE_S
        while any(self._reached[part] < end for part, end in offsets.items()):
            new = self._polled(1.0)
            for placed in new:
                arrived.get(part_of(placed.part), others).append(placed)
            if new:
                deadline = time.monotonic() + _SILENCE_S
            elif time.monotonic() >= deadline:
                raise ChangelogError(Kind.CONNECTION, f"reading topics: Kafka has been silent for {_SILENCE_S:.0f} s")
        in_order: list[Placed] = []
        for part, end in self._ahead:
            queue = arrived[part]
            while queue and queue[0].after <= end:
                in_order.append(queue.popleft())
        self._ahead = []
        self._buffer.extend(placed for queue in arrived.values() for placed in queue)
        self._buffer.extend(others)
        return in_order

    def _check_if_due(self) -> None:
        """Checks the topics every `CHECK_INTERVAL_S` seconds.

        At each check, commits the last offsets once more, because the previous commit may have been lost. Raises
        ChangelogError: GAP if a known topic has changed, ALTERED if there is a new topic.
        """
        if self._clock() < self._next_check_at:
            return
        self._next_check_at = self._clock() + CHECK_INTERVAL_S
        self._commit()
        present = read_states(self._admin, self._settings)
        refuse(list(changes(self._states, present)))
        new = sorted(present.keys() - self._states.keys())
        if new:
            raise ChangelogError(Kind.ALTERED, f"there is a new topic {new[0]}")

    def pause(self, parts: Collection[str]) -> None:
        """See `Input`."""
        paused = frozenset(map(part_of, parts))
        with translated("reading topics"):
            self._consumer.resume([TopicPartition(*part) for part in self._paused - paused])
            self._consumer.pause([TopicPartition(*part) for part in paused - self._paused])
        self._paused = paused

    def settle(self) -> None:
        """See `Input`: does nothing, because the constructor has checked that the input can continue."""

    def left(self, progress: Progress) -> int:
        """See `Input`. Topics that did not exist when the input was opened are not counted."""
        present = ends(self._admin, list(self._first_offsets))
        return sum(max(present[part] - int(progress[part_name(part)]), 0) for part in self._first_offsets)

    def confirm(self, progress: Progress, steps: int) -> None:  # noqa: ARG002 - a group stores only offsets
        """See `Input`: commits the offsets under the name of the group. If the client refuses, warns, and commits no
        more.
        """
        self._confirmed = progress
        self._commit()

    def _commit(self) -> None:
        if not self._may_commit or not self._confirmed:
            return
        parts = [TopicPartition(*part_of(name), int(offset)) for name, offset in self._confirmed.items()]
        try:
            self._consumer.commit(offsets=parts, asynchronous=True)
        except KafkaException as error:
            self._may_commit = False
            hint = "tools that show the lag of groups will not show this service"
            _log.warning("offsets are not committed", group=self._settings.group, why=error.args[0].str(), hint=hint)

    def close(self) -> None:
        """See `Input`."""
        self._consumer.close()
