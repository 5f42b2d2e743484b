"""What of a changelog's topics is to be read next, and whether Kafka still has it: a job that keeps offsets asks here.

Offsets are those of committed messages. They have gaps, where transactions end and where messages were compacted, so
what was read is a span: from an offset up to another, whatever stands between.
"""

import json
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from connectors.sinks.kafka import topics
from connectors.sinks.kafka.client import Admin, Client
from connectors.sinks.kafka.names import topic
from connectors.sinks.kafka.offsets import Part, begins, ends, since
from connectors.sinks.kafka.topics import Topic
from envelope.entity import OF_CHANGELOG, RESERVED
from envelope.errors import ChangelogError, Kind

Offsets = Mapping[str, Mapping[str, int]]
"""By topic and partition (as text, for JSON) the next offset to read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Offsets of one partition, from `first` up to `end`, which is not of it.

    `after` is where the run before ended: `first`, unless history was lost, or None when there was none.
    """

    first: int
    end: int
    after: int | None


Spans = Mapping[Part, Span]


def entities(admin: Admin, prefix: str, names: Iterable[str] | None = None) -> dict[str, int]:
    """The entities that have a topic, the versions of their columns and the gaps: each with its number of partitions.

    Raises ChangelogError: PRECONDITION when there is none, USAGE when one of `names` has none.
    """
    reserved = RESERVED - OF_CHANGELOG
    counts = {name: count for name, count in topics.entities(admin, prefix).items() if name not in reserved}
    if not counts.keys() - OF_CHANGELOG:
        hint = "`changelog run` makes them; see [sink] prefix"
        raise ChangelogError(Kind.PRECONDITION, f"there is no topic of the changelog {prefix}", hint=hint)
    if names is None:
        return counts
    _refuse_unknown(names, counts)
    return {name: counts[name] for name in names}


def unread(
    client: Client, prefix: str, offsets: Offsets, *, skip: Collection[str] = (), lost: bool = False
) -> dict[Part, Span]:
    """What is committed behind `offsets`; of a partition that these do not know, all there is. Spans may be empty.

    The entities of `skip` are left out.

    Raises ChangelogError: GAP (*history lost*) when messages behind the offsets are no longer there, or may have been
    compacted away, unless `lost`, which goes on with what there is; USAGE when one of `skip` has no topic.
    """
    admin = client.admin()
    counts = entities(admin, prefix)
    _refuse_unknown({*skip} - OF_CHANGELOG, counts)
    counted = {topic(prefix, entity): count for entity, count in counts.items() if entity not in skip}
    parts = [(name, number) for name, count in counted.items() for number in range(count)]
    first, end = begins(admin, parts), ends(admin, parts)
    next_offsets = {part: offsets.get(part[0], {}).get(str(part[1])) for part in parts}
    spans = {}
    for part, next_ in next_offsets.items():
        if next_ is not None and not lost:
            _refuse_lost(part, next_, first[part], end[part])
        begin = first[part] if next_ is None or not first[part] <= next_ <= end[part] else next_
        spans[part] = Span(first=begin, end=end[part], after=next_)
    if not lost:
        _refuse_compacted(admin, spans)
    return spans


def slices(spans: Spans, rows_max: int) -> Iterable[dict[Part, Span]]:
    """The spans in pieces of about `rows_max` offsets, to be read one after another.

    Empty ones are left out, unless no run was there before: what comes later must not be missed unsaid.
    """
    left = {part: span for part, span in spans.items() if span.end > span.first or span.after is None}
    while left:
        share = max(rows_max // len(left), 1)
        piece = {
            part: Span(first=span.first, end=min(span.end, span.first + share), after=span.after)
            for part, span in left.items()
        }
        yield piece
        left = {
            part: Span(first=piece[part].end, end=span.end, after=piece[part].end)
            for part, span in left.items()
            if piece[part].end < span.end
        }


def as_json(spans: Spans, which: Literal["first", "end"]) -> str:
    """One side of the spans, as Spark's options `startingOffsets` and `endingOffsets` take it."""
    offsets: dict[str, dict[str, int]] = defaultdict(dict)
    for (topic_, partition), span in spans.items():
        offsets[topic_][str(partition)] = span.first if which == "first" else span.end
    return json.dumps(offsets)


def begin_options(spans: Spans) -> dict[str, str]:
    """The options of Spark's Kafka source that make it read the spans' partitions from their first offsets on."""
    assigned: dict[str, list[int]] = defaultdict(list)
    for topic_, partition in spans:
        assigned[topic_].append(partition)
    return {"assign": json.dumps(assigned), "startingOffsets": as_json(spans, "first")}


def ending(spans: Spans, ends_: Offsets) -> dict[Part, Span]:
    """The spans up to other ends."""
    return {part: replace(span, end=ends_[part[0]][str(part[1])]) for part, span in spans.items()}


def _refuse_unknown(names: Iterable[str], known_names: Collection[str]) -> None:
    for name in names:
        if name not in known_names:
            known = ", ".join(sorted(known_names))
            raise ChangelogError(Kind.USAGE, f"entity {name} has no topic", hint=f"the changelog has {known}")


def _refuse_lost(part: Part, next_: int, first: int, end: int) -> None:
    if next_ < first:
        raise _lost(part, f"is read up to offset {next_}, and Kafka begins at {first}")
    if next_ > end:
        raise _lost(part, f"is read up to offset {next_}, and Kafka ends at {end}: the topic was made anew")


def _refuse_compacted(admin: Admin, spans: Spans) -> None:
    """A message is kept from compaction for a while only; one that was not read in that while may be gone."""
    behind = {part: span for part, span in spans.items() if span.after is not None and span.end > span.first}
    named = [Topic(name=name, partitions=0, settings={}) for name in {name for name, _ in behind}]
    settings = {name: topic_found.settings for name, topic_found in topics.read(admin, named).items()}
    lag_ms = {
        part: int(settings[part[0]].get("min.compaction.lag.ms", 0))
        for part in behind
        if "compact" in settings[part[0]].get("cleanup.policy", "")
    }
    now_ms = time.time_ns() // 1_000_000
    uncompacted_from = since(admin, {part: max(now_ms - lag, 0) for part, lag in lag_ms.items()})
    for part, offset in uncompacted_from.items():
        span = behind[part]
        if span.first < (span.end if offset is None else min(offset, span.end)):
            raise _lost(
                part, f"is read up to offset {span.first}, and what follows is older than min.compaction.lag.ms"
            )


def _lost(part: Part, what: str) -> ChangelogError:
    return ChangelogError(
        Kind.GAP,
        f"history lost: {part[0]}, partition {part[1]}, {what}",
        hint="begin anew in an empty place, leave it out by --skip ENTITY, or go on without it by --accept-lost",
    )
