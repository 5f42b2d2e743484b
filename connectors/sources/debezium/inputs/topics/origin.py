"""Inspects and opens the Kafka topics that the configuration names; see `ConfiguredInput` in the package `inputs`."""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import ConfigResource, ResourceType

from changelog.connectors.findings import Finding, fail, ok, warn
from changelog.connectors.kafka.client import TIMEOUT_S, Admin, error_of
from changelog.connectors.kafka.offsets import begins, ends
from changelog.connectors.sources import Hold, Remnant
from changelog.connectors.sources.debezium.inputs import AfterGap, Declared
from changelog.connectors.sources.debezium.inputs.topics.cluster import read_states, read_topics
from changelog.connectors.sources.debezium.inputs.topics.lineage import (
    ORDER_HINT,
    InputTopics,
    offsets_over_gap,
    order_problem,
    part_name,
    part_of,
    problems,
)
from changelog.connectors.sources.debezium.inputs.topics.reader import TopicsInput
from changelog.connectors.sources.debezium.inputs.topics.sampling import samples
from changelog.connectors.sources.debezium.inputs.topics.settings import TopicsSettings
from changelog.connectors.sources.debezium.tables import Sampled, Translate, has_change, sampled
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.errors import OVER_GAP, ChangelogError, Kind

GROUP = "group"
"""The kind of `Remnant` for the consumer group, the only thing that reading the topics creates in Kafka. Tools see from
the group's offsets how far the service has read.
"""

_ABSENT = {KafkaError.GROUP_ID_NOT_FOUND}


