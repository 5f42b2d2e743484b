"""Finds the offsets at which a job must continue in the changelog's topics, and checks that Kafka still has the
messages from there on.

Not every offset has a message: the ends of transactions have offsets, too, and compaction removes messages. So jobs do
not count messages. They work with *spans*: a span goes from one offset to another, however many messages are between
them.
"""

import json
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from changelog.connectors.kafka.client import Admin, Client
from changelog.connectors.kafka.offsets import Part, begins, ends, since
from changelog.connectors.sinks.kafka.admin import topics
from changelog.connectors.sinks.kafka.admin.topics import Topic
from changelog.envelope.entity import OF_CHANGELOG, RESERVED
from changelog.envelope.errors import ChangelogError, Kind

Offsets = Mapping[str, Mapping[str, int]]
"""The next offset to read, by topic and partition. The number of a partition is a text, so that this can be JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetSpan:
    """A range of offsets in one partition. It begins with `first`, and ends before `end`.

    `after` is the offset at which the previous run ended, or None in the first run. It equals `first` unless Kafka has
    lost messages since.
    """

    first: int
    end: int
    after: int | None


Spans = Mapping[Part, OffsetSpan]


def entities(admin: Admin, prefix: str, names: Iterable[str] | None = None) -> dict[str, list[Part]]:
    """Returns the partitions of each entity that has a topic. `schemas` and `gaps` count as entities. With `names`,
    returns only the partitions of these entities.

    Raises ChangelogError: PRECONDITION if no entity has a topic, USAGE if one of `names` has none.
    """
    reserved = RESERVED - OF_CHANGELOG
    parts = {name: parts for name, parts in topics.entities(admin, prefix).items() if name not in reserved}
    if not parts.keys() - OF_CHANGELOG:
        hint = "`changelog run` creates them; check [sink] prefix"
        raise ChangelogError(Kind.PRECONDITION, f"there is no topic of the changelog {prefix}", hint=hint)
    if names is None:
        return parts
    _refuse_unknown(names, parts)
    return {name: parts[name] for name in names}


def unread(
    client: Client, prefix: str, offsets: Offsets, *, skip: Collection[str] = (), lost: bool = False
) -> dict[Part, OffsetSpan]:
    """Returns a span for each partition: from the partition's offset in `offsets` to the end of its committed messages.

    If a partition has no offset in `offsets`, its span begins at its first message. Spans may be empty. The entities in
    `skip` are left out. Raises ChangelogError: GAP (*history lost*) if `lost` is false, and messages from these offsets
    on are gone or may have been compacted away; USAGE if an entity in `skip` has no topic.
    """
    admin = client.admin()
    existing = entities(admin, prefix)
    _refuse_unknown({*skip} - OF_CHANGELOG, existing)
    parts = [part for entity, entity_parts in existing.items() if entity not in skip for part in entity_parts]
    first, end = begins(admin, parts), ends(admin, parts)
    next_offsets = {part: offsets.get(part[0], {}).get(str(part[1])) for part in parts}
    spans = {}
    for part, next_ in next_offsets.items():
        if next_ is not None and not lost:
            _refuse_lost(part, next_, first[part], end[part])
        begin = first[part] if next_ is None or not first[part] <= next_ <= end[part] else next_
        spans[part] = OffsetSpan(first=begin, end=end[part], after=next_)
    if not lost:
        _refuse_compacted(admin, spans)
    return spans


def slices(spans: Spans, rows_max: int) -> Iterable[dict[Part, OffsetSpan]]:
    """Divides the spans into slices of about `rows_max` offsets, so that they can be read one slice after another.

    Empty spans are left out, except in a first run: there, a job needs them to store their ends. From these ends, its
    next run can detect lost messages.
    """
    remaining = {part: span for part, span in spans.items() if span.end > span.first or span.after is None}
    while remaining:
        share = max(rows_max // len(remaining), 1)
        next_slice = {
            part: OffsetSpan(first=span.first, end=min(span.end, span.first + share), after=span.after)
            for part, span in remaining.items()
        }
        yield next_slice
        remaining = {
            part: OffsetSpan(first=next_slice[part].end, end=span.end, after=next_slice[part].end)
            for part, span in remaining.items()
            if next_slice[part].end < span.end
        }


def as_json(spans: Spans, which: Literal["first", "end"]) -> str:
    """Returns the offset `first` or `end` of each span, as JSON for Spark's option `startingOffsets` or
    `endingOffsets`.
    """
    offsets: dict[str, dict[str, int]] = defaultdict(dict)
    for (topic_, partition), span in spans.items():
        offsets[topic_][str(partition)] = span.first if which == "first" else span.end
    return json.dumps(offsets)


def begin_options(spans: Spans) -> dict[str, str]:
    """Returns the options with which Spark's Kafka source reads each partition from the `first` of its span on."""
    assigned: dict[str, list[int]] = defaultdict(list)
    for topic_, partition in spans:
        assigned[topic_].append(partition)
    return {"assign": json.dumps(assigned), "startingOffsets": as_json(spans, "first")}


