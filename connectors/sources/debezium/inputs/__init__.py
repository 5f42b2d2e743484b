"""Defines the interface of inputs, from which the service reads Debezium's events.

An input has *parts*, such as the partitions of topics. The events of one part are in order; `Batch.in_order` says
whether the events of all parts together are. The checkpoint says how far each part was read, and is stored in the same
commit as the rows. So every restart continues exactly after the last stored event.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from changelog.connectors.findings import Finding
from changelog.connectors.sources import Hold, Remnant
from changelog.connectors.sources.debezium.decode.events import SourceRecord
from changelog.connectors.sources.debezium.tables import Sampled, Translate
from changelog.envelope.checkpoint import Checkpoint

Progress = Mapping[str, Any]
"""How far each part was read, by the name of the part. The values are JSON that only the input can read."""


class Placed(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A message, and the progress of its part.

    `after` is the progress of the part after the message. The distance between two places in an input is a number of
    steps, and `steps` says how many of them this message counts for, at least 1. `message` is None if there is nothing
    to publish: for example, the end of a Kafka transaction takes up an offset without a message. `where` says in words
    where the message is.
    """

    part: str
    message: SourceRecord | None
    after: Any
    steps: int

    @property
    def where(self) -> str:
        """Where the message is, for an error."""
        return f"{self.part}, before {self.after}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Messages in the order in which they arrived.

    `more` says that further messages have arrived already; they may belong to the same transaction as the last message
    of this batch. `in_order` says that the messages are to be published in this order: it is the database's order, or
    the service chose it before a restart. `behind` has the parts that may have further messages.
    """

    placed: Sequence[Placed]
    more: bool = False
    in_order: bool = False
    behind: Collection[str] = ()


Span = tuple[str, Any, Any]
"""A run of consecutive messages of one part: the part, the progress before the first, and the progress after the last.
"""


class Input(Protocol):
    """An opened input. Threads other than the publish loop's may call only `left`."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """What the checkpoint stores besides the progress, so that the next `ConfiguredInput.open` finds the same input
        again.

        The value may change at each `read`, and may be stored as soon as it changes.
        """

    @property
    def progress(self) -> Progress:
        """The progress from which this input reads."""

    def read(self, timeout_s: float, gather_s: float) -> Batch:
        """Returns the next messages; none if the timeout passes without one. Raises ChangelogError."""

    def pause(self, parts: Collection[str]) -> None:
        """Pauses these parts, whose events wait for events of other parts. Resumes all other parts."""

    def settle(self) -> None:
        """Waits, for a limited time, until the input has begun to read at the position where it was opened.

        Raises ChangelogError if the input cannot read from there.
        """

    def left(self, progress: Progress) -> int:
        """Returns how many steps lie between `progress` and the present end of the input. Raises ChangelogError.

        An input that does not know its end returns the steps of the messages that it holds.
        """

    def confirm(self, progress: Progress, steps: int) -> None:
        """Tells the database or the brokers that everything up to `progress` is durable, if they need to know. Never
        fails.

        `steps` is the number of steps since the input was opened.
        """

    def close(self) -> None:
        """Closes the connections."""


Declared = Mapping[tuple[str, str], tuple[str, ...]]
"""Tables whose keys the configuration names. The value has all columns that the configuration names for the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AfterGap:
    """Where the changelog continues after a gap: `identity` and `progress` are those of `Input`."""

    identity: Mapping[str, Any]
    progress: Progress


class ConfiguredInput(Protocol):
    """A configured input. It holds no connection: each call opens its own. Every method may raise ChangelogError."""

    @property
    def name(self) -> str:
        """The name of the input in errors and checkpoints. The source refuses a checkpoint whose input has another
        name.
        """

    @property
    def samples(self) -> bool:
        """Whether `sampled` can read events without opening the input."""

    def open(self, checkpoint: Checkpoint | None) -> Input:
        """Opens the input where the checkpoint ends. Raises GAP if the input does not reach back to that place."""

    def sampled(self, translate: Translate, declared: Declared) -> Sampled:
        """Returns the tables whose events the input has."""

    def left(self, checkpoint: Checkpoint) -> int:
        """Returns how many steps lie between the checkpoint and the present end of the input; see `Input.left`."""

    def is_lost(self, checkpoint: Checkpoint) -> bool:
        """Returns whether events after the checkpoint are lost."""

    def findings(self, checkpoint: Checkpoint | None) -> Sequence[Finding]:
        """Returns a finding for each precondition of reading the input from the checkpoint."""

    def after_gap(self, checkpoint: Checkpoint | None, *, again: bool) -> AfterGap:
        """Returns where the changelog continues after a gap. With `again`, the input is read from its beginning."""

    def hold(self) -> Hold:
        """Returns a description of the object that keeps the events, such as a replication slot, or the topics."""

    def facts(self, checkpoint: Checkpoint | None) -> Sequence[tuple[str, str]]:
        """See `changelog.connectors.sources.Database.log_facts`."""

    def remnants(self) -> Sequence[Remnant]:
        """See `changelog.connectors.sources.Database.remnants`."""

    def drop(self, kind: str) -> None:
        """See `changelog.connectors.sources.Database.drop`."""
