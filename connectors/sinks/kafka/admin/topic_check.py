"""Compares the topics on the broker with their configuration, for `changelog check`."""

from collections.abc import Collection, Iterator, Mapping, Sequence

from changelog.connectors.findings import Finding, fail, ok, warn
from changelog.connectors.kafka.client import Client
from changelog.connectors.sinks.kafka.admin.topics import (
    AHEAD,
    IN_SYNC_HINT,
    MIN_IN_SYNC,
    Topic,
    TopicState,
    delta_topics_of,
    lost,
    read,
    refuse_resized,
)
from changelog.connectors.sinks.kafka.admin.topics import entities as entities_of
from changelog.envelope.errors import ChangelogError


def findings(
    client: Client,
    topics: Sequence[Topic],
    *,
    create: bool,
    started: Collection[str] = (),
    lag_s: float | None = None,
) -> Iterator[Finding]:
    """Yields the findings of `check`: first whether the broker was reached, and then findings about each topic.

    `create` says that the service may create missing topics. `started` names the topics of those entities that the
    changelog already has. `lag_s` is the changelog's lag in seconds, None if it is unknown.
    """
    try:
        states = read(client.admin(), topics)
    except ChangelogError as error:
        yield fail("kafka", error.message, error.hint or "start the broker, or correct [sink] bootstrap_servers")
        return
    yield ok("kafka", f"reached, at {client.bootstrap_servers}")
    for topic in topics:
        if topic.name in started and topic.name not in states:
            loss = lost(topic.name)
            yield fail(f"topic {topic.name}", loss.message, loss.hint or "")
        else:
            yield from _compared(topic, states.get(topic.name), create=create, lag_s=lag_s)


def delta_findings(client: Client, prefix: str, entities: Collection[str]) -> Iterator[Finding]:
    """Yields findings about the delta topics that exist.

    A missing delta topic is no fault: the Spark job that writes the deltas (docs/how-to/deltas.md) creates it.
    """
    admin = client.admin()
    parts = entities_of(admin, prefix)
    names = [name for entity in entities for name in dict(parts.get(entity, ()))]
    states = read(admin, [Topic(name=name, partitions=0, settings={}) for name in names])
    configured_topics = {topic.name: topic for topic in delta_topics_of(states)}
    for name, state in read(admin, configured_topics.values()).items():
        yield from _compared(configured_topics[name], state, create=True, lag_s=None)


def ended_findings(client: Client, prefix: str, entities: Collection[str]) -> Iterator[Finding]:
    """Yields a finding about each topic that a repartition has ended and that still exists."""
    parts = entities_of(client.admin(), prefix)
    for entity in entities:
        names = list(dict(parts.get(entity, ())))
        for name in names[:-1]:
            yield warn(
                f"topic {name}",
                f"has ended, and {entity} goes on in {names[-1]}; once Kafka removes the new topic's tombstones, "
                "a reader of both topics takes deleted rows for existing ones",
                "delete it once `changelog status` shows that the table is read, and all consumers read the new topic",
            )


def _compared(topic: Topic, state: TopicState | None, *, create: bool, lag_s: float | None) -> Iterator[Finding]:
    name = f"topic {topic.name}"
    if state is None:
        if create:
            yield ok(name, f"will be created, with {topic.partitions} partitions")
        else:
            yield fail(name, "does not exist", f"create it with {topic.partitions} partitions")
        return
    try:
        refuse_resized(topic, state)
    except ChangelogError as error:
        yield fail(name, error.message, error.hint or "")
        return
    drift = {
        key: value
        for key, value in topic.settings.items()
        if not _equal(state.settings.get(key), value) and (key != AHEAD or state.limits_time)
    }
    if drift:
        text = ", ".join(f"{key} is {state.settings.get(key)}, not {value}" for key, value in drift.items())
        yield warn(name, text, f"kafka-configs --alter --topic {topic.name} --add-config {_options(drift)}")
    else:
        yield ok(name, f"{state.partitions} partitions, set as configured")
    yield from _retention(name, state, lag_s)
    yield from _in_sync(name, state)


def _in_sync(name: str, state: TopicState) -> Iterator[Finding]:
    if state.lacks_replicas:
        text = f"a partition has {state.in_sync} in-sync replicas, and {MIN_IN_SYNC} is {state.in_sync_min}"
        yield fail(name, f"{text}: the service waits at each commit", IN_SYNC_HINT)
    elif state.may_lack_replicas:
        text = f"a partition has {state.replicas} replicas, and {MIN_IN_SYNC} is {state.in_sync_min}"
        hint = f"add replicas to the topic, or lower its {MIN_IN_SYNC}"
        yield warn(name, f"{text}: brokers before Kafka 4.1 may refuse every message", hint)


def _retention(name: str, state: TopicState, lag_s: float | None) -> Iterator[Finding]:
    """Warns if the changelog lags by more than half of the topic's retention.

    A message has the time of the commit in the database. So if the changelog lags far behind the database, a message
    may be expired as soon as it is stored.
    """
    if "delete" not in state.settings.get("cleanup.policy", "") or lag_s is None:
        return
    retention_s = int(state.settings.get("retention.ms", "-1")) / 1000
    if 0 < retention_s / 2 < lag_s:
        yield warn(
            name,
            f"the changelog lags by {lag_s / 3600:.1f} h, and the topic deletes messages after "
            f"{retention_s / 3600:.1f} h",
            "start the service, or raise retention_days",
        )


def _equal(actual: str | None, configured: str) -> bool:
    try:
        return actual is not None and float(actual) == float(configured)
    except ValueError:
        return actual == configured


def _options(settings: Mapping[str, str]) -> str:
    return ",".join(f"{key}=[{value}]" if "," in value else f"{key}={value}" for key, value in settings.items())