def ending(spans: Spans, ends_: Offsets) -> dict[Part, OffsetSpan]:
    """Returns the spans with new ends: those in `ends_`."""
    return {part: replace(span, end=ends_[part[0]][str(part[1])]) for part, span in spans.items()}


def ends_of_batch(folder: Path, batch_number: int) -> Offsets:
    """Returns the offsets at which a micro-batch ends. `folder` has the checkpoint of its query.

    Before the micro-batch begins, Spark writes a file for it. The last line of this file has the offsets.
    """
    text = (folder / "offsets" / str(batch_number)).read_text("utf-8")
    ends_: Offsets = json.loads(text.rstrip().rpartition("\n")[2])
    return ends_


def _refuse_unknown(names: Iterable[str], known_names: Collection[str]) -> None:
    for name in names:
        if name not in known_names:
            names_text = ", ".join(sorted(known_names))
            raise ChangelogError(Kind.USAGE, f"entity {name} has no topic", hint=f"there are topics of: {names_text}")


def _refuse_lost(part: Part, next_: int, first: int, end: int) -> None:
    if next_ < first:
        raise _lost(part, f"is read up to offset {next_}, and Kafka begins at {first}")
    if next_ > end:
        raise _lost(part, f"is read up to offset {next_}, and Kafka ends at {end}: the topic was created again")


def _refuse_compacted(admin: Admin, spans: Spans) -> None:
    """Raises ChangelogError (GAP) if a span begins with messages that are older than the topic's
    `min.compaction.lag.ms`.

    Kafka protects a message from compaction only for this time. So older messages that the job has not read may be
    gone.
    """
    pending = {part: span for part, span in spans.items() if span.after is not None and span.end > span.first}
    topics_to_read = [Topic(name=name, partitions=0, settings={}) for name in {name for name, _ in pending}]
    settings = {name: state.settings for name, state in topics.read(admin, topics_to_read).items()}
    lag_ms = {
        part: int(settings[part[0]].get("min.compaction.lag.ms", 0))
        for part in pending
        if "compact" in settings[part[0]].get("cleanup.policy", "")
    }
    now_ms = time.time_ns() // 1_000_000
    uncompacted_from = since(admin, {part: max(now_ms - lag, 0) for part, lag in lag_ms.items()})
    for part, offset in uncompacted_from.items():
        span = pending[part]
        if span.first < (span.end if offset is None else min(offset, span.end)):
            raise _lost(
                part, f"is read up to offset {span.first}, and the next messages are older than min.compaction.lag.ms"
            )


def _lost(part: Part, what: str) -> ChangelogError:
    return ChangelogError(
        Kind.GAP,
        f"history lost: topic {part[0]}, partition {part[1]}, {what}",
        hint="start again with an empty output, leave the entity out (--skip ENTITY), or accept it (--accept-lost)",
    )
