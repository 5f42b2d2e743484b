"""Defines the checkpoint: how far a changelog reaches. A sink stores it in each commit, atomically with the rows. In
files and topics, the checkpoint is a JSON object, which is called the *recovery record*.

Format 2 has the same members for all databases; its member `source` holds what only one kind of database has. Format 1
was for PostgreSQL only: it had a log sequence number, a system identifier and a timeline among its members. A
checkpoint of format 1 can still be read, and is converted to format 2. Format 3 adds the topics of repartitioned
entities (`GENERATIONS`) to format 2.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

import msgspec

from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.position import Position, commit_text

FORMAT: Final = 3

GENERATIONS: Final = "generations"
"""The member of a checkpoint's `sink` that lists the topics of entities that were repartitioned.

A checkpoint without this member has format 2, which older versions of the program also write and read. A checkpoint
with this member has format 3, which older versions refuse: they would read only the first topic of such an entity."""

_FORMAT_WITHOUT_GENERATIONS: Final = 2

_THROUGH = re.compile(r"([0-9A-F]{16}).*", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Where and why a service stopped: the attributes of the error (`changelog.envelope.errors`) that stopped it."""

    position: Position
    message: str
    hint: str | None
    choices: tuple[str, ...] = ()
    altered: str | None = None

    @classmethod
    def of(cls, error: ChangelogError) -> "Stop | None":
        """Returns the stop that an error causes; None if it is not an error on which an operator can decide."""
        if error.kind is not Kind.STOP or error.position is None:
            return None
        return cls(
            position=error.position,
            message=error.message,
            hint=error.hint,
            choices=error.choices,
            altered=error.altered,
        )

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Returns the stop from the result of `to_json`.

        Raises KeyError, TypeError or ValueError for any other value.
        """
        return cls(
            position=Position.parse(value["position"]),
            message=value["message"],
            hint=value["hint"],
            choices=tuple(value["choices"]),
            altered=value["altered"],
        )

    def to_json(self) -> dict[str, Any]:
        """Returns the stop as JSON values."""
        return {
            "position": str(self.position),
            "message": self.message,
            "hint": self.hint,
            "choices": self.choices,
            "altered": self.altered,
        }


@dataclass(frozen=True, slots=True)
class Decisions:
    """An operator's decisions on how the service continues after stops. `passed` maps the position of a stop to the
    decision: `skip`, `default` or `dead-letter`.
    """

    passed: Mapping[Position, str] = field(default_factory=dict)

    def at(self, position: Position) -> str | None:
        """Returns the decision that applies to a stop at `position`; None if no decision applies.

        A decision also applies to later changes of the same transaction, until a change for which there is another
        decision. It never applies to another transaction.
        """
        earlier = [
            stop
            for stop in self.passed
            if (stop.epoch, stop.commit) == (position.epoch, position.commit) and stop <= position
        ]
        return self.passed[max(earlier)] if earlier else None

    def accept(self, position: Position, decision: str) -> "Decisions":
        """Returns these decisions and one more: `decision` for the stop at `position`."""
        return Decisions({**self.passed, position: decision})

    @classmethod
    def from_json(cls, value: Mapping[str, str]) -> Self:
        """Returns the decisions from the result of `to_json`. Raises ValueError if a name is not a position."""
        return cls({Position.parse(text): decision for text, decision in value.items()})

    def to_json(self) -> dict[str, str]:
        """Returns the decisions as JSON values, by the text of the position."""
        return {str(position): decision for position, decision in self.passed.items()}


NO_DECISIONS: Final = Decisions()


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """How far a changelog reaches, and everything that a service needs to continue from there.

    `position` is the position of the last published row, or None before the first row. `through` is the place in the
    source's log up to which the changelog is complete: every transaction of `epoch` that was committed before `through`
    is stored, or had nothing to publish. Each kind of source has its own form of `through`. All forms sort as text, and
    begin with a commit that is written as in the text of a position (`changelog.envelope.position.commit_text`). So
    this beginning is enough to compare `through` with positions.

    `partial` says that `position` is inside a transaction, and that the rest of the transaction is not published yet.
    `windows` holds, by entity, how far the entity's table has been read. `settings` holds, by entity, the settings on
    which the order or the content of the entity's messages depends. `decisions` are an operator's decisions on stops.
    `accepted` maps an entity to the position (as text) of a change of its columns that an operator accepted. `repairs`
    holds the unfinished repairs that signals requested, and the outcomes of the most recent signals. `source` and
    `sink` hold values such as the database's identifier. Only the source and the sink read these values: when they are
    opened again, they compare the stored values with the current ones. Older checkpoints lack some values; a missing
    value counts as equal. `state` holds the id by which the store of current rows (`[state]`) recognises its changelog.
    `stop` is the service's last stop; it becomes None when the changelog is complete past the stop's transaction.
    """

    position: Position | None
    through: str
    epoch: int
    partial: bool = False
    windows: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    decisions: Decisions = NO_DECISIONS
    accepted: Mapping[str, str] = field(default_factory=dict)
    repairs: Mapping[str, Any] = field(default_factory=dict)
    source: Mapping[str, Any] = field(default_factory=dict)
    sink: Mapping[str, Any] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict)
    stop: Stop | None = None

    @property
    def complete_before(self) -> Position:
        """Returns `through` as a position. Every change before this position is in the changelog."""
        return Position(self.epoch, _commit(self.through), 0)

    @property
    def reached(self) -> Position:
        """Returns how far the changelog reaches: `position` or `complete_before`, whichever is later."""
        return self.complete_before if self.position is None else max(self.position, self.complete_before)

    def stopping(self, stop: Stop | None) -> "Checkpoint":
        """Returns the checkpoint with this stop.

        If `stop` is None, the former stop remains until the changelog is complete past the stop's transaction.
        """
        former_stop = self.stop
        if former_stop is not None and self.complete_before > replace(former_stop.position, ordinal=0):
            former_stop = None
        return replace(self, stop=stop or former_stop)

    def to_json(self) -> bytes:
        """Returns the checkpoint as a JSON object, with format 3 if an entity was repartitioned, else with format 2."""
        return msgspec.json.encode(
            {
                "format": FORMAT if self.sink.get(GENERATIONS) else _FORMAT_WITHOUT_GENERATIONS,
                "position": None if self.position is None else str(self.position),
                "through": self.through,
                "epoch": self.epoch,
                "partial": self.partial,
                "windows": self.windows,
                "settings": self.settings,
                "decisions": self.decisions.to_json(),
                "accepted": self.accepted,
                **{name: value for name in ("repairs", "source", "sink", "state") if (value := getattr(self, name))},
                **({} if self.stop is None else {"stop": self.stop.to_json()}),
            }
        )

    @classmethod
    def from_json(cls, text: bytes) -> Self:
        """Reads a checkpoint that `to_json` wrote, in this format or an older one.

        Raises ChangelogError: PRECONDITION if the format is newer, MALFORMED if `text` is not a checkpoint.
        """
        try:
            value = msgspec.json.decode(text)
            if value["format"] > FORMAT:
                raise ChangelogError(
                    Kind.PRECONDITION,
                    f"the changelog's recovery record has format {value['format']}; this program knows {FORMAT}",
                    hint="run the newer version that wrote it",
                )
            value = _of_format_1(value) if value["format"] == 1 else value
            _commit(value["through"])
            return cls(
                position=None if value["position"] is None else Position.parse(value["position"]),
                through=value["through"],
                epoch=value["epoch"],
                partial=value["partial"],
                windows=value["windows"],
                settings=value["settings"],
                decisions=Decisions.from_json(value["decisions"]),
                accepted=value.get("accepted", {}),
                repairs=value.get("repairs", {}),
                source=value.get("source", {}),
                sink=value.get("sink", {}),
                state=value.get("state", {}),
                stop=Stop.from_json(value["stop"]) if "stop" in value else None,
            )
        except (msgspec.DecodeError, AttributeError, KeyError, TypeError, ValueError) as error:
            raise ChangelogError(Kind.MALFORMED, "the recovery record cannot be read") from error


def _of_format_1(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """Converts the members of a checkpoint of format 1 to format 2: PostgreSQL's own members move into `source`."""
    high, _, low = value["through_lsn"].partition("/")
    cluster = {"system_identifier": value["system_identifier"], "timeline": value["timeline"]}
    return {
        **value,
        "through": commit_text(int(high, 16) << 32 | int(low, 16)),
        "source": {**cluster, **value.get("source", {})},
    }


def _commit(through: str) -> int:
    """Returns the commit at the beginning of `through`. Raises ValueError if `through` does not begin with a commit."""
    match = _THROUGH.fullmatch(through)
    if match is None:
        raise ValueError(f"{through!r} does not begin with a commit")
    return int(match[1], 16)
