"""Finds out up to which position of the changelog the tables are complete.

A thread repeats three steps:

1. It takes the newest checkpoint that is in the table of checkpoints.
2. It asks Kafka for the ends of all partitions, once all rows up to this checkpoint are visible (`complete_ends`).
3. It waits until Kafka Streams has committed these offsets. Then the tables have all rows up to the checkpoint: Kafka
   Streams commits an offset only after its messages are in the table, and a table can be read only after it was
   restored up to its offset.

The offset that Kafka Streams commits is always the offset after a message. The rest of the partition can be without
committed messages: it may have nothing but the ends of transactions, and messages of aborted ones. So if Kafka Streams
does not advance, step 3 reads the rest, to see whether it has a committed message. It does not do so while a
transaction is open there: reading would wait for its end, and hold up all other partitions.

The thread does the same for the partitions for which this process is a standby, but with the offsets of the standbys.
Standbys can be complete up to another position than the tables.

Some stores have changelogs of their own. Before Kafka Streams commits offsets, it writes the content of the tables to
these changelogs. So step 3 then asks for the ends of the changelogs. A store or a standby that was restored up to such
an end is as complete as the tables.
"""

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final, TypeVar

import structlog

from changelog.connectors.kafka.client import Admin, Client
from changelog.connectors.kafka.offsets import Part, committed, ends, written_ends
from changelog.connectors.sinks.kafka.admin.generations import generations_of, has_all_rows
from changelog.connectors.sinks.kafka.encoding.messages import ValueCodec
from changelog.connectors.sinks.kafka.reading.complete_ends import complete_ends
from changelog.connectors.sinks.kafka.reading.spans import messages_in
from changelog.connectors.views.served import Completeness
from changelog.connectors.views.streams.placement import Need
from changelog.connectors.views.streams.tables import KafkaTables, RestoringError
from changelog.connectors.views.streams.topics import POSITIONS, ServedTopic, all_parts
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.position import Position

POLL_S: Final = 0.05
"""How long the thread waits between two readings of the tables, in seconds."""

SEARCH_S: Final = 0.5
"""If Kafka Streams has not reached an end after this time, in seconds, the thread looks for messages before the end."""

CLOSE_S: Final = 5.0
"""How long the thread may take to end, in seconds."""

AGAIN_S: Final = 1.0
"""After an error, the thread tries again after this time, in seconds."""

NOTE_S: Final = 60.0
"""How often `on_complete` is called, in seconds."""

Value = TypeVar("Value", float, Position)

_log = structlog.get_logger("views")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reached:
    """How far a partition is complete, and what a store must have to be as complete."""

    completeness: Completeness
    need: Need


@dataclass(frozen=True, slots=True, kw_only=True)
class _Goal:
    """The offsets that tables must reach to be complete up to a checkpoint. `at_s` is when Kafka was asked for them, on
    the clock `time.monotonic`. `refusals` has errors for entities whose tables are not complete even at these offsets.
    """

    checkpoint: bytes
    completeness: Completeness
    ends: Mapping[Part, int]
    at_s: float
    refusals: Mapping[str, ChangelogError]


