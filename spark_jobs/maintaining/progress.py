"""Defines the progress of a maintained view: its definition, and how far it has followed the changelog."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from changelog.connectors.sinks.kafka.admin.names import first_topic
from changelog.envelope.errors import ChangelogError, Kind

FORMAT: Final = 1
FORMAT_WAITING: Final = 2
"""The format of a progress with waiting changes (see `WaitingChanges`). Older versions of the program refuse it,
because they would lose these changes.
"""

TOPICS: Final = "topics"
"""The member of a view's definition that has the ids of the topics, by name, if the changelog is on Kafka."""

REBUILD: Final = "run the job once with --rebuild: it builds the view again from the beginning of the changelog"


Checkpoint = Mapping[str, Any]
"""A point in a changelog: a position in a file log, or the next offsets of Kafka's topics. The beginning of the
changelog is an empty mapping."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingChanges:
    """Describes the waiting changes of a throttled service: they are not applied yet, although the view may already
    have later changes of other services.

    No change up to the checkpoint `after` waits. The service's later changes are applied window by window.
    `window_end` is the checkpoint at which the present window ends; None if no window has begun. In the window, the
    changes up to `position` have been applied. All later changes of the service wait. `changes` is their number.
    """

    service: str
    changes: int
    after: Checkpoint
    window_end: Checkpoint | None = None
    position: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewProgress:
    """A view's definition, and how far the view has followed the changelog.

    All changes up to `checkpoint` have been applied, except those that wait. `truncated` has the position of each
    entity's last truncate. Changes of the entity before this position are ignored. A run may still read such changes
    after the truncate, because it reads partitions in any order.
    """

    format: int = FORMAT
    definition: Mapping[str, object]
    checkpoint: Checkpoint = field(default_factory=dict)
    truncated: Mapping[str, str] = field(default_factory=dict)
    waiting: WaitingChanges | None = None

    def to_json(self) -> str:
        """Returns the text that a target stores."""
        format_ = FORMAT if self.waiting is None else FORMAT_WAITING
        return msgspec.json.encode({"maintained": replace(self, format=format_)}).decode()


class _Stored(msgspec.Struct):
    maintained: ViewProgress


def parse(text: str, target: str) -> ViewProgress:
    """Parses the text that a target has stored.

    Raises ChangelogError: USAGE if this job did not write the text, PRECONDITION if a newer version wrote it.
    """
    try:
        progress = msgspec.json.decode(text, type=_Stored).maintained
    except msgspec.DecodeError:
        hint = "use another --to: this job changes only views that it made"
        raise ChangelogError(Kind.USAGE, f"{target} is not a view that this job made", hint=hint) from None
    if progress.format > FORMAT_WAITING:
        raise ChangelogError(Kind.PRECONDITION, f"{target} was made by a newer program", hint="upgrade this program")
    return progress


def refuse_other(progress: ViewProgress, definition: Mapping[str, object], target: str) -> None:
    """Raises ChangelogError (USAGE) if the stored view has another definition than this one."""
    differing = sorted(
        name for name in {*progress.definition, *definition} if progress.definition.get(name) != definition.get(name)
    )
    if differing:
        raise ChangelogError(
            Kind.USAGE,
            f"{target} is a view whose definition differs in: {', '.join(differing)}",
            hint=f"use another --to, or {REBUILD}",
        )


def with_topics(progress: ViewProgress, definition: Mapping[str, object]) -> ViewProgress:
    """Returns the progress with the topics in `definition`, if these are topics of the same entities and changelog.

    So a view can continue after a repartition, which adds a topic, and after the old topic is deleted. In two cases,
    the progress is returned unchanged, so `refuse_other` refuses the view:

    - A topic has another id in `definition`, because it was deleted and created again.
    - For some entity, the progress and `definition` have no topic in common, because the old topic was deleted before a
      run knew the new one.
    """
    before, now = progress.definition.get(TOPICS), definition.get(TOPICS)
    if not isinstance(before, dict) or not isinstance(now, dict):
        return progress
    common = before.keys() & now.keys()
    has_each_entity = {first_topic(name) for name in common} == {first_topic(name) for name in (*before, *now)}
    if not has_each_entity or any(before[name] != now[name] for name in common):
        return progress
    return replace(progress, definition={**progress.definition, TOPICS: now})
