"""Decides at which offset the reading of each partition begins, and whether the topics still continue the changelog.

A restart must continue exactly after the last stored message. This is impossible if the messages after that one are
gone, or if the topic was created again. It is also impossible if the topic has more partitions than before: then the
events of a key may be in two partitions, and their order is unknown.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from changelog.connectors.kafka.offsets import Part
from changelog.connectors.sources.debezium.inputs import Progress
from changelog.envelope.errors import OVER_GAP, ChangelogError, Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class InputTopic:
    """A topic, with the number of its partitions. `id` is empty if the broker gives topics no ids."""

    id: str
    partitions: int

    def to_json(self) -> dict[str, Any]:
        """Returns the form that a checkpoint stores."""
        return {"id": self.id, "partitions": self.partitions}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Returns the topic from the result of `to_json`."""
        return cls(id=value["id"], partitions=value["partitions"])


@dataclass(frozen=True, slots=True, kw_only=True)
class InputTopics:
    """The topics as they are now.

    `begins` has the first offset of each partition, and `ends` has the offset after its last message. The last message
    may belong to a transaction that is still open.
    """

    states: Mapping[str, InputTopic]
    begins: Mapping[Part, int]
    ends: Mapping[Part, int]

    @property
    def parts(self) -> list[Part]:
        """All partitions."""
        return [(name, number) for name, state in self.states.items() for number in range(state.partitions)]


def part_name(part: Part) -> str:
    """Returns the name of a partition in a checkpoint."""
    return f"{part[0]}/{part[1]}"


def part_of(name: str) -> Part:
    """Returns the partition from the result of `part_name`."""
    topic, _, number = name.rpartition("/")
    return topic, int(number)


def changes(old_topics: Mapping[str, InputTopic], present: Mapping[str, InputTopic]) -> Iterator[str]:
    """Yields what has changed, for each known topic that is no longer the same."""
    for name, before in sorted(old_topics.items()):
        now = present.get(name)
        if now is None:
            yield f"topic {name} is gone"
        elif before.id and now.id and before.id != now.id:
            yield f"topic {name} was deleted and created again"
        elif before.partitions != now.partitions:
            yield (
                f"topic {name} has {now.partitions} partitions, and had {before.partitions} when its events were "
                "published, so the order of a key's events is unknown"
            )


def losses(progress: Mapping[Part, int], topics: InputTopics) -> Iterator[str]:
    """Describes what is lost, for each partition whose present offsets no longer include the stored progress."""
    for part, offset in sorted(progress.items()):
        topic, number = part
        begin, end = topics.begins.get(part), topics.ends.get(part)
        if begin is None or end is None:
            continue
        if begin > offset:
            yield (
                f"partition {number} of topic {topic} begins at offset {begin}, but the changelog continues at "
                f"offset {offset}; offsets lost: {begin - offset}"
            )
        elif offset > end:
            yield (
                f"partition {number} of topic {topic} ends at offset {end}, but the changelog continues at offset "
                f"{offset}: the topic has lost its newest messages"
            )


def problems(
    identity: Mapping[str, Any] | None, progress: Progress | None, topics: InputTopics, configured: Collection[str]
) -> list[str]:
    """Returns the reasons why the topics do not continue the changelog, in one line each.

    `identity` and `progress` are those in the changelog's checkpoint. `configured` has the stored topics that the
    configuration still names. The other stored topics are no longer read, and may have changed.
    """
    old_topics = {name: InputTopic.from_json(value) for name, value in (identity or {}).items() if name in configured}
    changed = list(changes(old_topics, topics.states))
    progress_by_part = {part_of(name): int(offset) for name, offset in (progress or {}).items()}
    return changed or list(
        losses({part: offset for part, offset in progress_by_part.items() if part[0] in old_topics}, topics)
    )


def order_problem(topic: str | None, states: Mapping[str, InputTopic]) -> str | None:
    """Returns why a topic does not tell the order of transactions; None if it does, or does not exist yet."""
    state = None if topic is None else states.get(topic)
    if state is None or state.partitions == 1:
        return None
    return f"topic {topic} has {state.partitions} partitions, so it does not tell the order of transactions"


ORDER_HINT = "create the topic again with one partition, or leave out [source.topics] transactions"


def refuse(lines: Collection[str]) -> None:
    """Raises ChangelogError (GAP) if there are problems. The message has the first problem."""
    if lines:
        first, more = next(iter(lines)), len(lines) - 1
        others = f" (and {more} more)" if more else ""
        raise ChangelogError(Kind.GAP, f"{first}{others}", hint=OVER_GAP)


def offsets(progress: Progress, topics: InputTopics) -> dict[Part, int]:
    """Returns the offset at which the reading of each partition begins: the stored one, or the partition's first."""
    progress_by_part = {part_of(name): int(offset) for name, offset in progress.items()}
    return {part: progress_by_part.get(part, topics.begins[part]) for part in topics.parts}


def offsets_over_gap(identity: Mapping[str, Any], progress: Progress, topics: InputTopics) -> dict[Part, int]:
    """Returns the offset at which the reading of each partition begins after a gap.

    A partition that still has the next message continues there. Any other partition is read from its beginning.
    """
    old_topics = {name: InputTopic.from_json(value) for name, value in identity.items()}
    intact = {name for name, state in old_topics.items() if topics.states.get(name, state).id == state.id}
    progress_by_part = {part_of(name): int(offset) for name, offset in progress.items()}
    return {
        part: progress_by_part[part]
        if part[0] in intact
        and part in progress_by_part
        and topics.begins[part] <= progress_by_part[part] <= topics.ends[part]
        else topics.begins[part]
        for part in topics.parts
    }