class TablesProgress:
    """Follows the tables of `topics` in an `application`. The service `name`, whose topics have this `prefix`, makes
    the checkpoints. They are in a small table, which `checkpoints` reads.

    `error` says why the thread cannot follow the tables now; None if it can. `on_complete` is called with
    `complete_s()` every minute. `parts` are all partitions. Any thread may call the methods.
    """

    def __init__(
        self,
        tables: KafkaTables,
        client: Client,
        codec: ValueCodec,
        *,
        name: str,
        prefix: str,
        application: str,
        topics: Mapping[str, ServedTopic],
        checkpoints: KafkaTables,
        on_complete: Callable[[float], None],
    ) -> None:
        self._tables, self._client, self._codec, self._name, self._topics = tables, client, codec, name, topics
        self._checkpoints = checkpoints
        self._admin, self._prefix = client.admin(), prefix
        self._group = client.reader(open_too=True, group=application)  # without `open_too`, transactions delay answers
        self._on_complete, self._note_again_s = on_complete, 0.0
        self._newest: _Goal | None = None
        self.parts = tuple(all_parts(topics))
        self._served = _Track(client, self._admin, {})
        self._standbys = _Track(client, self._admin, tables.changelogs)
        self.error: ChangelogError | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="views-progress", daemon=True)
        self._thread.start()

    def reached(self, parts: Collection[Part]) -> Completeness | None:
        """Returns how far partitions are complete; None if one is not yet complete up to any checkpoint."""
        completed = [reached.completeness for part in parts if (reached := self._served.reached.get(part)) is not None]
        return least(completed) if len(completed) == len(parts) else None

    def standby_reached(self, part: Part) -> Completeness | None:
        """Returns how far the standby of a partition is complete. Returns None if this process has no standby of it, or
        if the standby is not yet complete up to any checkpoint.
        """
        reached = self._standbys.reached.get(part)
        if reached is None or self._tables.standbys().get(part, -1) < reached.need.store_offset:
            return None
        return reached.completeness

    def need(self, part: Part) -> Need:
        """Returns what an instance must have of a partition, so that its rows are as complete as `reached` says."""
        reached = self._served.reached.get(part)
        return Need(0, 0) if reached is None else reached.need

    def refusal(self, entity: str) -> ChangelogError | None:
        """Returns why the table of a repartitioned entity cannot be complete; None if it can."""
        return None if self._newest is None else self._newest.refusals.get(entity)

    def complete_s(self) -> float | None:
        """Returns a time, in seconds since 1970. All tables have every message from before this time.

        Returns None if no such time is known.
        """
        standbys = [self.standby_reached(part) for part in self._tables.standbys()]
        completed = [completeness for completeness in (self.reached(self.parts), *standbys) if completeness is not None]
        is_complete = len(completed) == 1 + len(standbys) and self._tables.are_restored()
        return least(completed).at_s if is_complete else None

    def lags(self) -> tuple[Mapping[Part, int], Mapping[Part, int]]:
        """Returns how many offsets each partition lacks up to its goal, and how many each standby here lacks."""
        return self._served.lags, self._standbys.lags

    def close(self) -> None:
        """Ends the thread. If the thread still waits for Kafka after `CLOSE_S`, it ends with the process."""
        self._stopping.set()
        self._thread.join(CLOSE_S)

    def _follow(self) -> None:
        wait_s = 0.0
        with closing(self._group):
            while not self._stopping.wait(wait_s):
                try:
                    self._advance()
                    self._note()
                    self.error, wait_s = None, POLL_S
                except RestoringError:
                    wait_s = AGAIN_S
                except ChangelogError as error:
                    wait_s = AGAIN_S
                    self._fail(error)
                except Exception as error:  # noqa: BLE001 - without this thread, nothing would be served any more
                    wait_s = AGAIN_S  # its text is not shown, because it could have values of rows
                    text = f"finding out how far rows are complete: {type(error).__name__}"
                    self._fail(ChangelogError(Kind.PRECONDITION, text))

    def _fail(self, error: ChangelogError) -> None:
        if self.error is None:
            _log.warning("cannot find out how far rows are complete", error=str(error))
        self.error = error

    def _advance(self) -> None:
        if self._served.goals:
            self._served.advance(committed(self._group, self.parts), self._announced_ends)  # 3
        standbys = self._tables.standbys()
        self._standbys.keep(standbys)
        self._standbys.advance(standbys, dict)
        if len(self._served.goals) == len(self.parts) and len(self._standbys.goals) == len(standbys):
            return
        newest = self._checkpoints.get_small(POSITIONS, self._name.encode())  # 1
        if newest is None:
            return
        if self._newest is None or newest[0] != self._newest.checkpoint:
            before, self._newest = self._newest, self._goal(*newest)
            for entity, refusal in self._newest.refusals.items():
                if before is None or entity not in before.refusals:
                    _log.warning("rows of an entity do not become newer", entity=entity, why=str(refusal))
        refused_topics = {self._topics[entity].name for entity in self._newest.refusals}
        self._served.aim([part for part in self.parts if part[0] not in refused_topics], self._newest)
        for part in standbys:
            if part[0] not in refused_topics and (goal := self._standby_goal(part, self._newest)) is not None:
                self._standbys.aim([part], goal)

    def _announced_ends(self, offsets: Mapping[Part, int]) -> Mapping[Part, int]:
        """Returns what `_stored_ends` returns. Before that, asks Kafka Streams which offsets this process committed:
        readers need these as soon as `reached` names the new offsets.
        """
        if offsets:
            self._tables.learn()
        return self._stored_ends(offsets)

    def _stored_ends(self, offsets: Mapping[Part, int]) -> Mapping[Part, int]:
        """Takes offsets of topics, and returns the offsets of changelogs that correspond to them: a store that was
        restored up to such an offset has all messages before the offset of its topic.

        Kafka Streams must have committed the given offsets already.
        """
        if not self._tables.changelogs:
            return offsets
        parts = {part: (self._tables.changelogs[part[0]], part[1]) for part in offsets}
        log_ends = written_ends(self._admin, parts.values())
        return {part: log_ends[changelog_part] for part, changelog_part in parts.items()}

    def _standby_goal(self, part: Part, newest: _Goal) -> _Goal | None:
        """Returns the goal of a standby. If stores have changelogs of their own, the goal is what the table has
        reached in this partition; None if that is nothing yet.
        """
        if not self._tables.changelogs:
            return newest
        reached = self._served.reached.get(part)
        if reached is None:
            return None
        store_ends = {part: reached.need.store_offset}
        return replace(newest, completeness=reached.completeness, ends=store_ends, at_s=time.monotonic())

    def _note(self) -> None:
        now_s = time.monotonic()
        if now_s >= self._note_again_s and (complete_s := self.complete_s()) is not None:
            self._on_complete(complete_s)
            self._note_again_s = now_s + NOTE_S

    def _goal(self, text: bytes, at_s: float) -> _Goal:
        checkpoint = Checkpoint.from_json(text)
        topic_ends = complete_ends(self._client, self._codec, self._name, self.parts, lambda: checkpoint)  # 2
        completeness = Completeness(position=checkpoint.reached, at_s=at_s)
        refusals = {
            entity: refusal
            for entity, served in self._topics.items()
            if (refusal := repartitioned(checkpoint, self._prefix, entity, served.name)) is not None
        }
        return _Goal(
            checkpoint=text, completeness=completeness, ends=topic_ends, at_s=time.monotonic(), refusals=refusals
        )