class TopicsOrigin:
    """The topics that `settings` name; see `changelog.connectors.sources.debezium.inputs.ConfiguredInput`."""

    name = "topics"
    samples = True

    def __init__(self, settings: TopicsSettings) -> None:
        self._settings = settings

    def open(self, checkpoint: Checkpoint | None) -> TopicsInput:
        """See `ConfiguredInput.open`."""
        source = {} if checkpoint is None else checkpoint.source
        return TopicsInput(self._settings, source.get("identity"), source.get("progress"), source.get("ahead", ()))

    def sampled(self, translate: Translate, declared: Declared) -> Sampled:
        """See `ConfiguredInput.sampled`: the tables in the last messages of the topics."""
        admin = self._settings.client.admin()
        states = read_states(admin, self._settings)
        tables = {name: state for name, state in states.items() if name != self._settings.transactions}
        topics = InputTopics(states=tables, begins={}, ends={})
        first, last = begins(admin, topics.parts), ends(admin, topics.parts)
        counts = Counter[str]()
        for topic, number in topics.parts:
            counts[topic] += last[topic, number] - first[topic, number]
        return sampled(
            samples(self._settings, topics.parts, partial(has_change, translate=translate)),
            translate,
            counts=counts,
            partitions={name: state.partitions for name, state in topics.states.items()},
            declared=declared,
        )

    def left(self, checkpoint: Checkpoint) -> int:
        """See `ConfiguredInput.left`."""
        parts = {part_of(name): int(offset) for name, offset in checkpoint.source.get("progress", {}).items()}
        admin = self._settings.client.admin()
        present = set(InputTopics(states=read_states(admin, self._settings), begins={}, ends={}).parts)
        last = ends(admin, [part for part in parts if part in present])
        return sum(max(end - parts[part], 0) for part, end in last.items())

    def is_lost(self, checkpoint: Checkpoint) -> bool:
        """See `ConfiguredInput.is_lost`."""
        return bool(self._problems(read_topics(self._settings.client.admin(), self._settings), checkpoint))

    def _problems(self, topics: InputTopics, checkpoint: Checkpoint) -> Sequence[str]:
        identity, progress = checkpoint.source.get("identity"), checkpoint.source.get("progress")
        configured = {topic for topic in identity or {} if self._settings.matches(topic)}
        return problems(identity, progress, topics, configured)

    def findings(self, checkpoint: Checkpoint | None) -> Sequence[Finding]:
        """See `ConfiguredInput.findings`."""
        admin = self._settings.client.admin()
        topics = read_topics(admin, self._settings)
        return [*self._topics(topics), *_compacted(admin, topics), self._continues(topics, checkpoint)]

    def _topics(self, topics: InputTopics) -> Iterator[Finding]:
        name = "topics"
        if not topics.states:
            patterns = " ".join(self._settings.include)
            hint = "correct [source.topics] include, let Debezium publish an event, or let our user describe topics"
            yield fail(name, f"no topic matches {patterns}", hint)
            return
        yield ok(name, f"{len(topics.states)} topics with {len(topics.parts)} partitions")
        for pattern in self._settings.include:
            only = TopicsSettings(client=self._settings.client, include=(pattern,), group=self._settings.group)
            if not any(map(only.matches, topics.states)):
                hint = "a topic that matches later is read as soon as it exists"
                yield warn(name, f"no topic matches {pattern} yet", hint)
        yield from self._boundaries(topics)

    def _boundaries(self, topics: InputTopics) -> Iterator[Finding]:
        name, topic = "transactions", self._settings.transactions
        problem = order_problem(topic, topics.states)
        if problem is not None:
            yield fail(name, problem, ORDER_HINT)
        elif topic is not None and topic not in topics.states:
            hint = "set provide.transaction.metadata = true in Debezium, or leave out [source.topics] transactions"
            yield warn(name, f"there is no topic {topic} yet, so transactions are published as they arrive", hint)
        elif topic is not None:
            yield ok(name, f"each transaction is published as a whole; topic {topic} has its BEGIN and its END")

    def _continues(self, topics: InputTopics, checkpoint: Checkpoint | None) -> Finding:
        name = "offsets"
        if checkpoint is None:
            return ok(name, "the changelog will begin with the oldest event of each partition")
        lines = self._problems(topics, checkpoint)
        if lines:
            return fail(name, "; ".join(lines), OVER_GAP)
        return ok(name, "the topics have all events that follow the end of the changelog")

    def after_gap(self, checkpoint: Checkpoint | None, *, again: bool) -> AfterGap:
        """See `ConfiguredInput.after_gap`: a partition that lost nothing continues at its next event. Any other
        partition is read from its beginning.
        """
        topics = read_topics(self._settings.client.admin(), self._settings)
        source = {} if checkpoint is None or again else checkpoint.source
        offsets = offsets_over_gap(source.get("identity", {}), source.get("progress", {}), topics)
        return AfterGap(
            identity={name: state.to_json() for name, state in topics.states.items()},
            progress={part_name(part): offset for part, offset in offsets.items()},
        )

    def hold(self) -> Hold:
        """See `ConfiguredInput.hold`: topics keep messages for a fixed time, whether or not anyone has read them."""
        return Hold(
            kind="topics",
            name=" ".join(self._settings.include),
            reader=None,
            condition="kept",
            is_lost=False,
            confirmed="",
            nbytes=None,
            xids=None,
        )

    def facts(self, checkpoint: Checkpoint | None) -> Sequence[tuple[str, str]]:
        """See `ConfiguredInput.facts`."""
        topics = read_topics(self._settings.client.admin(), self._settings)
        spans = {part: f"offsets {topics.begins[part]} to {topics.ends[part]}" for part in topics.parts}
        facts = [("topic", f"{name}, partition {number}: {span}") for (name, number), span in spans.items()]
        if checkpoint is None:
            return facts
        reached = ", ".join(f"{part} at {offset}" for part, offset in checkpoint.source.get("progress", {}).items())
        return [("", f"has the events before {reached}" if reached else "has no events yet"), *facts]

    def remnants(self) -> Sequence[Remnant]:
        """See `ConfiguredInput.remnants`."""
        return [Remnant(kind=GROUP, name=self._settings.group, exists=self._group_exists())]

    def _group_exists(self) -> bool:
        admin = self._settings.client.admin()
        try:
            groups = admin.list_consumer_groups(request_timeout=TIMEOUT_S).result().valid
        except KafkaException as error:
            raise error_of(error.args[0], "asking Kafka for consumer groups") from error
        return any(group.group_id == self._settings.group for group in groups or ())

    def drop(self, kind: str) -> None:
        """See `ConfiguredInput.drop`."""
        if kind != GROUP:
            raise ChangelogError(Kind.USAGE, f"to read topics, the service creates no {kind}, only a consumer group")
        group, admin = self._settings.group, self._settings.client.admin()
        for future in admin.delete_consumer_groups([group]).values():
            try:
                future.result()
            except KafkaException as error:
                if error.args[0].code() not in _ABSENT:
                    raise error_of(error.args[0], f"deleting the consumer group {group}") from error


def _compacted(admin: Admin, topics: InputTopics) -> Iterator[Finding]:
    """Warns of compacted topics: they keep only the last event of each key, so an earlier event may be gone before it
    is read.
    """
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in topics.states]
    compacted = []
    for resource, future in (admin.describe_configs(resources) if resources else {}).items():
        try:
            policy = future.result()["cleanup.policy"].value or ""
        except KafkaException:  # our user may lack the right to read the topic's settings
            continue
        if "compact" in policy:
            compacted.append(resource.name)
    if compacted:
        others = f" and {len(compacted) - 1} more" if len(compacted) > 1 else ""
        yield warn(
            "compaction",
            f"topic {compacted[0]}{others} may lose events before they are read: its cleanup.policy is compact",
            "set cleanup.policy=delete, or a min.compaction.lag.ms above the longest time that the service is stopped",
        )