class _Track:
    """Follows partitions. `goals` has what partitions have not reached yet, and `reached` what they have reached.
    Offsets are those of the topics, or of the topics' `changelogs`.
    """

    def __init__(self, client: Client, admin: Admin, changelogs: Mapping[str, str]) -> None:
        self._client, self._admin, self._changelogs = client, admin, changelogs
        self.goals: dict[Part, _Goal] = {}
        self.reached: dict[Part, _Reached] = {}
        self.lags: Mapping[Part, int] = {}
        self._empty: dict[Part, range] = {}
        self._searched: dict[Part, tuple[int, float]] = {}

    def advance(
        self, offsets: Mapping[Part, int], stored_ends: Callable[[Mapping[Part, int]], Mapping[Part, int]]
    ) -> None:
        """Takes, for each partition, the offset before which its table has all messages. `stored_ends` returns the
        offsets of changelogs that correspond to these offsets.
        """
        complete = {
            part: min(offsets.get(part, 0), goal.ends[part])
            for part, goal in self.goals.items()
            if self._has(part, goal, offsets.get(part, 0))
        }
        for part, store_offset in stored_ends(complete).items():
            need = Need(complete[part], store_offset)
            self.reached[part] = _Reached(completeness=self.goals.pop(part).completeness, need=need)
        self.lags = {part: max(goal.ends[part] - offsets.get(part, 0), 0) for part, goal in self.goals.items()}

    def aim(self, parts: Collection[Part], newest: _Goal) -> None:
        """Gives the newest goal to those partitions that have reached theirs."""
        for part in set(parts) - self.goals.keys():
            reached = self.reached.get(part)
            if reached is None or reached.completeness != newest.completeness:
                self.goals[part] = newest

    def keep(self, parts: Collection[Part]) -> None:
        """Forgets all other partitions. A table that comes back can have fewer messages than before."""
        for part in (self.goals.keys() | self.reached.keys()) - set(parts):
            for by_part in (self.goals, self.reached, self._empty, self._searched):
                by_part.pop(part, None)

    def _has(self, part: Part, goal: _Goal, offset: int) -> bool:
        """Returns whether a table has all messages before the goal's end of a partition."""
        end = goal.ends[part]
        empty = self._empty.get(part, range(0))
        if offset >= end or (offset >= empty.start and end <= empty.stop):
            return True
        searched_offset, searched_at_s = self._searched.get(part, (-1, goal.at_s))
        is_late = time.monotonic() - max(goal.at_s, searched_at_s) > SEARCH_S
        if not is_late or searched_offset == offset:  # the table still lacks the message that was found
            return False
        logged_part = self._changelogs.get(part[0], part[0]), part[1]
        if ends(self._admin, [logged_part])[logged_part] < end:
            self._searched[part] = -1, time.monotonic()  # reading would wait until an open transaction ends
            return False
        if self._is_empty(logged_part, range(offset, end)):
            self._empty[part] = range(offset, end)
            return True
        self._searched[part] = offset, time.monotonic()
        return False

    def _is_empty(self, part: Part, span: range) -> bool:
        """Returns whether a span of offsets has no committed message. Stops reading at the first such message."""
        with closing(self._client.reader()) as consumer:
            return not any(messages_in(consumer, {part: span}))


def least(completed: Sequence[Completeness]) -> Completeness:
    """Returns how far the rows of several partitions are complete together."""
    return Completeness(
        position=_least([completeness.position for completeness in completed]),
        at_s=_least([completeness.at_s for completeness in completed]),
    )


def _least(values: Sequence[Value | None]) -> Value | None:
    """Returns the least of the values; None if one of them is None, or if there are no values."""
    known_values = [value for value in values if value is not None]
    return min(known_values) if known_values and len(known_values) == len(values) else None


def repartitioned(checkpoint: Checkpoint, prefix: str, entity: str, topic: str) -> ChangelogError | None:
    """Returns an error if `topic` lacks the last messages of some keys because the entity was repartitioned; otherwise
    None.
    """
    generations = generations_of(checkpoint, prefix, entity)
    if len(generations) == 1:
        return None
    present = generations[-1].topic
    if topic != present:
        return ChangelogError(
            Kind.PRECONDITION,
            f"the entity {entity} was repartitioned, and goes on in topic {present}",
            hint="start `changelog views serve` again",
        )
    if not has_all_rows(checkpoint, entity):
        return ChangelogError(
            Kind.PRECONDITION,
            f"the entity {entity} was repartitioned, and its table is still being read into topic {present}",
            hint="`changelog status` shows how far it is",
        )
    return None
